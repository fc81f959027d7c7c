"""Configs that build on others (`base`), and named sets of changes (`sets`, `--set`)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import rayfl
from rayfl.cli import app
from rayfl.config import load_config
from rayfl.config.loading import config_tree
from rayfl.errors import InputError
from rayfl.results import load
from rayfl.sweeping.grid import read_grid


def write(folder: Path, **files: Any) -> Path:
    """Write YAML files by name, and return the first one."""
    for name, tree in files.items():
        (folder / f"{name}.yaml").write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree, sort_keys=False))
    return folder / f"{next(iter(files))}.yaml"


# -- base --------------------------------------------------------------------------------------------------------


def test_a_file_adds_its_keys_to_those_of_its_base(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        table={"base": "common.yaml", "rounds": 7, "local": {"lr": 0.5}},
        common={"rounds": 100, "seed": 3, "local": {"lr": 0.1, "batch_size": 8}},
    )
    config = load_config(file)
    assert (config.rounds, config.seed, config.local.lr, config.local.batch_size) == (7, 3, 0.5, 8)
    assert load_config(file, ["rounds=9"]).rounds == 9


def test_of_several_bases_the_later_wins_and_paths_begin_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", one={"base": "two.yaml", "rounds": 1}, two={"rounds": 2, "seed": 2}, three={"rounds": 3})
    file = write(tmp_path, a={"base": ["parts/one.yaml", "parts/three.yaml"]})
    config = load_config(file)
    assert (config.rounds, config.seed) == (3, 2)


def test_a_layer_changes_what_is_below_as_an_override_would(tmp_path: Path) -> None:
    below = {
        "partition": {"kind": "dirichlet", "alpha": 0.3, "clients": 9},
        "local": {"steps": 5},
        "method": {"name": "fedac", "clusters": 7, "tuning": "granularity"},
    }
    above = {"partition": {"kind": "iid"}, "local": {"epochs": 2}, "method": {"name": "ifca"}}
    file = write(tmp_path, a={"base": "b.yaml", **above}, b=below)
    config = load_config(file)
    assert config.partition.kind == "iid" and config.partition.clients == 9
    assert (config.local.steps, config.local.epochs) == (None, 2)
    assert config.method.inherited == {"clusters": 7, "tuning": "granularity"}


def test_axes_of_a_sweep_are_replaced_by_name_and_null_removes_one(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        a={"base": "b.yaml", "sweep": {"method.name": ["local"], "K": None, "partition.alpha": [0.1, 1.0]}},
        b={"sweep": {"K": [{"rounds": 3}], "method.name": ["fedavg", "ifca"], "seed": "0..1"}},
    )
    assert config_tree(file)["sweep"] == {"method.name": ["local"], "seed": "0..1", "partition.alpha": [0.1, 1.0]}
    assert len(read_grid(file).points) == 4


def test_the_saved_config_is_the_resolved_one(tmp_path: Path) -> None:
    tree = {"federation": "serial", "model": {"name": "mlp"}, "partition": {"clients": 4}, "local": {"steps": 1}}
    file = write(tmp_path, a={"base": "b.yaml", "rounds": 1, "sets": {"more": {"rounds": 2}}}, b=tree)
    run = rayfl.run(file, sets="more", quiet=True, output={"dir": str(tmp_path / "runs")}, method={"name": "fedavg"})
    saved = yaml.safe_load(Path(run.path, "config.yaml").read_text())
    assert saved["rounds"] == 2 and saved["partition"]["clients"] == 4
    assert not {"base", "sets"} & saved.keys()
    assert len(load(run.path).rounds) == 2


CIRCLES = [{"a": {"base": "a.yaml"}}, {"a": {"base": "b.yaml"}, "b": {"base": ["c.yaml"]}, "c": {"base": "a.yaml"}}]


@pytest.mark.parametrize("files", CIRCLES)
def test_files_that_build_on_each_other_in_a_circle_are_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"in a circle: .*a\.yaml -> .*a\.yaml: remove one") as error:
        load_config(write(tmp_path, **files))
    assert len(error.value.lines) == 1


def test_bases_that_double_from_file_to_file_are_refused(tmp_path: Path) -> None:
    files: dict[str, Any] = {f"f{i}": {"base": [f"f{i + 1}.yaml"] * 2} for i in range(40)}
    with pytest.raises(InputError, match=r"f0\.yaml builds on more than 64 files"):
        load_config(write(tmp_path, **files, f40={}))


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"base": 3}, r"base=3: name a file"),
    ({"base": [{}]}, r"base=\[\{\}\]: name a file"),
    ({"base": "none.yaml"}, r"base names .*none\.yaml, which is not there: paths begin at this file"),
    ({"sets": ["small"]}, r"sets=\['small'\]: write names with keys"),
    ({"sets": {"small": 3}}, r"sets\.small=3: write keys"),
    ({"sets": {"a/b": {}}}, r"sets has the name 'a/b': use letters"),
    ({"sets": {"small": {"base": "b.yaml"}}}, r"sets\.small cannot have the key 'base'"),
    ({"sets": {"small": {}, "tiny": {}}}, r"has no set 'smal' \(did you mean 'small'\?\): it has small, tiny"),
    ({}, r"a\.yaml has no set 'smal': it has no sets"),
]


@pytest.mark.parametrize(("tree", "message"), FAULTS)
def test_a_fault_is_one_line_that_says_what_to_do(tmp_path: Path, tree: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load_config(write(tmp_path, a=tree), sets="smal")
    assert len(error.value.lines) == 1


def test_only_files_can_build_on_files() -> None:
    """A saved config is read as a mapping: that of a stranger's run must not name files to read."""
    with pytest.raises(InputError, match=r"base='/etc/passwd': only a config file can build on others"):
        load_config({"base": "/etc/passwd"})


