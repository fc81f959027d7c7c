"""rayfl against Flower's simulation and pfl-research: FedAvg with the CIFAR CNN, evaluation of all clients each round.

    python benchmarks/peers.py [--quick] [--turns 3] [--rounds 6] [--only Flower ...]

Each peer has its own environment in benchmarks/.peers, which this script creates from the package registry. The
environment reads torch from rayfl's environment, and has the versions that the peer pins (Flower pins Ray). A peer that
cannot be installed is left out, with the reason. All sides get the same samples, clients, network and initial weights,
and two processes with one thread each. The sides take turns, one run of a few rounds at a time; the first round of a
run is not counted. A run counts if it has printed its answer, which is after its last round, also if one of its
processes then dies while leaving. A turn in which a peer fails is left out for this peer. The table notes both.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from measuring import Report, Row, command_line, compared, console, seconds, spread, take_turns
from work import BATCH, PROCESSES, STEPS, WORKS, configured

from rayfl.models import build_model
from rayfl.simulation.preparation import prepare

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".peers"
PARTITION = {"kind": "iid", "test": "official"}
PATIENCE = 1800  # seconds for one run


class Unavailable(Exception):
    """A peer that cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Answer:
    """The result of one run, or why it failed."""

    seconds: list[float]
    accuracy: float = 0.0
    failure: str | None = None
    died_leaving: str | None = None
    """What a process said that died after the answer."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--turns", type=int, help="how often each side runs (3)")
    parser.add_argument("--rounds", type=int, help="rounds of each run, of which the first does not count (6)")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="run only peers of these names, or with these in their name"
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    report = Report("peers", quick)
    rounds, turns = arguments.rounds or (3 if quick else 6), arguments.turns or (1 if quick else 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_work(folder, quick)
        sides: dict[str, Callable[[], Answer]] = {"rayfl": partial(run_rayfl, folder, rounds)}
        for peer, (package, requirement, run) in PEERS.items():
            if not any(peer == wanted if wanted in PEERS else wanted in peer for wanted in arguments.only):
                continue
            try:
                python = environment(package, requirement)
            except Unavailable as reason:
                report.add(left_out(peer, str(reason)))
                continue
            report.versions[package] = version_in(python, package)
            sides[peer] = partial(attempt, partial(run, python, folder, rounds))
        results = take_turns(sides, turns, warm_up=0)
    answers = {side: [answer for _, answer in results[side]] for side in results}
    for side in answers:
        report.add(row_of(side, answers[side], answers["rayfl"]))
    report.show(
        f"FedAvg, {PROCESSES} processes, {STEPS} steps of {BATCH}, evaluation of all clients; {report.versions}",
        {
            "work": lambda row: row.what,
            "side": lambda row: row.variant,
            "round": lambda row: seconds(row.seconds),
            "x rayfl": spread,
            "note": lambda row: row.note or "",
        },
    )


def row_of(side: str, answers: list[Answer], ours: list[Answer]) -> Row:
    """Compare turn by turn: the median round of a side's run with the median round of rayfl's run in the same turn."""
    failures = [answer.failure for answer in answers if answer.failure]
    if len(failures) == len(answers):
        return left_out(side, failures[0])
    pairs = [pair for pair in zip(answers, ours, strict=True) if not pair[0].failure]
    medians, our_medians = ([median(answer.seconds) for answer in some] for some in zip(*pairs, strict=True))
    rounds = [len(answer.seconds) for answer, _ in pairs]
    note = f"accuracy {pairs[-1][0].accuracy:.3f} after {rounds[-1] + 1} rounds"
    died = [answer.died_leaving for answer, _ in pairs if answer.died_leaving]
    for what, messages in (("without the runs that failed", failures), ("a process died after its answer", died)):
        if messages:
            note += f"; {what}, {len(messages)} of {len(answers)}: {messages[0]}"
    row = compared(WORKS[0].title, side, "round", medians, "rayfl", our_medians, note)
    return replace(row, repetitions=sum(rounds))


def left_out(side: str, reason: str) -> Row:
    console().print(f"{side} is left out: {reason}", markup=False)
    return Row(WORKS[0].title, side, "round", note=f"left out: {reason}")


def attempt(run: Callable[[], Answer]) -> Answer:
    """Run a peer; if it fails, return the reason, so that the others still run."""
    try:
        return run()
    except Unavailable as reason:
        return Answer([], failure=str(reason))


def write_work(folder: Path, quick: bool) -> None:
    """Write what all sides read."""
    work = replace(WORKS[0], clients=10, cohort=10, samples=6000) if quick else WORKS[0]
    prepared = prepare(configured(work, {"name": "fedavg"}, folder, PARTITION))
    config, dataset, partition = prepared.config, prepared.dataset, prepared.partition
    (folder / "config.yaml").write_text(config.to_yaml())
    np.savez(
        folder / "work.npz",
        inputs=dataset.inputs,
        labels=dataset.labels,
        scale=dataset.scale,
        shift=dataset.shift,
        train=partition.train,
        train_offsets=partition.train_offsets,
        test=partition.test,
        test_offsets=partition.test_offsets,
    )
    torch.save(build_model(config.model, dataset.input_shape, dataset.classes, seed=config.seed), folder / "model.pt")
    numbers = {"classes": dataset.classes, "steps": STEPS, "batch": BATCH, "lr": config.local.lr}
    (folder / "work.json").write_text(json.dumps(numbers))


def environment(package: str, requirement: str) -> Path:
    """Return the Python of a peer's environment, made on the first call."""
    folder = ENVIRONMENTS / package
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    console().print(f"setting up {requirement} in {folder.relative_to(HERE.parent)} ...", markup=False)
    venv.create(folder, with_pip=True, symlinks=True)
    # Torch is large, so it is read from this environment; packages that the peer installs take precedence.
    libraries = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    (Path(libraries) / "rayfl-environment.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", requirement], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"pip cannot install {requirement}: {last_line(done.stderr)}")
    (folder / "ready").touch()
    return python


