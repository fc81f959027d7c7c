"""Run folders with figures of a test's own, written as a run writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config import load_config
from rayfl.results import Fingerprints, Run, RunWriter, Storage, load
from rayfl.simulation.folder import config_file

START = Fingerprints("data", "partition", "model")


def write_run(
    folder: Path,
    method: str = "fedavg",
    seed: int = 0,
    values: Sequence[float] = (0.5,),
    *,
    overrides: Sequence[str] = (),
    rounds: int | None = None,
    metric: str = "accuracy",
    clients: Sequence[Sequence[float]] | None = None,
    extras: Sequence[dict[str, Any]] | None = None,
    summary: dict[str, Any] | None = None,
    prints: Fingerprints | None = START,
) -> Run:
    """Write a run whose metric takes these values, round by round; NaN is a round that was not evaluated.

    `prints` are completed by the seed, as those of real runs differ between seeds.
    """
    words = [f"method.name={method}", f"seed={seed}", f"rounds={rounds or len(values)}", *overrides]
    config = load_config(None, words)
    storage = Storage(folder)
    assert storage.claim("config.yaml", config_file(config))
    notes = None if prints is None else prints._replace(partition=f"{prints.partition} {config.partition_seed}").note()
    with RunWriter(storage, folder.name, method, seed, notes=notes) as writer:
        for number, value in enumerate(values, 1):
            figures = {metric: value, "bytes_up": 1_000_000, "bytes_down": 2_000_000, "seconds_total": 0.5}
            of_clients = np.array([value] if clients is None else clients[number - 1])
            writer.write_round(
                number,
                {**figures, **(summary or {})},
                {"client": np.arange(len(of_clients)), metric: of_clients},
                extras=None if extras is None else extras[number - 1],
            )
    return load(folder)