# -- sets --------------------------------------------------------------------------------------------------------


def test_a_set_changes_keys_and_axes_and_is_off_unless_chosen(tmp_path: Path) -> None:
    small = {"rounds": 2, "partition.clients": 4, "sweep": {"seed": [0]}}
    tree = {"rounds": 9, "sweep": {"method.name": ["fedavg", "local"], "seed": "0..4"}, "sets": {"small": small}}
    file = write(tmp_path, a=tree)
    full, reduced = read_grid(file), read_grid(file, sets="small")
    assert len(full.points) == 10 and full.common == {"rounds": 9}
    assert len(reduced.points) == 2 and reduced.common == {"rounds": 2, "partition": {"clients": 4}}
    assert len(read_grid(file, ["seed=0..2"], "small").points) == 6


def test_sets_of_the_same_name_add_up_over_the_files(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        a={"base": "b.yaml", "rounds": 50, "sets": {"small": {"seed": 8}, "other": {"rounds": 4}}},
        b={"rounds": 90, "sets": {"small": {"rounds": 3, "seed": 7}}},
    )
    config = load_config(file, sets=["small"])
    assert (config.rounds, config.seed) == (3, 8)
    assert load_config(file, sets=["small", "other"]).rounds == 4
    assert load_config(file, sets=["other", "small"]).rounds == 3


def test_a_name_ends_in_that_of_the_set_unless_the_set_has_one(tmp_path: Path) -> None:
    file = write(tmp_path, a={"name": "table", "sets": {"small": {"rounds": 2}, "mine": {"name": "other"}}})
    assert load_config(file).name == "table"
    assert load_config(file, sets="small").name == "table-small"
    assert load_config(file, sets="mine").name == "other"
    assert load_config(file, ["name=x"], "small").name == "x"


def test_a_set_may_make_a_sweep_one_run(tmp_path: Path) -> None:
    file = write(tmp_path, a={"sweep": {"seed": [0, 1]}, "sets": {"one": {"sweep": {"seed": None}, "seed": 5}}})
    assert load_config(file, sets="one").seed == 5


def test_a_sweep_of_a_set_has_a_folder_of_its_own(forked_runners: None, tmp_path: Path) -> None:
    tree = {
        "rounds": 1,
        "model": {"name": "mlp"},
        "partition": {"clients": 4},
        "local": {"steps": 1},
        "output": {"dir": str(tmp_path / "runs")},
        "sets": {"small": {"sweep": {"method.name": ["fedavg", "local"]}}},
    }
    runs = rayfl.sweep(write(tmp_path, mine=tree), sets="small", jobs=1, quiet=True)
    assert {Path(run.path).parent.name for run in runs} == {"mine-small"} and len(runs) == 2


def test_the_command_line_takes_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, a={"partition": {"clients": 20}, "sets": {"small": {"partition": {"clients": 4}}}})
    app(["partition", str(file), "--set", "small"], standalone_mode=False)
    assert "transforms: 4 clients" in capsys.readouterr().out
    with pytest.raises(InputError, match="has no set 'big'"):
        app(["run", str(file), "--set", "big"], standalone_mode=False)