def version_in(python: Path, package: str) -> str:
    command = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", command], capture_output=True, text=True).stdout.strip()


def run_rayfl(folder: Path, rounds: int) -> Answer:
    return answers_of([start(Path(sys.executable), "peers_rayfl.py", folder, rounds)])


def run_flower(python: Path, folder: Path, rounds: int, clients: str = "tutorial") -> Answer:
    return answers_of([start(python, "peers_flower.py", folder, rounds, clients, FLWR_TELEMETRY_ENABLED="0")])


def run_pfl(python: Path, folder: Path, rounds: int, evaluation: str = "same") -> Answer:
    """Start one process per rank; gloo needs free addresses."""
    addresses = ",".join(f"localhost:{free_port()}" for _ in range(PROCESSES))
    return answers_of(
        [
            start(
                python,
                "peers_pfl.py",
                folder,
                rounds,
                evaluation,
                PFL_WORKER_ADDRESSES=addresses,
                PFL_WORKER_RANK=str(rank),
                PFL_PYTORCH_DEVICE="cpu",
            )
            for rank in range(PROCESSES)
        ]
    )


#: name -> its package, what pip installs, and how it is run
PEERS: dict[str, tuple[str, str, Callable[[Path, Path, int], Answer]]] = {
    "Flower": ("flwr", "flwr[simulation]", run_flower),
    "Flower, data and network kept ready": ("flwr", "flwr[simulation]", partial(run_flower, clients="ready")),
    "pfl-research": ("pfl", "pfl", run_pfl),
    "pfl-research, its own evaluation": ("pfl", "pfl", partial(run_pfl, evaluation="own")),
}


def start(python: Path, script: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, HERE / script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def answers_of(processes: list[subprocess.Popen[str]]) -> Answer:
    """Wait for the processes of one run, and read the last line that the first process has printed.

    It prints the answer when all rounds are done, by all processes. One that dies later does not change the times.
    """
    try:
        outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        raise Unavailable(f"the run took more than {PATIENCE} s") from None
    ends = zip(processes, outputs, strict=True)
    deaths = [last_line(errors) for process, (_, errors) in ends if process.returncode]
    try:
        answer = Answer(**json.loads(last_line(outputs[0][0])))
    except (ValueError, TypeError):
        raise Unavailable(f"the run failed: {deaths[0] if deaths else 'it printed no answer'}") from None
    return replace(answer, died_leaving=deaths[0] if deaths else None)


def last_line(text: str) -> str:
    return (text.strip() or "no message").splitlines()[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
