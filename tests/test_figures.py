"""Figures: their numbers, taken out of the Axes, are those of the Parquet."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from small_runs import SmallRuns, with_recoveries

from rayfl.analysis import figures, views
from rayfl.errors import InputError
from rayfl.results import Run

mpl.use("Agg")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SmallRuns:
    return SmallRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def table(run: Run, name: str) -> pd.DataFrame:
    """Read a table without rayfl, in order of rounds."""
    return pd.read_parquet(f"{run.path}/{name}").sort_values("round", kind="stable")


def line(ax: Axes, label: str) -> np.ndarray:
    """Return the points of the line with this label (n, 2)."""
    return next(found for found in ax.get_lines() if found.get_label() == label).get_xydata()


def image(ax: Axes) -> np.ndarray:
    return np.ma.getdata(ax.get_images()[0].get_array())


# -- how good models are ------------------------------------------------------------------------------------------


def test_a_curve_is_the_mean_over_seeds_and_its_band_one_deviation(runs: SmallRuns) -> None:
    ax = figures.curves([*runs.fedavg, runs.fedac])
    both = np.stack([table(run, "rounds")["accuracy"] for run in runs.fedavg])
    np.testing.assert_allclose(line(ax, "fedavg"), np.column_stack([[1, 2, 3], both.mean(axis=0)]))
    np.testing.assert_allclose(line(ax, "fedac")[:, 1], table(runs.fedac, "rounds")["accuracy"])
    assert len(ax.collections) == 1  # one seed has no band
    corners = ax.collections[0].get_paths()[0].vertices
    at_two = corners[corners[:, 0] == 2][:, 1]
    assert at_two.min() == pytest.approx((both.mean(axis=0) - both.std(axis=0, ddof=1))[1])
    assert at_two.max() == pytest.approx((both.mean(axis=0) + both.std(axis=0, ddof=1))[1])


def test_names_replace_labels_in_the_legend(runs: SmallRuns) -> None:
    ax = figures.curves([*runs.fedavg, runs.fedac], names={"fedac": "FedAC (ours)"})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["fedavg", "FedAC (ours)"]


def test_bars_have_the_height_of_the_last_round(runs: SmallRuns) -> None:
    ax = figures.final([*runs.fedavg, *runs.ifca], ["accuracy", "macro_f1"])
    for container, metric in zip(ax.containers[1::2], ("accuracy", "macro_f1"), strict=True):
        expected = [np.mean([table(r, "rounds")[metric].iloc[-1] for r in group]) for group in (runs.fedavg, runs.ifca)]
        np.testing.assert_allclose([bar.get_height() for bar in container], expected)


def test_add_ons_stand_beside_their_method(runs: SmallRuns) -> None:
    ax = figures.addon_effect([*runs.ifca, runs.cam])
    heights = [[bar.get_height() for bar in bars] for bars in ax.containers if hasattr(bars, "patches")]
    alone = np.mean([table(run, "rounds")["accuracy"].iloc[-1] for run in runs.ifca])
    np.testing.assert_allclose(heights, [[alone], [table(runs.cam, "rounds")["accuracy"].iloc[-1]]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["alone", "CAM"]


def test_paired_differences_are_a_dot_per_seed_and_their_mean(runs: SmallRuns) -> None:
    ax = figures.paired_differences([*runs.fedavg, *runs.ifca], "fedavg")
    base, other = (
        np.array([table(run, "rounds")["accuracy"].iloc[-1] for run in group]) for group in (runs.fedavg, runs.ifca)
    )
    np.testing.assert_allclose(ax.collections[0].get_offsets()[:, 0], other - base)
    np.testing.assert_allclose(ax.get_lines()[-1].get_xdata(), np.mean(other - base))


def test_sensitivity_is_a_point_per_value_of_the_key(runs: SmallRuns) -> None:
    ax = figures.sensitivity([*runs.ifca, runs.ifca_of_five], "method.clusters")
    points = ax.containers[0].lines[0].get_xydata()
    two = np.mean([table(run, "rounds")["accuracy"].iloc[-1] for run in runs.ifca])
    np.testing.assert_allclose(points, [[2, two], [5, table(runs.ifca_of_five, "rounds")["accuracy"].iloc[-1]]])


def test_values_that_are_no_numbers_stand_side_by_side(runs: SmallRuns) -> None:
    ax = figures.sensitivity([runs.fedavg[0], runs.ifca[0]], "method.name")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["fedavg", "ifca"]


# -- clients ------------------------------------------------------------------------------------------------------


def test_the_distribution_over_clients_is_their_sorted_values(runs: SmallRuns) -> None:
    ax = figures.client_distribution(runs.fedavg)
    values = np.sort(np.concatenate([table(run, "clients").query("round == 3")["accuracy"] for run in runs.fedavg]))
    found = line(ax, "fedavg")
    np.testing.assert_array_equal(found[1:, 0], values)
    np.testing.assert_allclose(found[1:, 1], np.arange(1, 17) / 16)


def test_the_worst_clients_of_a_run_are_named(runs: SmallRuns) -> None:
    ax = figures.worst_clients([runs.fedac], count=4)
    last = table(runs.fedac, "clients").query("round == 3").sort_values(["accuracy", "client"]).head(4)
    np.testing.assert_array_equal(line(ax, "fedac")[:, 1], last["accuracy"])
    assert [text.get_text() for text in ax.get_xticklabels()] == last["client"].astype(str).tolist()


# -- clusters -----------------------------------------------------------------------------------------------------


def test_stacked_sizes_and_lines_are_those_of_the_clusters_table(runs: SmallRuns) -> None:
    sizes = table(runs.fedac, "clusters").pivot(index="round", columns="cluster", values="size").fillna(0)
    ax = figures.cluster_sizes(runs.fedac, kind="lines")
    for cluster in sizes:
        name = f"{cluster} ({sizes[cluster].iloc[-1]:.0f})"
        np.testing.assert_array_equal(line(ax, name)[:, 1], sizes[cluster])
    ax = figures.cluster_sizes(runs.fedac)
    tops = [area.get_paths()[0].vertices for area in ax.collections]
    for top, expected in zip(tops, sizes.cumsum(axis=1).to_numpy().T, strict=True):
        assert [top[top[:, 0] == number][:, 1].max() for number in sizes.index] == expected.tolist()


def test_the_number_of_clusters_is_drawn_with_the_planted_number(runs: SmallRuns) -> None:
    ax = figures.cluster_numbers([runs.fedac])
    np.testing.assert_array_equal(line(ax, "fedac")[:, 1], table(runs.fedac, "rounds")["clusters"])
    assert set(line(ax, "planted")[:, 1]) == {2}


def test_agreement_is_that_of_the_rounds_table(runs: SmallRuns) -> None:
    ax = figures.agreement(runs.fedac, ["ari", "largest_share"])
    np.testing.assert_array_equal(line(ax, "ARI")[:, 1], table(runs.fedac, "rounds")["ari"])
    np.testing.assert_array_equal(line(ax, "share of the largest")[:, 1], table(runs.fedac, "rounds")["largest_share"])


def test_a_strip_shows_each_clients_cluster_and_what_is_unknown_in_grey(runs: SmallRuns) -> None:
    ax = figures.moves(runs.sparse)
    shown = ax.get_images()[0].get_array()
    clients = table(runs.sparse, "clients")
    planted = clients.drop_duplicates("client").set_index("client")["true_cluster"]
    where = clients.pivot(index="client", columns="round", values="cluster")
    known = np.isfinite(where.to_numpy())
    assert np.ma.getmaskarray(shown).sum() == (~known).sum()
    # Rows are in another order; the multiset of rows is the same, with those of planted cluster 0 first.
    found = sorted(map(tuple, shown.filled(-1)))
    assert found == sorted(map(tuple, where.fillna(-1).to_numpy()))
    first = sorted(map(tuple, shown.filled(-1)[: (planted == 0).sum()]))
    assert first == sorted(map(tuple, where.loc[planted.index[planted == 0]].fillna(-1).to_numpy()))


def test_a_contingency_image_has_the_counts_and_writes_them(runs: SmallRuns) -> None:
    ax = figures.contingency(runs.fedac)
    last = table(runs.fedac, "clients").query("round == 3")
    found = [int(text.get_text()) for text in ax.get_xticklabels()]
    planted = [int(text.get_text()) for text in ax.get_yticklabels()]
    for (row, column), count in np.ndenumerate(image(ax)):
        who = (last["true_cluster"] == planted[row]) & (last["cluster"] == found[column])
        assert count == who.sum()
    assert sorted(int(text.get_text()) for text in ax.texts) == sorted(image(ax)[image(ax) > 0].tolist())


def bands(ax: Axes) -> list[tuple[float, float]]:
    """Return the height of each band at its left and its right end."""
    found = []
    for collection in ax.collections:
        for path in collection.get_paths():
            corners = path.vertices
            ends = [corners[corners[:, 0] == x][:, 1] for x in (corners[:, 0].min(), corners[:, 0].max())]
            found.append((np.ptp(ends[0]), np.ptp(ends[1])))
    return found


def test_bands_between_rounds_are_as_high_as_clients_are_many(runs: SmallRuns) -> None:
    ax = figures.flows(runs.sparse)
    clients = table(runs.sparse, "clients").pivot(index="client", columns="round", values="cluster")
    expected = [n for a, b in ((2, 4), (4, 5)) for n in clients.groupby([a, b], dropna=False).size().tolist()]
    np.testing.assert_allclose(sorted(left for left, _ in bands(ax)), sorted(expected))
    np.testing.assert_allclose(*np.array(bands(ax)).T)


def test_rounds_that_the_tables_do_not_have_cannot_be_joined(runs: SmallRuns) -> None:
    with pytest.raises(
        InputError, match=r"rounds=\[2, 3\]: the tables have every client only in the rounds \[2, 4, 5\]"
    ):
        figures.flows(runs.sparse, [2, 3])


def test_planted_against_found_is_the_contingency_table_in_bands(runs: SmallRuns) -> None:
    ax = figures.against_truth(runs.fedac)
    counts = views.contingency(runs.fedac).to_numpy()
    np.testing.assert_allclose(sorted(left for left, _ in bands(ax)), sorted(counts[counts > 0]))


def test_a_path_goes_through_each_clients_clusters(runs: SmallRuns) -> None:
    ax = figures.paths(runs.ifca[0])
    where = table(runs.ifca[0], "clients").pivot(index="client", columns="round", values="cluster").to_numpy()
    rows = np.searchsorted(np.unique(where), where)
    drawn = np.array([segment[:, 1] for segment in ax.collections[0].get_segments()])
    np.testing.assert_array_equal(np.round(drawn), rows)


# -- matrices and samples -------------------------------------------------------------------------------------------


def test_the_heat_map_is_the_reported_matrix(runs: SmallRuns) -> None:
    ax = figures.similarity(runs.fedac)
    reported = np.array(json.loads(table(runs.fedac, "rounds")["extras"].iloc[-1])["similarity"])
    order = [int(text.get_text()) for text in ax.get_xticklabels()]
    np.testing.assert_array_equal(image(ax), reported[np.ix_(order, order)])
    last = table(runs.fedac, "clients").query("round == 3").set_index("client").loc[order]
    left, top = (np.ma.getdata(strip.get_images()[0].get_array()).ravel() for strip in ax.child_axes)
    assert left.tolist() == last["cluster"].tolist()
    assert top.tolist() == last["true_cluster"].tolist()


def test_one_cluster_can_be_looked_at_alone(runs: SmallRuns) -> None:
    last = table(runs.fedac, "clients").query("round == 3")
    cluster = int(last["cluster"].iloc[0])
    assert image(figures.similarity(runs.fedac, cluster=cluster)).shape == ((last["cluster"] == cluster).sum(),) * 2


def test_heat_maps_of_distances_are_darkest_at_zero(runs: SmallRuns) -> None:
    drawn = figures.similarity(runs.fedtsdp).get_images()[0]
    assert sum(drawn.cmap(0.0)[:3]) < sum(drawn.cmap(1.0)[:3])
    drawn = figures.similarity(views.centre_similarity(runs.ifca[0])).get_images()[0]
    assert sum(drawn.cmap(0.0)[:3]) > sum(drawn.cmap(1.0)[:3])


def test_points_of_the_plane_are_the_models_that_clients_trained(runs: SmallRuns) -> None:
    ax = figures.plane(runs.fedac, 2, by="planted")
    expected = views.plane(runs.fedac, 2)
    drawn = np.concatenate([dots.get_offsets() for dots in ax.collections])
    np.testing.assert_allclose(drawn, expected.sort_values(["true_cluster", "client"])[["x", "y"]])


def test_label_heat_map_and_bars_have_the_samples_of_the_partition(runs: SmallRuns) -> None:
    counts = views.label_distribution(runs.fedac)
    sizes = table(runs.fedac, "clients").query("round == 3").set_index("client")
    assert sorted(image(figures.label_distribution(runs.fedac)).sum(axis=0)) == sorted(sizes["n_train"])
    ax = figures.label_bars(runs.fedac, "planted")
    widths = np.array([[bar.get_width() for bar in container] for container in ax.containers]).T
    for cluster in (0, 1):
        who = sizes.index[sizes["true_cluster"] == cluster]
        assert widths[cluster].tolist() == counts.loc[who].sum().tolist()


# -- what methods decide by -------------------------------------------------------------------------------------------


def test_granularity_is_drawn_with_its_mean_and_thresholds(runs: SmallRuns) -> None:
    ax = figures.granularity(runs.granular)
    means = table(runs.granular, "clusters").groupby("round")["granularity"].mean().dropna()
    np.testing.assert_allclose(line(ax, "mean"), means.reset_index().to_numpy())
    heights = [found.get_ydata()[0] for found in ax.get_lines() if len(set(found.get_ydata())) == 1]
    assert {0.25, 0.8} <= set(heights)


def test_granularity_by_number_is_the_mean_over_clusters(runs: SmallRuns) -> None:
    ax = figures.granularity_by_number([runs.fixed])
    last = table(runs.fixed, "clusters").query("round == 3")["granularity"]
    np.testing.assert_allclose(ax.containers[0].lines[0].get_xydata(), [[3, last.mean()]])


def test_tuning_draws_the_number_of_clusters_and_granularity_on_the_right(runs: SmallRuns) -> None:
    ax = figures.tuning([runs.granular])
    extras = [json.loads(text) for text in table(runs.granular, "rounds")["extras"]]
    np.testing.assert_array_equal(line(ax, "fedac")[:, 1], [e["clusters_after_tuning"] for e in extras])
    right = next(other for other in ax.figure.axes if other is not ax)
    means = table(runs.granular, "clusters").groupby("round")["granularity"].mean()
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), means)


def test_hopkins_is_drawn_against_accuracy(runs: SmallRuns) -> None:
    ax = figures.hopkins(runs.fedtsdp)
    rounds = table(runs.fedtsdp, "rounds")
    extras = [json.loads(text) for text in rounds["extras"]]
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), rounds["accuracy"])
    right = next(other for other in ax.figure.axes if other is not ax)
    dots = np.concatenate([found.get_offsets() for found in right.collections])
    expected = [[number, e["hopkins"]] for number, e in enumerate(extras, start=1)]
    np.testing.assert_allclose(dots[np.argsort(dots[:, 0])], expected)
    assert set(right.get_lines()[0].get_ydata()) == {0.3}
    shrunk = [found.get_xdata()[0] for found in ax.get_lines()[1:]]
    layers = [e["shared_layers"] for e in extras]
    assert shrunk == [number for number in (2, 3) if layers[number - 1] < layers[number - 2]]


# -- costs --------------------------------------------------------------------------------------------------------


def test_cost_is_accuracy_against_megabytes_so_far(runs: SmallRuns) -> None:
    rounds = table(runs.sparse, "rounds")
    found = line(figures.cost([runs.sparse]), "ifca")
    total = (rounds["bytes_up"] + rounds["bytes_down"]).cumsum()[rounds["accuracy"].notna()]
    np.testing.assert_allclose(found, np.column_stack([total / 1e6, rounds["accuracy"].dropna()]))


def test_time_to_target_is_a_dot_per_run_that_reaches_it(runs: SmallRuns) -> None:
    accuracy = [table(run, "rounds")["accuracy"].to_numpy() for run in runs.fedavg]
    target = max(values.max() for values in accuracy)
    ax = figures.time_to_target(runs.fedavg, target)
    expected = [int(np.argmax(values >= target)) + 1 for values in accuracy if (values >= target).any()]
    np.testing.assert_array_equal(ax.collections[0].get_offsets()[:, 0], expected)
    assert [text.get_text() for text in ax.texts] == [f"{len(expected)} of 2 reach it"]


def test_recoveries_are_marked_at_their_rounds(tmp_path: Path) -> None:
    ax = figures.recoveries(with_recoveries(tmp_path))
    assert set(ax.get_lines()[-1].get_xdata()) == {2.0}
    assert [text.get_text() for text in ax.texts] == ["2x"]


# -- what all figures share -------------------------------------------------------------------------------------------


def every_figure(runs: SmallRuns) -> dict[str, Callable[[Axes | None], Axes]]:
    some = [*runs.fedavg, *runs.ifca]
    return {
        "curves": lambda ax: figures.curves(some, ax=ax),
        "final": lambda ax: figures.final(some, ax=ax),
        "addon_effect": lambda ax: figures.addon_effect(some, ax=ax),
        "paired_differences": lambda ax: figures.paired_differences(some, "fedavg", ax=ax),
        "sensitivity": lambda ax: figures.sensitivity(runs.ifca, "method.clusters", ax=ax),
        "client_distribution": lambda ax: figures.client_distribution(some, ax=ax),
        "worst_clients": lambda ax: figures.worst_clients(some, ax=ax),
        "cluster_sizes": lambda ax: figures.cluster_sizes(runs.fedac, ax=ax),
        "cluster_numbers": lambda ax: figures.cluster_numbers([runs.fedac], ax=ax),
        "agreement": lambda ax: figures.agreement(runs.fedac, ax=ax),
        "moves": lambda ax: figures.moves(runs.fedac, ax=ax),
        "flows": lambda ax: figures.flows(runs.fedac, ax=ax),
        "against_truth": lambda ax: figures.against_truth(runs.fedac, ax=ax),
        "paths": lambda ax: figures.paths(runs.fedac, ax=ax),
        "contingency": lambda ax: figures.contingency(runs.fedac, ax=ax),
        "similarity": lambda ax: figures.similarity(runs.fedac, ax=ax),
        "plane": lambda ax: figures.plane(runs.fedac, ax=ax),
        "label_distribution": lambda ax: figures.label_distribution(runs.fedac, ax=ax),
        "label_bars": lambda ax: figures.label_bars(runs.fedac, ax=ax),
        "granularity": lambda ax: figures.granularity(runs.granular, ax=ax),
        "granularity_by_number": lambda ax: figures.granularity_by_number([runs.fixed], ax=ax),
        "tuning": lambda ax: figures.tuning([runs.granular], ax=ax),
        "hopkins": lambda ax: figures.hopkins(runs.fedtsdp, ax=ax),
        "cost": lambda ax: figures.cost(some, ax=ax),
        "time_to_target": lambda ax: figures.time_to_target(some, 0.2, ax=ax),
    }


def test_every_figure_draws_into_the_axes_that_it_is_given(runs: SmallRuns) -> None:
    drawn = every_figure(runs)
    assert set(drawn) | {"PALETTE", "colour", "paper_style", "recoveries"} == set(figures.__all__)
    with figures.paper_style():
        for name, draw in drawn.items():
            figure, ax = plt.subplots()
            assert draw(ax) is ax, name
            assert ax.has_data(), name
            plt.close(figure)


def test_a_pdf_has_its_fonts_embedded(runs: SmallRuns, tmp_path: Path) -> None:
    with figures.paper_style():
        figures.curves(runs.fedavg).figure.savefig(tmp_path / "curves.pdf")
    written = (tmp_path / "curves.pdf").read_bytes()
    assert b"/FontFile2" in written  # TrueType
    assert b"/Type3" not in written


def test_without_axes_each_call_makes_a_figure_of_column_width(runs: SmallRuns) -> None:
    with figures.paper_style():
        one, two = figures.curves(runs.fedavg), figures.curves(runs.fedavg)
    assert one.figure is not two.figure
    assert one.figure.get_size_inches()[0] == 3.3
    assert one.xaxis.label.get_size() == 8


def test_the_preset_leaves_no_trace(runs: SmallRuns) -> None:
    before = dict(mpl.rcParams)
    with figures.paper_style("page"):
        assert mpl.rcParams["figure.figsize"][0] == 6.9
    assert dict(mpl.rcParams) == before


def test_an_unknown_width_is_refused() -> None:
    refused = pytest.raises(InputError, match="width='colum' is not allowed; allowed: column, page, or a number")
    with refused, figures.paper_style("colum"):
        pass


@pytest.mark.parametrize(
    "draw",
    [
        figures.agreement,
        figures.against_truth,
        figures.cluster_sizes,
        figures.contingency,
        figures.flows,
        figures.granularity,
        figures.hopkins,
        figures.moves,
        figures.paths,
        figures.plane,
        figures.recoveries,
        figures.similarity,
    ],
)
def test_a_run_without_what_a_figure_shows_is_refused_and_no_figure_is_left(
    runs: SmallRuns, draw: Callable[[Run], Axes]
) -> None:
    with pytest.raises(InputError, match="there is nothing to draw"):
        draw(runs.local)
    assert not plt.get_fignums()


def test_a_run_that_has_not_begun_is_refused(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match="there is nothing to draw: no run has been evaluated yet"):
        figures.curves([runs.unbegun])


def test_twenty_four_clusters_have_colours_of_their_own() -> None:
    shades = [to_hex(figures.colour(number)) for number in range(24)]
    assert len(set(shades)) == 24
    assert tuple(shades[:8]) == figures.PALETTE


def test_the_palette_is_told_apart_by_readers_who_do_not_see_red_or_green() -> None:
    # Machado et al. (2009), full deuteranopia and protanopia, on linear RGB.
    deutan = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]])
    protan = np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    )
    shades = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in figures.PALETTE])
    linear = np.where(shades <= 0.04045, shades / 12.92, ((shades + 0.055) / 1.055) ** 2.4)
    for seen in (deutan, protan):
        points = _lab(np.clip(linear @ seen.T, 0, 1))
        apart = np.linalg.norm(points[:, None] - points, axis=2)
        assert apart[~np.eye(len(points), dtype=bool)].min() > 15  # 2.3 is just noticeable


def _lab(linear: np.ndarray) -> np.ndarray:
    """Return CIE L*a*b* coordinates of linear RGB, under daylight (D65)."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    t = linear @ to_xyz.T / [0.9505, 1.0, 1.089]
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
