"""Which clients are there in which round, from the config: newcomers that arrive later, and the trace in a file.

Both are settled and checked before the first round.
"""

from collections.abc import Iterator

import numpy as np

from rayfl.config import ArriveConfig, Config
from rayfl.errors import InputError, shown
from rayfl.federation.presence import AFTER_TRAINING, Presence, Trace
from rayfl.input_tree import expanded
from rayfl.randomness import Purpose, generator


def presence_of(config: Config, clients: int, truth: np.ndarray | None) -> Presence:
    """Return which clients are there in which round; `truth` is each client's planted cluster, if there are any."""
    arrives = np.zeros(clients, np.int64)
    if config.arrive is not None:
        late = draw_newcomers(config.arrive, clients, truth, config.partition_seed)
        arrives[late] = AFTER_TRAINING if config.arrive.round == "after" else config.arrive.round
    path = config.participation.path
    presence = Presence(arrives, None if path is None else read_trace(path, clients))
    for number in _rounds_that_differ(presence, config.rounds):
        if not len(presence.available(number)):
            arrived = " of those who are there then" if config.arrive is not None else ""
            raise InputError(
                f"participation.path={path}: nobody{arrived} is available in round {number}: let somebody be, or leave"
                " the round out and number those after it anew"
            )
    return presence


def cohort_sizes(config: Config, presence: Presence) -> tuple[int, int]:
    """Return how many clients the smallest and the largest cohort of a run have."""
    numbers = list(_rounds_that_differ(presence, config.rounds))
    sizes = [cohort_size(config, presence, number) for number in numbers]
    return min(sizes), max(sizes)


def cohort_size(config: Config, presence: Presence, number: int) -> int:
    """Return how many clients take part in a round: the configured number, or fewer if fewer are available."""
    return min(config.cohort_size(len(presence.there(number))), len(presence.available(number)))


def _rounds_that_differ(presence: Presence, rounds: int) -> Iterator[int]:
    """Yield rounds that stand for all others: one pass of the trace from the start, and one from each arrival.

    In every other round, the same clients are there and available as in one of these rounds.
    """
    turn = presence.trace.rounds if presence.trace is not None else 1
    for first in sorted({1, *np.unique(presence.arrives).tolist()} - {0}):
        yield from range(first, min(first + turn - 1, rounds) + 1)


# -- newcomers ---------------------------------------------------------------------------------------------------


def draw_newcomers(config: ArriveConfig, clients: int, truth: np.ndarray | None, seed: int) -> np.ndarray:
    """Return which clients arrive later: the named ones, or a share of each planted cluster, drawn at random.

    At least one client of each cluster is there from the start, unless newcomers are named.
    """
    if config.clients is not None:
        unknown = [client for client in config.clients if client >= clients]
        if unknown:
            raise InputError(
                f"arrive.clients names {shown(unknown[0])}: clients have the numbers 0 to {clients - 1}; remove it"
            )
        if len(config.clients) == clients:
            raise InputError("arrive.clients names all clients: leave out those who are there from the start")
        return np.array(sorted(config.clients))
    given = f"arrive.share={config.share}" if config.count is None else f"arrive.count={config.count}"
    wanted = max(1, round((config.share or 0) * clients)) if config.count is None else config.count
    _, cluster, sizes = np.unique(
        np.zeros(clients, int) if truth is None else truth, return_inverse=True, return_counts=True
    )
    if wanted > clients - len(sizes):
        keeps = "one client must" if truth is None else f"one client of each of the {len(sizes)} planted clusters must"
        raise InputError(
            f"{given} makes {wanted} of {clients} clients newcomers: {keeps} be there from the start; use less"
        )
    counts = _shared_out(wanted, sizes)
    rng = generator(seed, Purpose.NEWCOMERS)
    drawn = [rng.choice(np.flatnonzero(cluster == k), count, replace=False) for k, count in enumerate(counts.tolist())]
    return np.sort(np.concatenate(drawn))


def _shared_out(wanted: int, sizes: np.ndarray) -> np.ndarray:
    """Split a number in proportion to sizes, by largest remainders, so that at least one of each size is left.

    >>> _shared_out(3, np.array([4, 4, 2])).tolist(), _shared_out(4, np.array([1, 5])).tolist()
    ([1, 1, 1], [0, 4])
    """
    exact = wanted * sizes / sizes.sum()
    counts = np.minimum(np.floor(exact).astype(np.int64), sizes - 1)
    while counts.sum() < wanted:
        short = np.where(counts < sizes - 1, exact - counts, -np.inf)
        counts[int(short.argmax())] += 1
    return counts


# -- traces ------------------------------------------------------------------------------------------------------


def read_trace(path: str, clients: int) -> Trace:
    """Read who is available in which round from a CSV or Parquet file with the columns round and client."""
    from rayfl.data.sources.tables import need_columns, read_table  # pandas

    where = f"participation.path={path}"
    file = expanded(path)
    if not file.is_file():
        raise InputError(f"{where} does not exist (looked for {file.resolve()}): correct the path")
    table = read_table(file, where)
    need_columns(list(map(str, table.columns)), ["round", "client"], where, "a trace")
    if not len(table):
        raise InputError(f"{where} has no rows: give one for each round in which a client is available")
    for name, least in (("round", 1), ("client", 0)):
        column = table[name]
        if column.dtype.kind not in "iu":
            raise InputError(f"{where}: column '{name}' must hold whole numbers only; correct it")
        if (column < least).any():
            raise InputError(f"{where}: column '{name}' holds {int(column.min())}, and is counted from {least}")
    numbers, who = table["round"].to_numpy(np.int64), table["client"].to_numpy(np.int64)
    if (who >= clients).any():
        raise InputError(
            f"{where} names client {int(who.max())}: there are {clients} clients, numbered from 0; correct the file"
        )
    pairs = np.unique(np.stack([numbers, who]), axis=1)
    present = np.unique(pairs[0])
    if len(present) < present[-1]:
        gap = int(np.flatnonzero(present != np.arange(1, len(present) + 1))[0]) + 1
        raise InputError(f"{where}: nobody is available in round {gap}; name somebody, or number the rounds anew")
    return Trace(pairs[1], np.append(0, np.cumsum(np.bincount(pairs[0])[1:])))
