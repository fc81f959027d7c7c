"""The sweep files of the papers' tables and figures: every run can start, and no printed row is forgotten."""

from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from rayfl.analysis.papers import printed, table_names, would_match
from rayfl.analysis.table_labels import table_labels
from rayfl.config import Config, dotted_keys, load_config
from rayfl.config.layers import _Reader
from rayfl.models.zoo import ZOO
from rayfl.sweeping.plan import planned_sweep

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
#: Only for others to build on.
PARTS = {"fedac/common", "fedac/cifar10_dirichlet", "sr_fca/common", "fedtsdp/common", "fedtsdp/methods"}
PARTS |= {"comparison/methods"}
PAPERS = ("thesis", "cam", "fedac", "sr_fca", "fedtsdp", "comparison")
FILES = [
    name
    for paper in PAPERS
    for path in sorted((EXPERIMENTS / paper).glob("*.yaml"))
    if (name := f"{paper}/{path.stem}") not in PARTS
]
#: One run each, for `rayfl run`, or of an older experiment.
SINGLE = {"fedac/one_run", "fedtsdp/digits", "comparison/fedper_cifar10_dirichlet"}
#: Files of a table besides its own.
MORE = {"sr_fca 4": ["sr_fca/table_4_real"]}
#: Printed tables without a sweep file, and why.
NO_RUNS = {"fedtsdp 2": "it describes the data sets"}
#: Printed rows that no run can stand beside, and why.
NO_ROW = {
    (
        "sr_fca 4",
        "m=50 real",
        "SR-FCA after 2nd REFINE",
    ): "on real data there is one REFINE (section 5): the value of the first is printed again",
}
#: K in the papers' tables where they chose it and do not print it. Ours is chosen by validation among several.
CHOSEN = ("optimal", "tuned in")


def path_of(name: str) -> Path:
    return EXPERIMENTS / f"{name}.yaml"


@cache
def configs(name: str, *sets: str) -> list[Config]:
    """Return the configs of all runs of a file, with one seed, after every check that needs no data."""
    seeds = {} if name in SINGLE else {"seed": [0]}
    return [run.config for run in planned_sweep(path_of(name), seeds, sets)]


@pytest.mark.parametrize("name", FILES)
def test_every_run_of_a_file_passes_the_checks(name: str) -> None:
    assert configs(name)


@pytest.mark.parametrize("sets", [(), ("small",), ("thesis_cnn",)])
def test_the_file_for_one_run_is_one_run_with_each_of_its_sets(sets: tuple[str, ...]) -> None:
    assert load_config(path_of("fedac/one_run"), sets=sets).method.name == "fedac"


@pytest.mark.parametrize("name", [name for name in FILES if name not in SINGLE])
def test_every_sweep_has_a_small_setting_that_passes_the_checks(name: str) -> None:
    full, small = configs(name), configs(name, "small")
    assert 0 < len(small) <= len(full)
    assert small[0].output.dir == f"{full[0].output.dir}-small"


@pytest.mark.parametrize("name", [name for name in FILES if "thesis_cnn" in _Reader().read(path_of(name)).sets])
def test_the_other_sets_pass_the_checks_too(name: str) -> None:
    assert configs(name) if name in SINGLE else configs(name, "thesis_cnn")


#: What networks take, as the sources give it.
TAKEN = {"mnist": "images", "npz": "images", "text": "text", "huggingface": "images", "digits": "images"}


@pytest.mark.parametrize("name", FILES)
def test_networks_fit_the_data_and_have_the_options_that_they_are_given(name: str) -> None:
    """Networks are built only when there are data. A layer or a group may leave options of another network behind."""
    for config in [*configs(name), *([] if name in SINGLE else configs(name, "small"))]:
        network = ZOO[config.model.name]
        assert set(config.model.options) <= set(network.options), (config.name, config.model)
        assert network.takes in ("numbers", TAKEN.get(config.data.source, "images")), (config.name, config.model)


@pytest.mark.parametrize("table", [name for name in table_names() if name not in NO_RUNS])
def test_each_printed_row_is_matched_by_one_group_of_runs(table: str) -> None:
    paper, number = table.split()
    files = [f"{paper}/table_{number.replace('.', '_')}", *MORE.get(table, [])]
    planned_runs = [config for file in files for config in configs(file)]
    labels = table_labels(planned_runs)
    forgotten, twice = [], []
    for line in printed(table).query("mean.notna()").to_dict("records"):
        groups: dict[tuple[str, str], Config] = {}
        for config, row, column in zip(planned_runs, labels.rows, labels.columns, strict=True):
            if would_match(config, line):
                groups[column, row] = config
        known = (table, line["setting"], line["method"]) in NO_ROW
        assert not (known and groups), f"{line} is matched: it needs no exception"
        if not groups and not known:
            forgotten.append(line)
        elif len(groups) > 1 and not (line["K"].startswith(CHOSEN) and differ_in_clusters(list(groups.values()))):
            twice.append((line["method"], list(groups)))
    assert not forgotten
    assert not twice


def differ_in_clusters(found: list[Config]) -> bool:
    """Whether the runs differ in K alone; CFL, which splits one cluster after the other, also in its rounds."""
    values = defaultdict(set)
    for config in found:
        for key, value in dotted_keys(config.to_tree()).items():
            values[key].add(str(value))
    return {key for key, seen in values.items() if len(seen) > 1} <= {"name", "rounds", "method.clusters"}


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(("thesis/table", "cam/table"))])
def test_tables_of_the_thesis_have_its_setting(name: str) -> None:
    for config in configs(name):
        assert (config.rounds, config.partition.clients, config.partition.test) == (100, 200, "official")
        assert getattr(config.partition, "samples", None) is None
        assert config.evaluate.every == 1  # the mean of the last three rounds needs all three
        assert (config.local.steps, config.local.batch_size, config.local.lr) == (10, 32, 0.001)
