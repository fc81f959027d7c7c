"""Kinds that differ in the labels that clients have: iid, dirichlet, classes."""

import math

import numpy as np

from rayfl.config.partition import ClassesPartition, DirichletPartition, IidPartition, SizedPartition
from rayfl.data.dataset import Dataset
from rayfl.data.partition.counting import by_client_and_label, share_out, split_off
from rayfl.data.partition.dealing import Deal, Wish, take, whole
from rayfl.data.partition.kind import PartitionKind, Streams
from rayfl.data.partition.quantity import AskedSizes, check_sizes, drawn_sizes, raised
from rayfl.data.partition.splits import Dealt, Splits
from rayfl.errors import InputError


class ByLabels(PartitionKind):
    """Deals by what clients want: which classes, in what proportions, and how many samples."""

    config: SizedPartition
    #: Whether classes matter; if not, samples are dealt from one pool.
    by_class = True
    #: Sizes that a quantity part asks for, in place of partition.samples.
    asked: AskedSizes | None = None

    @property
    def sized(self) -> bool:
        """Whether partition.samples or a quantity part asks for sizes."""
        return self.asked is not None or super().sized

    @property
    def classes_each(self) -> int:
        """How many classes a client has, with at least one sample of each; 0: any number of classes."""
        return 0

    def wish(self, clients: int, pools: np.ndarray, rng: np.random.Generator) -> Wish:
        """Return what each client wants; `pools` has the number of samples of each class.

        Without partition.samples, column c of the amounts adds up to the whole pool of class c.
        """
        raise NotImplementedError

    def settle(self, dataset: Dataset, splits: Splits, streams: Streams) -> Splits:
        """Refuse labels that are numbers where there must be classes, and more clients than samples."""
        if self.by_class and dataset.targets == "number":
            raise InputError(
                f"{self.place}.kind={self.config.kind} deals by classes, and the labels of these data are numbers: use"
                f" {self.place}.kind=iid, partition.kind=natural, or transforms by rotation or inversion"
            )
        assert self.config.clients is not None  # the config fills it in
        check_sizes(self.config, self.config.clients, splits)  # before any array over clients is made
        return splits

    def deal(self, dataset: Dataset, splits: Splits, streams: Streams) -> Dealt:
        """Deal the pool by wish, then the source's own splits by the labels that clients got from the pool."""
        config, rng = self.config, streams.main
        clients, pool, official = config.clients, splits.pool, config.test == "official"
        assert clients is not None
        floor = max(self.classes_each, 1 if official else 2)
        sizes, test_sizes = drawn_sizes(config, clients, floor, len(pool), len(splits.test), rng, self.asked)
        labels = dataset.class_of[pool].astype(np.int64) if self.by_class else np.zeros(len(pool), np.int64)
        deal = Deal(config, np.bincount(labels, minlength=dataset.classes if self.by_class else 1), rng, self.sized)
        deal.wish = self.wish(clients, deal.pools, rng)
        floors = np.maximum(floor, self._fewest(clients) - test_sizes)
        if sizes is None:
            total = int(deal.pools[(deal.wish.amounts > 0).any(axis=0)].sum())
            sizes = raised(share_out(whole(deal.wish.amounts.sum(1), total), total, rng), floors)
        counts = deal.fill(sizes, floors)
        n_samples = counts.sum(1)
        samples = by_client_and_label(dataset, take(counts, pool, labels, rng), n_samples)
        only_known = self.classes_each > 0
        if config.test != "official":
            parts = split_off(dataset, samples, n_samples, config.test, rng)
            return self._with_validation(dataset, splits, parts, n_samples, streams, only_known)
        if not self.sized:
            test_sizes = share_out(n_samples, len(splits.test) - clients, rng) + 1
        floors = np.maximum(1, self._fewest(clients) - n_samples)
        trained = (samples, n_samples)
        test = self.deal_like(dataset, splits.test, trained, test_sizes, floors, rng, only_known)
        return self._with_validation(dataset, splits, (*trained, *test), n_samples, streams, only_known)

    def _fewest(self, clients: int) -> np.ndarray:
        """Return how many samples, training and test together, each client must have at least."""
        if self.asked is not None:
            return self.asked.sizes if self.asked.exact else np.zeros(clients, np.int64)
        return np.full(clients, 0 if self.config.samples is None else self.config.samples[0])


