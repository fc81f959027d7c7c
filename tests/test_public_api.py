"""The Python use."""

from pathlib import Path

import rayfl


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
