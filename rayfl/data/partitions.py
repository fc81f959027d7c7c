"""Who gets which samples: one mechanism for all kinds of partition.

Each kind says how many samples a client gets and which classes it wants, in what proportions; `_Deal` then
deals from one pool per class, and when a pool runs dry, the client gets more of its other classes. All of it
is whole-number arithmetic on arrays of clients, so 100,000 clients take seconds and sums are exact.

What a sample may be used for is settled before, in `splits`, so that public, training, validation and test samples are
disjoint whatever the kind.
"""

import math
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from rayfl.config import PartitionConfig
from rayfl.data.dataset import Dataset, Transform
from rayfl.data.splits import Splits, keeps_validation_share, make_splits
from rayfl.errors import InputError
from rayfl.host_memory import POSITION, Need, memory_here, refuse_excess
from rayfl.randomness import Purpose, generator

# Streams of one purpose, apart so that a validation split changes no bit of the rest. Sources draw data.limit from
# stream 1, and public samples are drawn from stream 2.
_STREAM, _VALIDATION_STREAM, _SPLIT_STREAM = 0, 3, 4
_DISTINCT_TRIES = 50


@dataclass(frozen=True)
class Partition:
    """Who gets which samples, as flat arrays: client i has `train[train_offsets[i] : train_offsets[i + 1]]`.

    No sample is in two of `train`, `validation`, `test` and `public`; the last are nobody's. `true_cluster` is there
    where clusters are planted. Client i sees its samples through `transforms[transform_of[i]]`.
    """

    train: np.ndarray
    train_offsets: np.ndarray
    test: np.ndarray
    test_offsets: np.ndarray
    validation: np.ndarray
    validation_offsets: np.ndarray
    public: np.ndarray
    true_cluster: np.ndarray | None = None
    transforms: tuple[Transform, ...] = ()
    transform_of: np.ndarray | None = None

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train_offsets) - 1

    @property
    def n_train(self) -> np.ndarray:
        """Training samples of each client."""
        return np.diff(self.train_offsets)

    @property
    def n_test(self) -> np.ndarray:
        """Test samples of each client."""
        return np.diff(self.test_offsets)

    @property
    def n_validation(self) -> np.ndarray:
        """Validation samples of each client."""
        return np.diff(self.validation_offsets)

    def train_of(self, client: int) -> np.ndarray:
        """Indices of a client's training samples."""
        return self.train[self.train_offsets[client] : self.train_offsets[client + 1]]

    def test_of(self, client: int) -> np.ndarray:
        """Indices of a client's test samples."""
        return self.test[self.test_offsets[client] : self.test_offsets[client + 1]]

    def validation_of(self, client: int) -> np.ndarray:
        """Indices of a client's validation samples."""
        return self.validation[self.validation_offsets[client] : self.validation_offsets[client + 1]]

    def transform_for(self, client: int) -> Transform | None:
        """What sets this client's samples apart, if anything does."""
        return None if self.transform_of is None else self.transforms[self.transform_of[client]]

    def label_counts(
        self, dataset: Dataset, split: Literal["train", "validation", "test", "all"] = "train"
    ) -> np.ndarray:
        """Samples of each class that a client sees (clients, classes): after its label transform."""
        counts = np.zeros((self.clients, dataset.classes), dtype=np.int64)
        if split in ("train", "all"):
            counts += _count_labels(dataset, self.train, self.n_train)
        if split in ("validation", "all"):
            counts += _count_labels(dataset, self.validation, self.n_validation)
        if split in ("test", "all"):
            counts += _count_labels(dataset, self.test, self.n_test)
        for number, transform in enumerate(self.transforms):
            if transform.labels is not None and self.transform_of is not None:
                rows = self.transform_of == number
                # Class c becomes labels[c], so new class j is the old class argsort(labels)[j].
                counts[rows] = counts[rows][:, np.argsort(transform.labels)]
        return counts

    def normalised(self, dataset: Dataset) -> Dataset:
        """Return the data set with inputs normalised over what clients see: some may see them inverted.

        With p the share of inverted training samples, mean m and variance v become (1 - p) m + p (255 - m) and
        v + p (1 - p) (255 - 2 m)^2. Turns and new labels change neither.
        """
        if self.transform_of is None or not any(t.invert for t in self.transforms):
            return dataset
        inverts = np.array([t.invert for t in self.transforms])[self.transform_of]
        share = self.n_train[inverts].sum() / len(self.train)
        scale = dataset.scale.astype(np.float64)
        mean, variance = -dataset.shift / scale, scale**-2
        mean, variance = (
            (1 - share) * mean + share * (255 - mean),
            variance + share * (1 - share) * (255 - 2 * mean) ** 2,
        )
        scale = variance**-0.5
        return replace(dataset, shift=(-mean * scale).astype(np.float32), scale=scale.astype(np.float32))


