"""experiments/results.py: what is kept of sweeps, and pages that are nothing but a function of it."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written_runs import write_run

from rayfl.config import Config, dotted_keys, load_config
from rayfl.errors import InputError
from rayfl.results import Run, load

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments"))

import results
from pages.choice import best_of, choice_lines, choices
from pages.claims import Finding, check_claims, findings, mark_of, strength_of, where_of
from pages.figures import draw, drawn
from pages.store import Sweep, collect, collected, unpacked
from pages.tables import beside, files_of, results_page, tables

SMALL = Sweep("sr_fca/table_1", "small")
TUNED = Sweep("fedac/figure_4", "small")
small_configs = cache(SMALL.configs)


def write_planned(folder: Path, config: Config, values: list[float], name: str | None = None, **options: Any) -> Run:
    """Write a run with the config of a planned one."""
    left = ("name", "seed", "rounds", "method.name", "output.dir")
    keys = [f"{k}={json.dumps(v)}" for k, v in dotted_keys(config.to_tree()).items() if k not in left]
    path = folder / (name or str(config.name))
    return write_run(path, config.method.name, config.seed, values, overrides=keys, **options)


def written(
    folder: Path, method: str = "sr_fca", values: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8), **options: Any
) -> Run:
    """Write the first planned run of a method on inverted MNIST."""
    wanted = [c for c in small_configs() if c.method.name == method and c.seed == options.get("seed", 0)]
    options.pop("seed", None)
    return write_planned(folder, wanted[0], list(values), **options)


# -- what is kept ------------------------------------------------------------------------------------------------


def test_kept_runs_come_back_as_they_were(tmp_path: Path) -> None:
    clients = [[value, value + 0.1] for value in (0.5, 0.6, 0.7, 0.8)]
    before = written(tmp_path / "runs", clients=clients, extras=[{"stage": "merge", "refinement": n} for n in range(4)])
    collect(SMALL, tmp_path / "kept", str(tmp_path / "runs"))
    assert collected(tmp_path / "kept") == [SMALL]
    with unpacked(SMALL, tmp_path / "kept") as (run,):
        # Only the place is another: the sweep's folder, wherever this machine had the run.
        place = {
            "name": Path(before.path).name,
            "output": before.config.output.model_copy(update={"dir": SMALL.folder}),
        }
        assert run.config == before.config.model_copy(update=place)
        assert run.fingerprints == before.fingerprints is not None
        pd.testing.assert_frame_equal(run.rounds, before.rounds)
        pd.testing.assert_frame_equal(run.extras, before.extras)
        assert run.clients["round"].unique().tolist() == [2, 3, 4]  # the last three tests
        last = before.clients[before.clients["round"] > 1].reset_index(drop=True)
        pd.testing.assert_frame_equal(run.clients, last)


def test_runs_that_were_kept_before_stay_when_others_are_collected(tmp_path: Path) -> None:
    written(tmp_path / "here")
    written(tmp_path / "here", "ifca")
    collect(SMALL, tmp_path / "kept", str(tmp_path / "here"))
    written(tmp_path / "there", "fedavg")
    written(tmp_path / "there", values=(0.1, 0.2, 0.3, 0.9))  # the same run as the first, carried out again
    collect(SMALL, tmp_path / "kept", str(tmp_path / "there"))
    with unpacked(SMALL, tmp_path / "kept") as runs:
        kept = {run.config.method.name: run.rounds["accuracy"].iloc[-1] for run in runs}
    assert kept == pytest.approx({"sr_fca": 0.9, "fedavg": 0.8, "ifca": 0.8})


def test_other_runs_of_the_folder_are_left_out_and_other_seeds_are_kept(tmp_path: Path) -> None:
    first = written(tmp_path / "runs")
    name = Path(first.path).name
    config = load(first.path).config
    more = write_planned(
        tmp_path / "runs", config.model_copy(update={"seed": 77}), [0.1], name.replace("seed0", "seed77")
    )
    write_run(tmp_path / "runs" / "another", "fedavg")
    write_run(tmp_path / "runs" / name.replace("seed0", "seed5"), "sr_fca", 5, [0.1], rounds=9)  # not finished
    collect(SMALL, tmp_path / "kept", str(tmp_path / "runs"))
    with unpacked(SMALL, tmp_path / "kept") as runs:
        assert {Path(run.path).name for run in runs} == {name, Path(more.path).name}


def test_nothing_to_keep_and_a_wrong_file_are_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "another", "fedavg")
    with pytest.raises(InputError, match="has no finished run of sr_fca/table_1-small: carry it out with rayfl sweep"):
        collect(SMALL, tmp_path / "kept", str(tmp_path / "runs"))
    with pytest.raises(InputError, match="is not a sweep file below"):
        Sweep.of(tmp_path / "mine.yaml")


# -- the tables --------------------------------------------------------------------------------------------------


def test_every_table_has_its_files() -> None:
    for table in tables():
        for name in files_of(table):
            assert (results.HERE / f"{name}.yaml").exists(), name


def test_a_file_that_is_nothing_but_a_base_has_the_runs_of_that() -> None:
    assert files_of("cam 1") == files_of("thesis 7.1") == ["thesis/table_7_1"]
    assert files_of("sr_fca 4") == ["sr_fca/table_1", "sr_fca/table_3"]
    assert Sweep.of(results.HERE / "cam" / "table_2.yaml", "small") == Sweep("thesis/table_7_3", "small")


def test_a_page_has_ours_theirs_and_the_difference(tmp_path: Path) -> None:
    written(tmp_path / "runs", values=(0.9,), summary={"misclustering": 0.0})
    collect(SMALL, tmp_path / "kept", str(tmp_path / "runs"))
    page = results_page(tmp_path / "kept", {"sr_fca 1 small": "They differ."}, [])
    assert "## SR-FCA, Table 1 (`small`)" in page
    line = "| SR-FCA | mnist | inverted (2 clusters) m=100 n=600 |  | accuracy | 90.00 | 1 | 92.03 ± 0.30 | -2.03 |"
    assert line in page.splitlines()
    assert "They differ." in page
    assert "## SR-FCA, Table 2 (`small`)" in page  # the same runs
    assert "- the paper has 100 clients (inverted (2 clusters) m=100 n=600), the runs have 40" in page.splitlines()
    assert "| FedAC, Table 1 | `rayfl sweep experiments/fedac/table_1.yaml` |" in page  # not run yet


def test_a_number_of_clusters_is_chosen_by_validation_never_by_test(tmp_path: Path) -> None:
    sweep = Sweep("fedac/table_1", "small")
    for config in sweep.configs():
        k = config.method.options.get("clusters")
        if config.method.name == "ifca" and config.seed == 0 and config.partition.kind == "dirichlet":
            test, validation = (0.9, 0.5) if k == 5 else (0.6, 0.7)
            write_planned(tmp_path / "runs", config, [test], extras=[{"validation_accuracy": validation}])
    collect(sweep, tmp_path / "kept", str(tmp_path / "runs"))
    with unpacked(sweep, tmp_path / "kept") as runs:
        assert len(runs) == 2
        found = beside(runs, "fedac 1", "accuracy")
    assert found is not None
    (row,) = found[0].to_dict("records")
    assert row["mean"] == pytest.approx(60) and row["chosen"] == "ifca clusters=10"


# -- the claims --------------------------------------------------------------------------------------------------


def verdicts(*words: str, seeds: int = 6, reduced: bool = False) -> list[Finding]:
    return [Finding("here", word, "", seeds, reduced) for word in words]


MARKS = [
    ((), "not run yet"),
    (("for",), "confirmed"),
    (("for", "for", "open"), "confirmed"),
    (("for", "open"), "not confirmed"),
    (("for", "for", "for", "against"), "not confirmed"),
    (("open",), "not confirmed"),
    (("against", "against", "open"), "refuted"),
    (("against", "open"), "not confirmed"),
]


@pytest.mark.parametrize(("words", "mark"), MARKS)
def test_a_mark_follows_from_the_findings(words: tuple[str, ...], mark: str) -> None:
    assert mark_of(verdicts(*words)) == mark


def test_the_strength_says_what_is_weak() -> None:
    assert strength_of(verdicts("for")) == "six seeds or more, full settings"
    assert strength_of(verdicts("for", "open", seeds=5)) == "weak: 2 of 2 findings with fewer than six seeds"
    assert strength_of(verdicts("for", reduced=True)) == "weak: 1 of 1 in a reduced setting"


BETTER = {
    "from": "sr_fca/table_1",
    "about": "SR-FCA over IFCA",
    "better": {"method.name": "sr_fca"},
    "than": {"method.name": "ifca"},
}


@pytest.mark.parametrize(
    ("gains", "verdict"), [((1, 2, 3), "for"), ((-1, -2, -3), "against"), ((-2, 2, 1), "open"), ((5,), "open")]
)
def test_a_paired_difference_is_for_a_claim_if_its_interval_is(
    tmp_path: Path, gains: tuple[int, ...], verdict: str
) -> None:
    for seed, gain in enumerate(gains):
        written(tmp_path / "runs", "sr_fca", (0.7 + gain / 100,), seed=seed)
        written(tmp_path / "runs", "ifca", (0.7,), seed=seed)
    collect(SMALL, tmp_path / "kept", str(tmp_path / "runs"))
    (found,) = findings(BETTER, [SMALL], tmp_path / "kept")
    assert (found.verdict, found.seeds, found.reduced) == (verdict, len(gains), True)
    assert f"{np.mean(gains):+.2f}" in found.text


@pytest.mark.parametrize(
    ("errors", "verdict"), [((0.0, 0.0), "for"), ((0.0, 0.1), "open"), ((0.2, 0.1), "against"), ((0.0,), "open")]
)
def test_a_value_is_for_a_claim_if_every_run_is_within_its_bounds(
    tmp_path: Path, errors: tuple[float, ...], verdict: str
) -> None:
    for seed, error in enumerate(errors):
        written(tmp_path / "runs", values=(0.7,), seed=seed, summary={"misclustering": error})
    collect(SMALL, tmp_path / "kept", str(tmp_path / "runs"))
    pick = {"pick": {"method.name": "sr_fca"}, "metric": "misclustering", "within": [0.0, 0.0]}
    (found,) = findings({"from": SMALL.name, "about": "it", **pick}, [SMALL], tmp_path / "kept")
    assert found.verdict == verdict


def test_several_runs_of_a_seed_are_one_seed(tmp_path: Path) -> None:
    starts = [run for run in TUNED.configs() if run.seed == 0 and run.method.options["granularity_norm"] == "l2"]
    starts = [run for run in starts if run.method.options["tuning"] == "granularity"][:3]
    for config in starts:
        keys = [f"method.{key}={value}" for key, value in config.method.options.items() if key != "clusters"]
        clusters = config.method.options["clusters"]
        write_run(
            tmp_path / "runs" / str(config.name),
            "fedac",
            overrides=[*keys, f"method.clusters={clusters}"],
            summary={"clusters": 9},
        )
    collect(TUNED, tmp_path / "kept", str(tmp_path / "runs"))
    pick = {"pick": {"method.name": "fedac"}, "metric": "clusters", "within": [8, 12]}
    (found,) = findings({"from": TUNED.name, "about": "it", **pick}, [TUNED], tmp_path / "kept")
    assert (found.verdict, found.seeds) == ("for", 1)
    assert "clusters 9, 9, 9 " in found.text


def test_two_degrees_of_the_same_skew_are_two_settings_and_not_more_seeds() -> None:
    def where(*words: str) -> str:
        return where_of(load_config(None, words))

    one, other = (where("partition.kind=dirichlet", f"partition.alpha={alpha}") for alpha in (0.5, 0.2))
    assert one == "digits, dirichlet 0.5, digits_cnn" != other
    skewed = ["partition.kind=cluster_dirichlet", "partition.alpha_cluster=0.1", "partition.alpha_client=10"]
    assert where(*skewed).startswith("digits, cluster_dirichlet 0.1 10, ")
    assert where("partition.kind=iid").startswith("digits, iid, ")


def test_a_typed_mark_and_an_incomplete_claim_are_refused() -> None:
    claim = {"claim": "It works", "paper": "x", "evidence": [BETTER]}
    check_claims([claim], [BETTER["from"]])
    with pytest.raises(InputError, match="a mark is computed, remove it"):
        check_claims([{**claim, "mark": "confirmed"}], [BETTER["from"]])
    with pytest.raises(InputError, match="has no 'than'"):
        check_claims([{**claim, "evidence": [{k: v for k, v in BETTER.items() if k != "than"}]}], [BETTER["from"]])
    with pytest.raises(InputError, match="is not a sweep file"):
        check_claims([claim], ["another"])


# -- the pages of the repository ---------------------------------------------------------------------------------


def test_the_pages_in_the_repository_are_what_the_parquet_files_give() -> None:
    assert results.differing() == []


def test_the_kept_figures_can_be_drawn_again(tmp_path: Path) -> None:
    for figure, sweep in drawn(collected(results.RESULTS)):
        name = draw(figure, sweep, results.RESULTS, tmp_path)
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_a_number_that_was_changed_is_noticed(tmp_path: Path) -> None:
    written(tmp_path / "runs", values=(0.9,), summary={"misclustering": 0.0})
    kept, target = tmp_path / "kept", tmp_path / "pages"
    collect(SMALL, kept, str(tmp_path / "runs"))
    target.mkdir()
    results.write(kept, target)
    assert results.differing(kept, target) == []
    page = target / "RESULTS.md"
    honest = page.read_text()
    page.write_text(honest.replace("90.00", "95.00"))
    (fault,) = results.differing(kept, target)
    assert fault.startswith("RESULTS.md is not what the Parquet files give, from line ")
    page.write_text(honest)
    file = kept / SMALL.label / "rounds.parquet"
    table = pq.read_table(file)
    column = table.schema.get_field_index("accuracy")
    pq.write_table(table.set_column(column, "accuracy", pa.array([0.95])), file)
    assert any(fault.startswith("RESULTS.md") for fault in results.differing(kept, target))


# -- which method ------------------------------------------------------------------------------------------------


def test_methods_are_compared_by_accuracy_worst_clients_traffic_and_time(tmp_path: Path) -> None:
    def run(method: str, seed: int, value: float, seconds: float, worst: float) -> Run:
        spent = {"macro_f1": value / 2, "seconds_train": seconds, "seconds_server": 1.0, "clusters": 2}
        clients = [[worst, *[value] * 19]] * 2
        path = tmp_path / f"{method}-{seed}"
        return write_run(path, method, seed, [value, value], clients=clients, summary=spent)

    runs = [run("fedavg", 0, 0.5, 1.0, 0.25), run("fedavg", 1, 0.75, 1.0, 0.25)]
    runs += [run("local", 0, 0.62, 0.5, 0.5), run("ditto", 0, 0.375, 0.1, 0.0)]
    frame = choices(runs)
    assert frame["method"].tolist() == ["fedavg", "local", "ditto"]
    first = frame.iloc[0]
    assert (first["seeds"], first["accuracy"], first["macro_f1"]) == (2, 62.5, 31.25)
    assert first["accuracy_std"] == pytest.approx(25 / 2**0.5)
    assert first["worst"] == pytest.approx((37.5 + 50.0) / 2)  # means of the two worst of twenty, in each run
    assert first["megabytes"] == pytest.approx(2 * 3 / 20) and first["seconds"] == 4.0
    (line,) = best_of(frame)
    assert "Highest accuracy: fedavg (62.5)" in line and "worst tenth: local (56.0)" in line
    assert "Of the 2 methods within 1 point" in line and "least time: local (3.0) s" in line


def test_settings_that_were_not_run_name_their_command(tmp_path: Path) -> None:
    text = "\n".join(choice_lines(tmp_path))
    assert "Not run yet: `rayfl sweep experiments/comparison/shakespeare.yaml`." in text
