"""The Python use."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import rayfl
from rayfl.errors import InputError


def test_run_takes_keywords_and_gives_frames(tmp_path: Path) -> None:
    run = rayfl.run(
        {"rounds": 2},
        federation="serial",
        local={"steps": 1},
        output={"dir": str(tmp_path)},
        **{"method.name": "local"},
    )
    assert list(run.rounds["round"]) == [1, 2]
    assert set(run.clients["client"]) == set(range(20))
    assert run.clusters.empty
    assert rayfl.load(run.path).rounds.equals(run.rounds)


def test_run_takes_a_yaml_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 1\nfederation: serial\nlocal: {steps: 1}\nmethod: {name: fedavg}\n")
    run = rayfl.run(file, seed=7, output={"dir": str(tmp_path / "out")})
    assert (run.config.seed, run.config.method.name) == (7, "fedavg")


def test_importing_rayfl_is_light() -> None:
    """`rayfl --help` and `import rayfl` must not wait for torch and ray."""
    import subprocess
    import sys

    code = "import sys, rayfl, rayfl.cli; print([m for m in ('torch', 'ray', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


TABLE = pd.DataFrame({"secret_column": [987654] * 500, "label": [0, 1] * 250})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: rayfl.run(TABLE),
        lambda: rayfl.run({"model": TABLE}),
        lambda: rayfl.run(model=TABLE),
        lambda: rayfl.run(rounds=TABLE),
        lambda: rayfl.run(method={"name": TABLE}),
        lambda: rayfl.run(local={"lr": [TABLE, 3]}),
        lambda: rayfl.run(local={"optimizer": {"a": (TABLE.to_numpy().tolist(), 3)}}),
        lambda: rayfl.run(callbacks=[TABLE]),
        lambda: rayfl.run(task=Large()),
        lambda: rayfl.run(model=Large()),
        lambda: rayfl.load(TABLE),
        lambda: rayfl.resume(TABLE),
    ],
)
def test_an_object_in_the_wrong_place_is_not_printed_into_the_error(wrong: Callable[[], object]) -> None:
    with pytest.raises(InputError) as told:
        wrong()
    for line in told.value.lines:
        assert len(line) < 600 and "9876549876" not in line and line.count("987654") < 30 and "\\n" not in line
        assert "secret_column" not in line


class Large:
    def __repr__(self) -> str:
        return "secret_column 987654\n" * 1000
