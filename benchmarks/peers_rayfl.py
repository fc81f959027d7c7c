"""FedAvg in rayfl for the comparison with its peers: the real engine, round by round, with rows written to disk.

python benchmarks/peers_rayfl.py FOLDER ROUNDS          in rayfl's environment, see peers.py
"""

import sys
import time
from pathlib import Path

from peers_work import answer

from rayfl.config import load_config
from rayfl.launch import open_server
from rayfl.results import RunWriter, Storage
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen

if __name__ == "__main__":
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    storage = Storage(str(folder / f"run-{time.time_ns()}"))
    storage.create()
    prepared = prepare(load_config(folder / "config.yaml"))
    stamps = []
    with (
        open_server(prepared, Screen(quiet=True)) as server,
        RunWriter(storage, "benchmark", "fedavg", prepared.config.seed) as writer,
    ):
        for number in range(1, rounds + 1):
            record = server.run_round(number)
            writer.write_round(number, record.summary, record.clients, record.clusters, record.extras)
            stamps.append(time.perf_counter())
    answer(stamps, record.summary["accuracy"])
