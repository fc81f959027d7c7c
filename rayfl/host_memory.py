"""How much memory of this machine a run needs: an estimate, made before anything large is allocated.

The estimate counts only what is certain, so a run that is refused cannot fit. For memory on GPUs, see `client.memory`.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rayfl.errors import InputError

FLOAT = 4
POSITION = 8  # bytes of one sample's position in the order in which batches are drawn


@dataclass(frozen=True)
class Need:
    """The memory of one part of a run, in bytes, and the config keys that reduce it."""

    what: str
    bytes: int
    keys: str


def network_need(parameters: int, processes: int = 1) -> Need:
    """Each training process holds the weights, their gradient, the initial weights, and the weights before training.

    >>> network_need(1000, processes=2).bytes
    32000
    """
    what = f"a network of {parameters:,} parameters in {processes} process{'es' * (processes > 1)}"
    return Need(what, 4 * FLOAT * parameters * processes, "model.name or model.options")


def server_need(parameters: int, models: int) -> Need:
    """The server holds its models, the means that replace them, and the models of the previous round.

    >>> server_need(1000, models=5).bytes
    60000
    """
    return Need(f"{models:,} models on the server", 3 * FLOAT * parameters * models, "method.clusters or model.options")


def collected_need(size: int, clients: int) -> Need:
    """Memory for the models of many clients on the server at the same time, as vectors of `size` numbers.

    >>> collected_need(1000, clients=5).bytes
    20000
    """
    what = f"the models of {clients:,} clients, side by side on the server"
    return Need(what, FLOAT * size * clients, "partition.clients or model.options")


def clients_need(parameters: int, cohort: int, budget: int, momentum: bool = False) -> Need:
    """The models that a round's clients have trained and that stay in memory; the rest are in files.

    With `momentum`, each client needs twice as much.

    >>> clients_need(1000, cohort=20, budget=10**6).bytes, clients_need(1000, cohort=20, budget=50_000).bytes
    (80000, 50000)
    >>> clients_need(1000, cohort=20, budget=10**6, momentum=True).bytes
    160000
    """
    taken = min(budget, FLOAT * parameters * cohort * (1 + momentum))
    what = f"models{' and momenta' * momentum} of {cohort:,} clients"
    return Need(what, taken, "state.memory_mb, participation.count or model.options")


def batches_need(samples_seen: int, processes: int = 1) -> Need:
    """The order in which a client goes through its samples in a round; it is drawn all at once.

    >>> batches_need(320).bytes
    2560
    """
    what = f"the order of {samples_seen:,} samples that a client's round goes through"
    return Need(what, POSITION * samples_seen * processes, "local.steps or local.epochs")


def seen_need(samples: int, sample_bytes: int, most: int, processes: int = 1) -> Need:
    """Kept copies of transformed inputs (rotated, blurred, noisy), each with a one-byte mark: up to `most` per process.

    >>> seen_need(1000, sample_bytes=63, most=10**6).bytes, seen_need(1000, sample_bytes=63, most=10_000).bytes
    (64000, 10000)
    >>> seen_need(1000, sample_bytes=63, most=10_000, processes=3).bytes
    30000
    """
    taken = min((sample_bytes + 1) * samples, most * processes)
    return Need(f"{samples:,} transformed samples", taken, "data.limit or ray.actors")


def refuse_excess(needs: Sequence[Need], has: int) -> None:
    """Refuse a run whose parts together do not fit into `has` bytes, and say which part is the largest."""
    total = sum(need.bytes for need in needs)
    if total <= has:
        return
    largest = sorted(needs, key=lambda need: -need.bytes)
    parts = ", ".join(f"{_size(need.bytes)} for {need.what}" for need in largest if need.bytes > total // 1000)
    raise InputError(
        f"the run needs at least {_size(total)} of memory, and there are {_size(has)} here: {parts}; lower"
        f" {largest[0].keys}"
    )


def memory_here(root: Path = Path("/")) -> int:
    """Return how many bytes this process may use: the machine's memory, or less if a control group limits it."""
    if not hasattr(os, "sysconf"):  # not known on Windows; there, what does not fit fails when it is allocated
        return sys.maxsize
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_limits(root)])


def _limits(root: Path) -> list[int]:
    """Return the limits of the control groups that this process is in, versions 1 and 2."""
    groups = root / "sys/fs/cgroup"
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            folder, file = groups, "memory.max"
        elif "memory" in controllers.split(","):
            folder, file = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = folder / path.lstrip("/")
        # In a container the path is often that of the host, and the limits are directly at the mount point.
        for place in (inner, *inner.parents):
            if place.is_relative_to(folder):
                found.append(_read(place / file).strip())
    return [int(text) for text in found if text.isdigit()]


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
