"""The report without a browser: its numbers are those of the tables, its text is escaped, its size is limited."""

import doctest
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import report_runs
from report_runs import figures, small_run, trace, written_run

import rayfl
from rayfl.analysis.report import charts, sampling, text, wording
from rayfl.analysis.report.sampling import stratified
from rayfl.analysis.report.text import script_json
from rayfl.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    report_runs.study(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return rayfl.report(folder, folder / "report.html").read_text()


def _rounds(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / name / "rounds").set_index("round")


def _clients(folder: Path, name: str) -> pd.DataFrame:
    frame = pd.read_parquet(folder / name / "clients")
    return frame[frame["round"] == frame["round"].max()].set_index("client")


def _number(runs: Path, page: str, name: str) -> str:
    """Return the number that a run has on the page: runs are in the order of their folders."""
    return str(sorted(p.name for p in runs.iterdir() if p.is_dir()).index(name))


def test_curves_are_the_means_over_seeds_in_the_tables(folder: Path, page: str) -> None:
    both = pd.concat([_rounds(folder, "fedac0")["accuracy"], _rounds(folder, "fedac1")["accuracy"]], axis=1)
    shown = trace(figures(page)["curves-0"], "fedac")
    assert shown["x"] == list(both.index)
    np.testing.assert_allclose(shown["y"], both.mean(axis=1), rtol=6e-5)
    spread = [point[0] for point in shown["customdata"]]
    np.testing.assert_allclose(spread, both.std(axis=1, ddof=1), rtol=6e-5)


def test_the_band_is_one_standard_deviation(folder: Path, page: str) -> None:
    both = pd.concat([_rounds(folder, "fedac0")["accuracy"], _rounds(folder, "fedac1")["accuracy"]], axis=1)
    band = next(t for t in figures(page)["curves-0"]["data"] if t["name"] == "fedac" and t.get("fill"))
    high, low = band["y"][: len(both)], band["y"][len(both) :][::-1]
    np.testing.assert_allclose(high, both.mean(axis=1) + both.std(axis=1), rtol=6e-5)
    np.testing.assert_allclose(low, both.mean(axis=1) - both.std(axis=1), rtol=6e-5)


def test_paired_differences_are_between_runs_of_one_seed(folder: Path, page: str) -> None:
    wanted = [
        _rounds(folder, f"fedac{seed}")["accuracy"].iloc[-1] - _rounds(folder, f"fedavg{seed}")["accuracy"].iloc[-1]
        for seed in (0, 1)
    ]
    dots = figures(page)["paired"]["data"][0]
    assert dots["name"] == "fedac"
    np.testing.assert_allclose(dots["x"], wanted, rtol=6e-5, atol=1e-9)


def test_the_distribution_function_holds_every_client(folder: Path, page: str) -> None:
    wanted = np.sort(np.concatenate([_clients(folder, f"fedac{seed}")["accuracy"] for seed in (0, 1)]))
    shown = trace(figures(page)["ecdf"], "fedac")
    np.testing.assert_allclose(shown["x"], wanted, rtol=6e-5)
    np.testing.assert_allclose(shown["y"], np.arange(1, len(wanted) + 1) / len(wanted), rtol=6e-5)


def test_cluster_sizes_and_the_contingency_table_count_the_clients(folder: Path, page: str) -> None:
    number = _number(folder, page, "fedac0")
    sizes = pd.read_parquet(folder / "fedac0" / "clusters").pivot(index="round", columns="cluster", values="size")
    for cluster, of in sizes.fillna(0).items():
        area = trace(figures(page)[f"sizes-{number}"], f"cluster {cluster}")
        assert area["y"] == of.tolist()
    last = _clients(folder, "fedac0")
    table = pd.crosstab(last["true_cluster"], last["cluster"])
    cells = figures(page)[f"contingency-{number}"]["data"][0]
    for row, planted in zip(cells["z"], cells["y"], strict=True):
        for size, found in zip(row, cells["x"], strict=True):
            assert size == table.loc[int(planted.split()[1]), int(found.split()[1])]


def test_the_strip_shows_each_client_in_its_cluster(folder: Path, page: str) -> None:
    strip = figures(page)[f"strip-{_number(folder, page, 'fedac0')}"]["data"][0]
    table = pd.read_parquet(folder / "fedac0" / "clients").set_index(["client", "round"])["cluster"]
    for name, row in zip(strip["y"], strip["z"], strict=True):
        client = int(name.split()[1])
        assert row == [table[client, int(number)] for number in strip["x"]]


def test_the_similarity_matrix_is_the_recorded_one_ordered_by_cluster(folder: Path, page: str) -> None:
    heat, found = figures(page)[f"similarity-{_number(folder, page, 'fedac0')}"]["data"][:2]
    matrix = np.array(rayfl.load(folder / "fedac0").extras["similarity"].iloc[-1])
    order = [int(name.split()[1]) for name in heat["y"]]
    np.testing.assert_allclose(heat["z"], matrix[np.ix_(order, order)], atol=6e-4)
    clusters = _clients(folder, "fedac0")["cluster"][order].tolist()
    assert clusters == sorted(clusters)
    assert [row[0] for row in found["z"]] == clusters


def test_label_shares_are_those_of_the_dealt_data(folder: Path, page: str) -> None:
    heat = figures(page)[f"labels-{_number(folder, page, 'fedac0')}"]["data"][0]
    table = pd.read_csv(_partition(folder))
    table = table[table["split"] == "train"]
    counts = pd.crosstab(table["client"], table["label"])
    shares = counts.div(counts.sum(axis=1), axis=0)
    for name, row in zip(heat["y"], heat["z"], strict=True):
        np.testing.assert_allclose(row, shares.loc[int(name.split()[1])], atol=6e-4)


def _partition(folder: Path) -> Path:
    """Write which client has which sample, with the command that shows a partition."""
    from rayfl.analysis.partition_table import write_partition
    from rayfl.data import make_partition
    from rayfl.data.sources import load_dataset

    config = rayfl.load(folder / "fedac0").config
    dataset = load_dataset(config.data, config.seed)
    return write_partition(make_partition(config.partition, dataset, config.seed), dataset, folder / "who.csv")


def test_cost_adds_up_bytes_and_seconds(folder: Path, page: str) -> None:
    rounds = _rounds(folder, "fedtsdp0")
    shown = trace(figures(page)["cost-bytes"], "fedtsdp public=0.1")
    np.testing.assert_allclose(shown["x"], (rounds["bytes_up"] + rounds["bytes_down"]).cumsum() / 1e6, rtol=6e-5)
    shown = trace(figures(page)["cost-seconds"], "fedtsdp public=0.1")
    np.testing.assert_allclose(shown["x"], rounds["seconds_total"].cumsum(), rtol=6e-5)


def test_hopkins_and_granularity_are_the_recorded_ones(folder: Path, page: str) -> None:
    shown = trace(figures(page)[f"hopkins-{_number(folder, page, 'fedtsdp0')}"], "Hopkins statistic")
    np.testing.assert_allclose(shown["y"], rayfl.load(folder / "fedtsdp0").extras["hopkins"], rtol=6e-5)
    chart = figures(page)[f"granularity-{_number(folder, page, 'fedac0')}"]
    table = pd.read_parquet(folder / "fedac0" / "clusters").dropna(subset=["granularity"])
    cluster = table["cluster"].iloc[0]
    wanted = table[table["cluster"] == cluster].sort_values("round")["granularity"]
    np.testing.assert_allclose(trace(chart, f"cluster {cluster}")["y"], wanted, rtol=6e-5)
    assert [shape["y0"] for shape in chart["layout"]["shapes"]] == [0.2, 0.8]


def test_the_first_sentence_names_the_best_method_and_the_number_of_seeds(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        written_run(tmp_path, f"a-worse{seed}", 6, 3, "fedavg", seed=seed, level=0.3)
        written_run(tmp_path, f"better{seed}", 6, 3, "fedac", seed=seed, level=0.5)
    text = rayfl.report(tmp_path, tmp_path / "r.html").read_text()
    answer = re.search(r'<p class="answer">(.*?)</p>', text)
    assert answer is not None
    assert answer[1].startswith("fedac")
    assert "3 seeds" in answer[1]
    assert "above fedavg" in answer[1]


def test_every_run_has_the_command_that_repeats_it(folder: Path, page: str) -> None:
    for name in ("fedac0", "fedavg1", "fedtsdp0"):
        assert f"rayfl run {folder}/{name}/config.yaml name={name}-again" in page


def test_the_command_on_the_page_repeats_the_run_to_the_same_bits(folder: Path, page: str, tmp_path: Path) -> None:
    line = next(line for line in page.splitlines() if "name=fedavg0-again" in line)
    words = line.removeprefix("<pre>").split()
    assert words[:2] == ["rayfl", "run"]
    from rayfl.config import load_config
    from rayfl.launch import simulate
    from rayfl.simulation.screen import Screen

    again = simulate(load_config(words[2], [words[3], f"output.dir={tmp_path}"]), Screen(quiet=True))
    assert again.rounds["accuracy"].tolist() == _rounds(folder, "fedavg0")["accuracy"].tolist()


def test_a_hostile_run_cannot_add_markup_to_the_page(tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    notes = {"recoveries": [nasty, '"><svg onload=alert(3)>'], "similarity": [[1.0]]}
    written_run(tmp_path, "a'b<i>\"&{{data}}", 5, 3, method=f"x:{nasty}", extras=notes)
    written_run(tmp_path, "b", 5, 3, method='x:<a href="javascript:alert(4)">click</a>{{library}}')
    page = rayfl.report(tmp_path, tmp_path / "r.html").read_text()
    plain = rayfl.report(_plain(tmp_path / "plain"), tmp_path / "p.html").read_text()
    assert _tags(page).keys() <= {*_tags(plain), "select", "option", "label"}
    assert _tags(page)["script"] == _tags(plain)["script"] == 3
    assert "onerror" not in _attributes(page)
    assert "onload" not in _attributes(page)
    names = [t["name"] for figure in figures(page).values() for t in figure["data"]]
    assert any("click" in name for name in names)
    assert not [name for name in names if "<" in name]


def _plain(folder: Path) -> Path:
    written_run(folder, "a", 5, 3, extras={"recoveries": ["a note"], "similarity": [[1.0]]})
    written_run(folder, "b", 5, 3, method="fedavg")
    return folder


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}


def _parsed(page: str) -> _Elements:
    elements = _Elements()
    elements.feed(page)
    return elements


def _tags(page: str) -> dict[str, int]:
    return _parsed(page).tags


def _attributes(page: str) -> set[str]:
    return _parsed(page).attributes


def test_a_hundred_thousand_clients_make_a_page_below_10_mb_that_says_what_was_sampled(tmp_path: Path) -> None:
    written_run(tmp_path, "many", 100_000, 3)
    file = rayfl.report(tmp_path / "many", tmp_path / "r.html")
    assert file.stat().st_size < 10_000_000
    page = file.read_text()
    assert "Shown are 200 of 100,000 clients" in page
    assert len(figures(page)["strip-0"]["data"][0]["y"]) == 200


def test_a_hundred_runs_make_a_page_below_10_mb_that_says_which_are_shown(tmp_path: Path) -> None:
    for number in range(100):
        written_run(tmp_path, f"run{number:03d}", 12, 4, seed=number // 5, **{"local.lr": 0.01 * (1 + number % 5)})
    file = rayfl.report(tmp_path, tmp_path / "r.html")
    assert file.stat().st_size < 10_000_000
    page = file.read_text()
    assert "Of 100 runs, the first seed of each configuration is here" in page
    assert len([name for name in figures(page) if name.startswith("strip-")]) == 5
    assert "sensitivity-local.lr" in figures(page)


def test_a_sample_has_every_group_in_proportion_and_is_the_same_each_time() -> None:
    groups = np.repeat([0, 1, 2], [9000, 900, 3])
    chosen = stratified(groups, 200)
    assert len(chosen) == 200
    sizes = np.bincount(groups[chosen])
    assert sizes[2] == 1
    assert abs(sizes[0] - 182) <= 2
    assert np.array_equal(chosen, stratified(groups, 200))
    assert len(stratified(np.arange(500), 200)) == 200


def test_runs_that_are_not_finished_or_not_begun_are_reported(tmp_path: Path) -> None:
    written_run(tmp_path, "half", 6, 2)
    config = tmp_path / "half" / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 2", "rounds: 9"))
    written_run(tmp_path, "none", 6, 1, method="fedavg")
    for table in ("rounds", "clients", "clusters"):  # as if it had been killed before its first round
        shutil.rmtree(tmp_path / "none" / table)
    page = rayfl.report(tmp_path, tmp_path / "r.html").read_text()
    assert "2 of 2 runs are not finished" in page
    assert "2 of 9" in page
    assert "0 of 1" in page


def test_a_regression_is_reported_by_its_own_metric(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    runs = [
        rayfl.run(
            data=(x, (x @ [1.0, 2.0, 3.0]).astype(np.float32)),
            task="regression",
            rounds=2,
            partition={"kind": "iid", "clients": 4},
            model={"name": "mlp"},
            federation="serial",
            method={"name": method},
            output={"dir": str(tmp_path)},
            quiet=True,
        )
        for method in ("fedavg", "local")
    ]
    page = rayfl.report(runs, tmp_path / "r.html").read_text()
    shown = trace(figures(page)["curves-0"], "local")
    np.testing.assert_allclose(shown["y"], runs[1].rounds["mse"], rtol=6e-5)
    assert "has the lowest MSE" in page


def test_bad_input_is_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.html"):
        rayfl.report(folder, tmp_path / "r.pdf")
    with pytest.raises(InputError, match="there is no folder"):
        rayfl.report(folder, tmp_path / "no" / "r.html")
    with pytest.raises(InputError, match=r"metric='acuracy'.*did you mean 'accuracy'"):
        rayfl.report(folder, tmp_path / "r.html", metric="acuracy")
    with pytest.raises(InputError, match=r"target=80: accuracy is at most 1; for 80 % write 0\.8$"):
        rayfl.report(folder, tmp_path / "r.html", target=80)
    with pytest.raises(InputError, match="baseline='ifca': no run is called that"):
        rayfl.report(folder, tmp_path / "r.html", baseline="ifca")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no run: give run folders"):
        rayfl.report(tmp_path / "empty", tmp_path / "r.html")
    written_run(tmp_path, "damaged", 4, 2)
    next((tmp_path / "damaged" / "rounds").iterdir()).write_bytes(b"PAR1 no more")
    with pytest.raises(InputError, match=r"rounds/part-00000\.parquet is damaged .* restore it"):
        rayfl.report(tmp_path / "damaged", tmp_path / "r.html")
    assert not list(tmp_path.glob("*.html"))


def test_a_report_runs_no_code_that_a_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("import pathlib; pathlib.Path(__file__).with_name('was_here').touch()")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"task": "evil:Task", "model.name": "evil:Net", "data.source": "evil:load"}
    written_run(tmp_path / "runs", "a", 4, 2, method="evil:Method", **config)
    rayfl.report(tmp_path / "runs", tmp_path / "r.html")
    assert not (tmp_path / "was_here").exists()


def test_the_page_of_the_same_runs_is_the_same(folder: Path, page: str) -> None:
    assert rayfl.report(folder, folder / "again.html").read_text() == page


def test_the_command_prints_the_page_it_wrote(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rayfl.cli", "report", str(folder / "fedavg0"), "-o", str(tmp_path / "one.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == str(tmp_path / "one.html")
    assert "One run: fedavg, seed 0." in (tmp_path / "one.html").read_text()


def test_a_page_holds_one_copy_of_plotly_and_no_address_to_fetch_from(page: str) -> None:
    assert page.count("plotly.js v") == 1
    assert not re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:)', page)
    assert "default-src 'none'" in page


def test_the_table_is_that_of_rayfl_compare(folder: Path, page: str) -> None:
    wanted = rayfl.compare(folder).set_index("method").loc["fedac"]
    row = re.search(r"<tr><td><span[^>]*></span>fedac</td>(<td.*?)</tr>", page[page.index('id="table-results-') :])
    assert row is not None
    cells = re.sub(r"<[^>]*>", "|", row[1])
    assert f"{wanted['mean']:.4f} ± {wanted['std']:.4f}" in cells
    assert f"{abs(wanted['difference']):.4f}" in cells
    assert f"{wanted['worst10']:.3f}" in cells


def test_runs_that_did_not_begin_alike_are_not_paired(tmp_path: Path) -> None:
    for seed in (0, 1):
        small_run(tmp_path, f"name=fedavg{seed}", f"seed={seed}", "method.name=fedavg", "rounds=2")
    small_run(tmp_path, "name=local0", "seed=0", "method.name=local", "rounds=2")
    small_run(tmp_path, "name=local1", "seed=1", "method.name=local", "rounds=2", "partition.seed=5")
    dots = figures(rayfl.report(tmp_path, tmp_path / "r.html").read_text())["paired"]["data"][0]
    assert [point[0] for point in dots["customdata"]] == [0]


def test_data_in_the_page_cannot_close_its_script() -> None:
    value = {"name": "</script><!-- \u2028 & ]]>", "numbers": np.array([1 / 3, np.nan])}
    written = script_json(value)
    assert not set("<>&\u2028") & set(written)
    assert json.loads(written) == {"name": value["name"], "numbers": [0.33333, None]}


@pytest.mark.parametrize("module", [charts, sampling, text, wording])
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
