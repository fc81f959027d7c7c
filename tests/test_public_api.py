"""The Python use, and a method of one's own."""

from collections.abc import Callable
from pathlib import Path

import pytest

import rayfl
from rayfl.results import Run

OWN_METHOD = '''
import numpy as np
from rayfl.federation import everyone
from rayfl.methods.method import Method


class Median(Method):
    """FedAvg with the coordinate-wise median."""

    def start(self):
        self.state = self.fed.initial

    def round(self, cohort):
        self.fed.train(cohort, start=self.tested_models())
        model = self.state.copy()
        model[: self.fed.layout.parameters] = np.median(self.fed.collect(cohort), axis=0)
        self.state = model

    def tested_models(self):
        return everyone(self.state, self.fed.clients)
'''


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


@pytest.mark.parametrize("federation", ["serial", "ray"])
def test_a_method_of_ones_own_runs_by_import_path(
    own_code: Callable[[str, str], None], simulate_quietly: Callable[..., Run], ray_session: None, federation: str
) -> None:
    own_code("my_median", OWN_METHOD)
    run = simulate_quietly(
        "rounds=6", "method.name=my_median:Median", f"federation={federation}", "partition.kind=iid", "local.lr=0.2"
    )
    assert run.rounds["accuracy"].iloc[-1] > 0.8 > run.rounds["accuracy"].iloc[0]


def test_importing_rayfl_is_light() -> None:
    """`rayfl --help` and `import rayfl` must not wait for torch and ray."""
    import subprocess
    import sys

    code = "import sys, rayfl, rayfl.cli; print([m for m in ('torch', 'ray', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