def make_partition(config: PartitionConfig, dataset: Dataset, seed: int) -> Partition:
    """Deal the samples of `dataset` to clients. Same seed, same partition; no sample twice, nobody without.

    Train, validation and test samples of one client share one label distribution. With partition.test=official the
    test samples come from the source's own test split, else every client keeps that share of its samples for testing;
    the same goes for partition.validation and what is left for training. partition.public is set aside before.
    """
    splits = make_splits(config, dataset, seed)
    rng = generator(seed, Purpose.PARTITION, _STREAM)
    validation_rng = generator(seed, Purpose.PARTITION, _VALIDATION_STREAM)
    if config.kind == "natural":
        return _partition(_by_owner(config, dataset, splits, rng, validation_rng), splits.public)
    assert config.clients is not None  # the config fills it in
    if config.whole_per_cluster:
        splits = _cut_once(config, dataset, splits, generator(seed, Purpose.PARTITION, _SPLIT_STREAM))
        _check_whole(config, splits)
    else:
        _check_sizes(config, config.clients, splits)  # before any array over clients is made
    clusters = _cluster_of_clients(config, config.clients)
    transforms = _transforms(config, dataset, rng)
    if config.whole_per_cluster:
        assert clusters is not None  # these partitions have some
        dealt = _whole_per_cluster(config, dataset, splits, np.bincount(clusters), seed)
    else:
        dealt = _by_wish(config, dataset, splits, clusters, rng, validation_rng)
    return _partition(dealt, splits.public, clusters, transforms, clusters if transforms else None)


@dataclass(frozen=True)
class _Dealt:
    """Samples that stand in the order of clients, and how many of them each client has."""

    train: np.ndarray
    n_train: np.ndarray
    test: np.ndarray
    n_test: np.ndarray
    validation: np.ndarray
    n_validation: np.ndarray


def _by_wish(
    config: PartitionConfig,
    dataset: Dataset,
    splits: Splits,
    clusters: np.ndarray | None,
    rng: np.random.Generator,
    validation_rng: np.random.Generator,
) -> _Dealt:
    """Deal by the classes that clients want, or without regard to classes."""
    clients, pool, official = config.clients, splits.pool, config.test == "official"
    assert clients is not None
    own = config.classes_client or config.classes or 0  # classes of which each client must have a sample
    floor = max(own, 1 if official else 2)
    sizes, test_sizes = _drawn_sizes(config, clients, floor, len(pool), len(splits.test), rng)

    # Dealing without regard to the class is dealing from one pool of all samples.
    blind = config.kind in ("iid", "transforms")
    labels = np.zeros(len(pool), np.int64) if blind else dataset.labels[pool].astype(np.int64)
    deal = _Deal(config, np.bincount(labels, minlength=1 if blind else dataset.classes), rng)
    deal.wish = _wish(config, clients, clusters, deal.pools, rng)
    floors = np.full(clients, floor) if config.samples is None else np.maximum(floor, config.samples[0] - test_sizes)
    if sizes is None:
        total = int(deal.pools[(deal.wish.amounts > 0).any(axis=0)].sum())
        sizes = _raised(share_out(_whole(deal.wish.amounts.sum(1), total), total, rng), floors)
    counts = deal.fill(sizes, floors)
    n_samples = counts.sum(1)
    samples = _by_client_and_label(dataset, _take(counts, pool, labels, rng), n_samples)
    if config.test != "official":
        train, n_train, test, n_test = _split(dataset, samples, n_samples, config.test, rng)
    else:
        if config.samples is None:
            test_sizes = share_out(n_samples, len(splits.test) - clients, rng) + 1
            floors = np.ones(clients, np.int64)
        else:
            floors = np.maximum(1, config.samples[0] - n_samples)
        train, n_train = samples, n_samples
        test, n_test = _deal_like(config, dataset, splits.test, (train, n_train), test_sizes, floors, rng)
    if keeps_validation_share(config) or not len(splits.validation):
        return _with_validation_share(config, dataset, (train, n_train, test, n_test), validation_rng)
    # Of the validation split as much as of the rest, by training samples.
    total = round(len(splits.validation) * (int(n_samples.sum()) / len(pool)))
    sizes = share_out(n_train, total, validation_rng)
    validation = _deal_like(
        config, dataset, splits.validation, (train, n_train), sizes, np.zeros_like(sizes), validation_rng
    )
    return _Dealt(train, n_train, test, n_test, *validation)