class Iid(ByLabels):
    """Every client draws from all samples alike."""

    name = "iid"
    config: IidPartition
    by_class = False

    def wish(self, clients: int, pools: np.ndarray, rng: np.random.Generator) -> Wish:
        """Return equal parts of everything."""
        return Wish(np.ones((clients, len(pools))) * pools / clients)


class Dirichlet(ByLabels):
    """Each client's mix of labels is a Dirichlet draw."""

    name = "dirichlet"
    config: DirichletPartition

    def wish(self, clients: int, pools: np.ndarray, rng: np.random.Generator) -> Wish:
        """Return the shares of one Dirichlet draw per client or, by default if all samples are dealt, per class."""
        # The axis over which the gamma draws are normalised decides: a Dirichlet draw over classes for each client, or
        # one over clients for each class. The second uses up every pool.
        logs = log_gamma(rng, np.full((clients, len(pools)), self.config.alpha))
        over = self.config.over or ("classes" if self.sized else "clients")
        return Wish(softmax(logs, axis=0) * pools if over == "clients" else softmax(logs, axis=1))


class ByClasses(ByLabels):
    """Kinds whose clients have samples of some classes only."""

    def allowed(self, clients: int, present: np.ndarray, pools: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return which of the `present` classes each client has (clients, classes)."""
        raise NotImplementedError

    #: The keys that say how many classes there are to choose, and how many of them a client has.
    keys: tuple[str, str]

    @property
    def classes_each(self) -> int:
        """How many classes a client has."""
        return int(getattr(self.config, self.keys[1]))

    def wish(self, clients: int, pools: np.ndarray, rng: np.random.Generator) -> Wish:
        """Return equal parts of the classes that a client has."""
        present = np.flatnonzero(pools)
        key, own_key = self.keys
        wanted: int = getattr(self.config, key)
        if wanted > len(present):
            raise InputError(
                f"{self.place}.{key}={wanted} is more than the {len(present)} classes of the data: use at most"
                f" {len(present)}"
            )
        allowed = self.allowed(clients, present, pools, rng)
        holders = allowed.sum(0)
        if (holders > pools).any():
            c = int(np.argmax(holders - pools))
            raise InputError(
                f"{self.place}.{own_key}={self.classes_each} for partition.clients={clients} needs {holders[c]} samples"
                f" of class {c}, one per client that has it, and there are {pools[c]}: use at most"
                f" {max(1, clients * pools[c] // holders[c])} clients or fewer classes per client"
            )
        amounts = allowed.astype(np.float64) if self.sized else allowed * (pools / np.maximum(holders, 1))
        return Wish(amounts, allowed, self.classes_each)


class Classes(ByClasses):
    """Each client has samples of a few classes, which are used equally often."""

    name = "classes"
    config: ClassesPartition
    keys = ("classes", "classes")

    def allowed(self, clients: int, present: np.ndarray, pools: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose each client's classes."""
        chosen = balanced_choice(clients, self.config.classes, len(present), rng)
        allowed = np.zeros((clients, len(pools)), dtype=bool)
        np.put_along_axis(allowed, present[chosen], True, axis=1)
        return allowed


def balanced_choice(rows: int, count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Choose `count` different classes for each row, every class as often as any other, give or take one.

    Rows take consecutive places of a shuffled ring of classes; when a row ends where the ring began, the ring
    is shuffled again.
    """
    length = classes // math.gcd(count, classes)
    rings = rng.permuted(np.tile(np.arange(classes), (-(-rows // length), 1)), axis=1)
    row = np.arange(rows)[:, None]
    chosen = rings[row // length, (row % length * count + np.arange(count)) % classes]
    return chosen[rng.permutation(rows)]


def log_gamma(rng: np.random.Generator, alpha: np.ndarray) -> np.ndarray:
    """Logarithms of gamma draws. For a small alpha the draws themselves are too small for a float.

    If G ~ Gamma(alpha + 1) and U is uniform, then G * U**(1 / alpha) ~ Gamma(alpha).
    """
    return np.log(rng.standard_gamma(alpha + 1)) + np.log1p(-rng.random(alpha.shape)) / alpha


def softmax(logs: np.ndarray, axis: int) -> np.ndarray:
    """Return shares that add up to 1 over an axis, from their logarithms up to a constant."""
    weights = np.exp(logs - logs.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)