def _deal_like(
    config: PartitionConfig,
    dataset: Dataset,
    split: np.ndarray,
    trained: tuple[np.ndarray, np.ndarray],
    sizes: np.ndarray,
    floors: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Deal a split of its own by the labels that each client has in fact been given to train on."""
    known = _count_labels(dataset, *trained)
    labels = dataset.labels[split].astype(np.int64)
    deal = _Deal(config, np.bincount(labels, minlength=dataset.classes), rng)
    only_known = bool(config.classes_client or config.classes)
    deal.wish = _Wish(known, known > 0 if only_known else None)
    counts = deal.fill(sizes, floors)
    return _take(counts, split, labels, rng), counts.sum(1)


def _with_validation_share(
    config: PartitionConfig,
    dataset: Dataset,
    parts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    rng: np.random.Generator,
) -> _Dealt:
    """Let every client with more than one training sample keep partition.validation of them, if that is any.

    All else stays as it is, so that models are tested on the same samples with validation and without.
    """
    train, n_train, test, n_test = parts
    if not keeps_validation_share(config):
        return _Dealt(*parts, train[:0], np.zeros_like(n_train))
    assert isinstance(config.validation, float)
    ordered = _by_client_and_label(dataset, train, n_train)
    train, n_train, *validation = _split(dataset, ordered, n_train, config.validation, rng)
    return _Dealt(train, n_train, test, n_test, *validation)


def _cut_once(config: PartitionConfig, dataset: Dataset, splits: Splits, rng: np.random.Generator) -> Splits:
    """Settle what is for testing and what for validation before any cluster is dealt all of it.

    So a sample that one cluster trains on never tests another, turned or not.
    """

    def cut(pool: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
        if len(pool) < 2:
            return pool, pool[:0]
        size = np.array([len(pool)])
        ordered = _by_client_and_label(dataset, rng.permutation(pool), size)
        rest, _, taken, _ = _split(dataset, ordered, size, share, rng)
        return rest, taken

    if config.test != "official":
        pool, test = cut(splits.pool, config.test)
        splits = replace(splits, pool=pool, test=test)
    if keeps_validation_share(config):
        assert isinstance(config.validation, float)
        pool, validation = cut(splits.pool, config.validation)
        splits = replace(splits, pool=pool, validation=validation)
    return splits


def _check_whole(config: PartitionConfig, splits: Splits) -> None:
    """Refuse clusters with more clients than samples, and more copies of the samples than there is memory for."""
    assert config.clients is not None and config.clusters is not None
    largest = max(config.cluster_sizes or [-(-config.clients // config.clusters)])
    most = min(len(splits.pool), len(splits.test))
    if largest > most:
        raise InputError(
            f"partition.whole_per_cluster: the {largest} clients of a cluster cannot each get 1 of the"
            f" {len(splits.pool)} training and 1 of the {len(splits.test)} test samples: use at most {most} clients per"
            " cluster"
        )
    total = len(splits.pool) + len(splits.test)
    _check_range(config, largest, total)
    held = config.clusters * total
    if config.samples is not None:
        held = min(held, config.clients * config.samples[0])
    what = f"the samples of {config.clusters:,} clusters that each hold the whole data set"
    refuse_excess([Need(what, POSITION * held, "partition.clusters")], memory_here())


def _whole_per_cluster(
    config: PartitionConfig, dataset: Dataset, splits: Splits, members: np.ndarray, seed: int
) -> _Dealt:
    """Deal all samples to the clients of each cluster, of which there are so many `members`."""
    dealt = []
    for cluster, clients in enumerate(members.tolist()):
        # Inside a cluster everyone is alike, and the splits are there.
        keys = {"kind": "iid", "clients": clients, "test": "official", "validation": None}
        # From 1: a key of 0 at the end gives the same numbers as none.
        streams = [generator(seed, Purpose.PARTITION, stream, cluster + 1) for stream in (_STREAM, _VALIDATION_STREAM)]
        dealt.append(_by_wish(config.model_copy(update=keys), dataset, splits, None, *streams))
    names = [field.name for field in fields(_Dealt)]
    return _Dealt(*(np.concatenate([getattr(part, name) for part in dealt]) for name in names))


def share_out(weights: np.ndarray, totals: np.ndarray | int, rng: np.random.Generator) -> np.ndarray:
    """Share whole totals out over the last axis in proportion to whole weights.

    Every share is its exact value rounded down or up, right on average, and the shares add up to the total;
    where the weight is zero the share is. Systematic sampling: the running sums are cut at a random offset.

    >>> share_out(np.array([3, 0, 1]), 8, np.random.default_rng(0)).tolist()
    [6, 0, 2]
    """
    ends = np.cumsum(weights, axis=-1, dtype=np.int64)
    whole = ends[..., -1:]
    if (whole == 0).any():
        raise ValueError("nothing to share by: all weights of a row are zero")
    cuts = (ends * np.asarray(totals)[..., None] + rng.integers(0, whole)) // whole
    return np.diff(cuts, axis=-1, prepend=0)


@dataclass(frozen=True)
class _Wish:
    """Which classes clients want: `amounts` (clients, classes) in proportion.

    If only some classes will do they are `allowed`, and with `labels_each` the client must have each of them.
    """

    amounts: np.ndarray
    allowed: np.ndarray | None = None
    labels_each: int = 0


class _Deal:
    """Counts per client and class that respect sizes, pools and allowed classes."""

    wish: _Wish

    def __init__(self, config: PartitionConfig, pools: np.ndarray, rng: np.random.Generator) -> None:
        self.config = config
        self.pools = pools
        self.rng = rng

    def fill(self, sizes: np.ndarray, floors: np.ndarray) -> np.ndarray:
        """Give every client its size; where its classes are too scarce for that, less, but never below floor.

        Without partition.samples the sizes are only as even as could be, so nothing of these classes is left.
        """
        # Only if all at once leaves somebody below the floor, the floors are served first.
        for stages in ([sizes], [floors, sizes - floors]):
            fixed = self._start()
            for number, stage in enumerate(stages):
                deficit = stage - fixed.sum(1) if number == 0 else stage.copy()
                self._grow(deficit)
                if self.config.samples is not None or stage is floors:  # sizes that nobody asked for may give
                    self._reroute(deficit)
            counts = self.counts + fixed
            if (counts.sum(1) >= floors).all():
                return counts + self._left_over() if self.config.samples is None else counts
        raise self._failure(counts.sum(1), floors)

    def _left_over(self) -> np.ndarray:
        """Samples that the rounding of sizes left behind, for those who may have them; there are few."""
        extra = np.zeros_like(self.counts)
        allowed = self.wish.allowed
        for c in np.flatnonzero(self.spare):
            if allowed is not None and allowed[:, c].any():
                extra[:, c] = share_out(allowed[:, c].astype(np.int64), int(self.spare[c]), self.rng)
        return extra

    def _start(self) -> np.ndarray:
        """Begin anew; return what is fixed beforehand: one sample of each class that a client must have."""
        amounts, allowed = self.wish.amounts, self.wish.allowed
        fixed = np.zeros(amounts.shape, dtype=np.int64)
        if allowed is not None and self.wish.labels_each:
            fixed += allowed
        self.spare = self.pools - fixed.sum(0)
        self.counts = np.zeros_like(fixed)
        self.weights = _whole(amounts, int(self.pools.sum()))
        return fixed

    def _grow(self, deficit: np.ndarray) -> None:
        """Serve deficits by wish from the open pools; every pass ends it or empties a pool."""
        while True:
            rows = np.flatnonzero(deficit)
            open_pools = self.spare > 0
            weights = self.weights[rows] * open_pools
            # Whoever wants only what is gone gets what there is.
            lost = ~weights.any(axis=1)
            if lost.any():
                allowed = self.wish.allowed
                weights[lost] = self.spare if allowed is None else allowed[rows[lost]] * self.spare
            can = weights.any(axis=1)
            rows, weights = rows[can], weights[can]
            if not len(rows):
                return
            given = share_out(weights, deficit[rows], self.rng)
            asked = given.sum(0)
            for c in np.flatnonzero(asked > self.spare):
                given[:, c] = share_out(given[:, c], int(self.spare[c]), self.rng)
            self.counts[rows] += given
            deficit[rows] -= given.sum(1)
            self.spare -= given.sum(0)

    def _reroute(self, deficit: np.ndarray) -> None:
        """Free scarce classes by chains of exchanges (augmenting paths of a maximum flow, over classes).

        Someone who may have a plentiful class gives up a scarce one for it, and so on until the scarce class
        is one that a client in deficit may have. If no chain is left, no dealing whatever could serve more.
        """
        allowed = self.wish.allowed
        if allowed is None:
            return
        may = allowed.astype(np.int64)
        # movable[a, b]: units of a whose holders may have b. As floats, for the speed of BLAS; still exact.
        movable = self.counts.T.astype(np.float64) @ allowed.astype(np.float64) if deficit.any() else np.zeros(0)
        while deficit.any():
            path = _chain(may[deficit > 0].sum(axis=0) > 0, movable > 0, self.spare > 0)
            if path is None:
                return
            steps = list(pairwise(path))
            hungry = deficit * may[:, path[0]]
            edges = [int(movable[a, b]) for a, b in steps]
            amount = min(int(hungry.sum()), int(self.spare[path[-1]]), *edges)
            for a, b in reversed(steps):
                moved = share_out(self.counts[:, a] * may[:, b], amount, self.rng)
                self.counts[:, a] -= moved
                self.counts[:, b] += moved
            served = share_out(hungry, amount, self.rng)
            self.counts[:, path[0]] += served
            deficit -= served
            self.spare[path[-1]] -= amount
            for a in path:
                movable[a] = self.counts[:, a] @ may

    def _failure(self, got: np.ndarray, floors: np.ndarray) -> InputError:
        assert self.wish.allowed is not None  # whoever may have anything is always served
        client = int(np.argmax(got < floors))
        classes = np.flatnonzero(self.wish.allowed[client])
        rivals = int(self.wish.allowed[:, classes].any(axis=1).sum())
        config = self.config
        what = f"samples={config.samples}" if config.samples else f"clients={config.clients}"
        return InputError(
            f"partition.{what} cannot be met by partition.kind={config.kind}: client {client} needs"
            f" {floors[client]} samples of classes {classes.tolist()}, of which {rivals} clients share"
            f" {self.pools[classes].sum()}, and gets {got[client]}: use fewer samples, fewer clients or more"
            " classes per client"
        )


def _chain(sources: np.ndarray, edges: np.ndarray, targets: np.ndarray) -> list[int] | None:
    """Return a shortest path of classes from a source to a target, or None."""
    parent = {int(c): -1 for c in np.flatnonzero(sources)}
    queue = list(parent)
    for node in queue:
        if targets[node]:
            path = [node]
            while parent[path[-1]] >= 0:
                path.append(parent[path[-1]])
            return path[::-1]
        for following in np.flatnonzero(edges[node]):
            if int(following) not in parent:
                parent[int(following)] = node
                queue.append(int(following))
    return None


def _wish(
    config: PartitionConfig,
    clients: int,
    clusters: np.ndarray | None,
    pools: np.ndarray,
    rng: np.random.Generator,
) -> _Wish:
    """What each client wants. Without partition.samples, column c adds up to the whole pool of class c."""
    shape = (clients, len(pools))
    everything = config.samples is None
    if config.kind == "dirichlet":
        assert config.alpha is not None
        # The same gamma draws are a Dirichlet over classes for each client, or one over clients for each
        # class, by the axis they are normalised over. The second uses up every pool.
        logs = _log_gamma(rng, np.full(shape, config.alpha))
        return _Wish(_softmax(logs, axis=0) * pools if everything else _softmax(logs, axis=1))
    if config.kind == "cluster_dirichlet":
        assert clusters is not None and config.alpha_cluster is not None and config.alpha_client is not None
        members = np.bincount(clusters)
        within = _log_gamma(rng, np.full(shape, config.alpha_client))
        if not everything:
            between = _log_gamma(rng, np.full((len(members), len(pools)), config.alpha_cluster))
            return _Wish(_softmax(between[clusters] + within, axis=1))
        # A larger cluster gets more, in the mean; clusters of one size get what alpha_cluster says.
        alphas = np.repeat(config.alpha_cluster * (members / members.mean())[:, None], len(pools), axis=1)
        between = _softmax(_log_gamma(rng, alphas), axis=0)
        shares = [_softmax(within[clusters == k], axis=0) * between[k] for k in range(len(members))]
        return _Wish(np.concatenate(shares) * pools)  # clients stand in the order of their clusters
    if config.kind in ("classes", "cluster_classes"):
        allowed = _allowed_classes(config, clients, clusters, pools, rng)
        holders = np.maximum(allowed.sum(0), 1)
        amounts = allowed * (pools / holders) if everything else allowed.astype(np.float64)
        return _Wish(amounts, allowed, config.classes_client or config.classes or 0)
    return _Wish(np.ones(shape) * pools / clients)


def _allowed_classes(
    config: PartitionConfig,
    clients: int,
    clusters: np.ndarray | None,
    pools: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return which classes each client has (clients, classes), used about equally often."""
    present = np.flatnonzero(pools)
    key = "classes" if config.kind == "classes" else "classes_cluster"
    wanted: int = getattr(config, key)
    if wanted > len(present):
        raise InputError(
            f"partition.{key}={wanted} is more than the {len(present)} classes of the data: use at most {len(present)}"
        )
    allowed = np.zeros((clients, len(pools)), dtype=bool)
    if clusters is None:
        np.put_along_axis(allowed, present[_balanced_choice(clients, wanted, len(present), rng)], True, axis=1)
        own_key, own = "classes", wanted
    else:
        assert config.clusters is not None and config.classes_client is not None
        of_cluster = _distinct_choice(config.clusters, wanted, len(present), rng)
        for k, chosen in enumerate(of_cluster):
            members = np.flatnonzero(clusters == k)
            picks = present[chosen][_balanced_choice(len(members), config.classes_client, wanted, rng)]
            allowed[members[:, None], picks] = True
        own_key, own = "classes_client", config.classes_client
    holders = allowed.sum(0)
    if (holders > pools).any():
        c = int(np.argmax(holders - pools))
        raise InputError(
            f"partition.{own_key}={own} for partition.clients={clients} needs {holders[c]} samples of class"
            f" {c}, one per client that has it, and there are {pools[c]}: use at most"
            f" {max(1, clients * pools[c] // holders[c])} clients or fewer classes per client"
        )
    return allowed


def _balanced_choice(rows: int, count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Choose `count` different classes for each row, every class as often as any other, give or take one.

    Rows take consecutive places of a shuffled ring of classes; when a row ends where the ring began, the ring
    is shuffled anew.
    """
    length = classes // math.gcd(count, classes)
    rings = rng.permuted(np.tile(np.arange(classes), (-(-rows // length), 1)), axis=1)
    row = np.arange(rows)[:, None]
    chosen = rings[row // length, (row % length * count + np.arange(count)) % classes]
    return chosen[rng.permutation(rows)]


def _distinct_choice(clusters: int, count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Balanced choice in which no two clusters have the same classes: they would be one cluster."""
    if clusters > math.comb(classes, count):
        raise InputError(
            f"partition.clusters={clusters}: only {math.comb(classes, count)} clusters can differ with"
            f" partition.classes_cluster={count} of {classes} classes: use fewer clusters or another"
            " classes_cluster"
        )
    for _ in range(_DISTINCT_TRIES):
        chosen = np.sort(_balanced_choice(clusters, count, classes, rng), axis=1)
        if len(np.unique(chosen, axis=0)) == clusters:
            return chosen
    # Nearly all combinations are in use: distinct goes before balanced.
    seen: dict[tuple[int, ...], None] = {}
    for row in chosen:
        while tuple(row) in seen:
            row = np.sort(rng.permutation(classes)[:count])
        seen[tuple(row)] = None
    return np.array(list(seen))


def _cluster_of_clients(config: PartitionConfig, clients: int) -> np.ndarray | None:
    if config.clusters is None:
        return None
    sizes = config.cluster_sizes or [
        clients // config.clusters + (k < clients % config.clusters) for k in range(config.clusters)
    ]
    return np.repeat(np.arange(config.clusters), sizes)


def _transforms(config: PartitionConfig, dataset: Dataset, rng: np.random.Generator) -> tuple[Transform, ...]:
    if config.kind != "transforms":
        return ()
    assert config.clusters is not None
    if config.transform == "label_permutation":
        if dataset.classes < 20 and config.clusters > math.factorial(dataset.classes):
            raise InputError(
                f"partition.clusters={config.clusters}: {dataset.classes} classes have only"
                f" {math.factorial(dataset.classes)} permutations: use fewer clusters"
            )
        orders = {tuple(range(dataset.classes)): None}  # a dict keeps the order of drawing
        while len(orders) < config.clusters:
            orders[tuple(rng.permutation(dataset.classes).tolist())] = None
        return tuple(Transform(labels=order) for order in orders)
    if dataset.kind != "image":
        raise InputError(
            f"partition.transform={config.transform} needs images, and this source has {dataset.kind}"
            " samples: use partition.transform=label_permutation"
        )
    if config.transform == "inversion":
        return tuple(Transform(invert=k == 1) for k in range(config.clusters))
    angles = config.angles or [90.0 * k for k in range(config.clusters)]
    _, height, width = dataset.input_shape
    if height != width and any(round(angle, 6) % 180 for angle in angles):
        raise InputError(
            f"partition.transform=rotation needs square images, these are {width} x {height}: use"
            " partition.angles=[0, 180], or partition.transform=inversion or label_permutation"
        )
    return tuple(_rotation(angle) for angle in angles)


def _rotation(angle: float) -> Transform:
    turns, degrees = divmod(round(angle, 6) % 360, 90)
    return Transform(turns=int(turns), degrees=degrees)


def _check_sizes(config: PartitionConfig, clients: int, splits: Splits) -> None:
    """Refuse more clients than samples."""
    official, pool, held_out = config.test == "official", len(splits.pool), len(splits.test)
    most = min(pool, held_out) if official else pool // 2
    if clients > most:
        what = f"1 of the {pool} training and 1 of the {held_out} test" if official else f"2 of the {pool}"
        raise InputError(f"partition.clients={clients} cannot each get {what} samples: use at most {most} clients")
    _check_range(config, clients, pool + held_out)


def _check_range(config: PartitionConfig, clients: int, total: int) -> None:
    """Refuse a range of sizes whose products would not fit whole-number arithmetic."""
    if config.samples is not None and clients * config.samples[1] * total >= 2**62:
        raise InputError(
            f"partition.samples={config.samples} is too large: there are {total} samples in all, end the range there"
        )


def _drawn_sizes(
    config: PartitionConfig, clients: int, floor: int, pool: int, held_out: int, rng: np.random.Generator
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return each client's size in the pool (None: deal it all) and in the official test split."""
    official = config.test == "official"
    no_test = np.zeros(clients, np.int64)
    if config.samples is None:
        return None, no_test
    least, largest = config.samples
    needed = floor + official
    if least < needed:
        raise InputError(
            f"partition.samples={config.samples} is too few: a client of this partition needs at least"
            f" {needed} samples, so start the range at {needed}"
        )
    total = pool + held_out
    if clients * least > total:
        raise InputError(
            f"partition.samples={config.samples} for partition.clients={clients} needs at least"
            f" {clients * least} samples, there are {total}: use at most {total // least} clients or start"
            f" the range at {total // clients}"
        )
    sizes = rng.integers(least, largest, size=clients, endpoint=True)
    if sizes.sum() > total:
        sizes = least + share_out(sizes - least, total - least * clients, rng)
    if not official:
        return sizes, no_test
    # Test samples in the proportion of the source's own splits, within what both splits can give.
    free = sizes - needed
    at_most = min(held_out, clients + int(free.sum()))
    at_least = max(clients, int(sizes.sum()) - pool)
    if at_least > at_most:
        raise InputError(
            f"partition.samples={config.samples} for partition.clients={clients} needs at least {at_least}"
            f" test samples, the source has {held_out} for them: use fewer clients or samples, or a share"
            " such as partition.test=0.2"
        )
    tested = min(max(round(int(sizes.sum()) * held_out / total), at_least), at_most)
    test_sizes = np.ones(clients, np.int64)
    if tested > clients:
        test_sizes += share_out(free, tested - clients, rng)
    return sizes - test_sizes, test_sizes


def _raised(sizes: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """Raise every size to its floor, at the cost of the richest: the highest sizes are cut to one level."""
    missing = int(np.maximum(floor - sizes, 0).sum())
    if missing == 0:
        return sizes
    low, high = int(floor.max()), int(sizes.max())
    while low < high:  # the highest level that frees enough
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= missing else (low, level - 1)
    raised = np.maximum(np.minimum(sizes, low), floor)
    spare = int(sizes.sum() - raised.sum())
    raised[np.flatnonzero(sizes > low)[:spare]] += 1
    return raised


def _by_owner(
    config: PartitionConfig,
    dataset: Dataset,
    splits: Splits,
    rng: np.random.Generator,
    validation_rng: np.random.Generator,
) -> _Dealt:
    """One client per owner: all of its samples, or a draw of them where partition.samples sets a maximum.

    With a validation split of the source, who has no samples in it has none to validate on.
    """
    if dataset.owner is None or dataset.owner_names is None:
        raise InputError(
            f"partition.column={config.column}: this data was read without owners: partition.kind=natural"
            " needs data.source=mnist (column writer), parquet or text"
        )
    owners = len(dataset.owner_names)
    has_test = np.bincount(dataset.owner[splits.test], minlength=owners)
    has = np.bincount(dataset.owner[splits.pool], minlength=owners) + has_test
    least, most = config.samples or (2, max(2, int(has.max())))
    enough = has >= least
    what = f"at least {least} samples"
    if config.test == "official":
        enough &= (has_test > 0) & (has_test < has)
        what += " and some in each of the source's two splits"
    able = np.flatnonzero(enough)
    wanted = config.clients or max(1, len(able))
    if wanted > len(able):
        cure = (
            f"use at most {len(able)} clients"
            if len(able)
            else "use a share, such as partition.test=0.2, and a lower partition.samples"
        )
        raise InputError(
            f"partition.clients={wanted}: only {len(able)} of the {owners} owners in"
            f" partition.column={config.column} have {what}: {cure}"
        )
    if config.clients is not None:
        able = np.sort(rng.permutation(able)[: config.clients])
    number = np.full(owners, -1)
    number[able] = np.arange(len(able))
    client = number[dataset.owner]

    def shuffled(split: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        samples = rng.permutation(split[client[split] >= 0])
        return samples[np.argsort(client[samples], kind="stable")]

    samples = shuffled(np.union1d(splits.pool, splits.test), rng)
    sizes = has[able]

    def cut(samples: np.ndarray, sizes: np.ndarray, kept: np.ndarray) -> np.ndarray:
        return samples[_rank(sizes) < np.repeat(kept, sizes)]

    kept = np.minimum(sizes, most)
    if config.test != "official":
        share = _by_client_and_label(dataset, cut(samples, sizes, kept), kept)
        parts = _split(dataset, share, kept, config.test, rng)
    else:
        in_test = dataset.is_test[samples]
        n_test = has_test[able]
        n_train = sizes - n_test
        kept_test = np.clip(np.rint(n_test * (kept / sizes)).astype(np.int64), 1, most - 1)
        kept_train = np.minimum(n_train, most - kept_test)
        parts = (
            cut(samples[~in_test], n_train, kept_train),
            kept_train,
            cut(samples[in_test], n_test, kept_test),
            kept_test,
        )
    if not len(splits.validation):
        return _with_validation_share(config, dataset, parts, validation_rng)
    validation = shuffled(splits.validation, validation_rng)
    n_validation = np.bincount(client[validation], minlength=len(able))
    kept_validation = np.rint(n_validation * (kept / sizes)).astype(np.int64)
    return _Dealt(*parts, cut(validation, n_validation, kept_validation), kept_validation)


def _take(counts: np.ndarray, pool: np.ndarray, pool_labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Hand out actual samples: each class is shuffled and dealt in the order of clients. Sorted by client."""
    shuffled = rng.permutation(len(pool))
    shuffled = shuffled[np.argsort(pool_labels[shuffled], kind="stable")]
    sizes = np.bincount(pool_labels, minlength=counts.shape[1])
    dealt = pool[shuffled[_rank(sizes) < np.repeat(counts.sum(0), sizes)]]
    client = np.repeat(np.tile(np.arange(len(counts)), counts.shape[1]), counts.T.ravel())
    return dealt[np.argsort(client, kind="stable")]


def _split(
    dataset: Dataset, samples: np.ndarray, sizes: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Split each client's samples, which stand in the order of labels, so that both parts share their mix.

    The second part is this share of them, at least one, and leaves the first at least one; who has a single sample
    keeps it in the first.
    """
    labels = _count_labels(dataset, samples, sizes)
    n_taken = np.clip(np.rint(sizes * share).astype(np.int64), 1, sizes - 1)
    groups = labels.ravel()
    taken = _rank(groups) < np.repeat(share_out(labels, n_taken, rng).ravel(), groups)
    return samples[~taken], sizes - n_taken, samples[taken], n_taken


def _by_client_and_label(dataset: Dataset, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sort samples that are grouped by client also by label within each client; order is kept otherwise."""
    client = np.repeat(np.arange(len(sizes)), sizes)
    return samples[np.argsort(client * dataset.classes + dataset.labels[samples], kind="stable")]


def _count_labels(dataset: Dataset, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    cell = np.repeat(np.arange(len(sizes)), sizes) * dataset.classes + dataset.labels[samples]
    return np.bincount(cell, minlength=len(sizes) * dataset.classes).reshape(len(sizes), dataset.classes)


def _rank(sizes: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2, ... within each of consecutive groups of these sizes."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _partition(
    dealt: _Dealt,
    public: np.ndarray,
    true_cluster: np.ndarray | None = None,
    transforms: tuple[Transform, ...] = (),
    transform_of: np.ndarray | None = None,
) -> Partition:
    def flat(samples: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Within a client in the source's order: neighbours in memory, and no run of one label.
        client = np.repeat(np.arange(len(sizes)), sizes)
        return _smallest_index(samples[np.lexsort((samples, client))]), np.concatenate([[0], np.cumsum(sizes)])

    return Partition(
        *flat(dealt.train, dealt.n_train),
        *flat(dealt.test, dealt.n_test),
        *flat(dealt.validation, dealt.n_validation),
        _smallest_index(public),
        true_cluster,
        transforms,
        transform_of,
    )


def _smallest_index(samples: np.ndarray) -> np.ndarray:
    return samples.astype(np.int32 if len(samples) == 0 or samples.max() < 2**31 else np.int64)


def _whole(proportions: np.ndarray, largest_total: int) -> np.ndarray:
    """Scale each row of proportions to whole weights, as fine as `share_out` takes without overflow."""
    cells = proportions.shape[-1]
    bits = min(30, 61 - math.ceil(math.log2(cells + 1)) - math.ceil(math.log2(largest_total + 1)))
    peak = proportions.max(axis=-1, keepdims=True)
    return np.rint(proportions / np.where(peak > 0, peak, 1) * 2.0**bits).astype(np.int64)


def _log_gamma(rng: np.random.Generator, alpha: np.ndarray) -> np.ndarray:
    """Logarithms of gamma draws. For a small alpha the draws themselves are too small for a float.

    If G ~ Gamma(alpha + 1) and U is uniform, then G * U**(1 / alpha) ~ Gamma(alpha).
    """
    return np.log(rng.standard_gamma(alpha + 1)) + np.log1p(-rng.random(alpha.shape)) / alpha


def _softmax(logs: np.ndarray, axis: int) -> np.ndarray:
    weights = np.exp(logs - logs.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)
