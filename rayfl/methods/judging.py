"""When the number of clusters is judged, by which clients, and what these clients are asked.

For a judgement, the server asks some clients, whether or not they are in the round's cohort: each client reports the
loss that the mean of the other members of a group has on its own samples. This is counted as traffic. Nothing here is
for one method only; see rayfl.clustering.useful for the rule.

The others' models have not trained on the client's samples. But its own model has trained on its training samples, and
which group it is in depends on that model: clients that by chance have the same few labels in training are in one
group, and have low losses there on these labels. Validation samples (`partition.validation`) were drawn apart, so such
a chance does not repeat in them. So a client with few training samples is asked about its validation samples, if it has
some. With enough training samples that chance does not matter, and there are more of them: the losses are surer.
"""

from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from rayfl.client.handed import Each, Sent
from rayfl.clustering import NO_CLUSTER, UsefulClusters, agree, groups_of_tree, levels_of_tree, unit
from rayfl.federation.interface import Federation
from rayfl.federation.ledger import FORWARD
from rayfl.federation.traffic import FLOAT_BYTES

if TYPE_CHECKING:
    from rayfl.client.client import Client, Known

#: A judgement asks at most this many clients; the others join the clusters that are found.
MOST_JUDGED = 256
#: Each of these clients computes its losses on at most this many of its samples.
MOST_SAMPLES = 64
#: With fewer training samples than this, chance in the labels of clients can look like a cluster.
FEW_SAMPLES = 20
#: The maximum number of group means that are held at once.
HELD = 64
#: The verdict "one cluster" does not count before clients' own training has lowered their losses by this fraction:
#: without training, all clients are alike.
LEARNT = 0.25
#: If judgements keep differing, or clients learn too little, the judgement with this number decides the first clusters.
LAST_WORD = 4


@dataclass
class Judging:
    """What the server remembers of its judgements."""

    trained: np.ndarray  # (m,) how often each client has trained
    next_at: int  # the next judgement is due when `trainings` is this large
    proposal: np.ndarray  # (m,) the clusters that the last judgement proposed; -1: not judged
    judgements: int = 0
    decided: bool = False  # whether there are clusters that clients are pulled to
    verdict: dict[str, Any] = field(default_factory=dict)  # the last judgement, as it is reported
    round: int = 0  # the round of the last judgement

    @classmethod
    def of(cls, clients: int, first: int) -> "Judging":
        """Begin: nobody has trained, and the first judgement is due after `first` trainings."""
        return cls(np.zeros(clients, np.int64), first, np.full(clients, NO_CLUSTER))

    def trainings(self, present: np.ndarray) -> int:
        """Return the number of trainings that enough of the present clients have reached; see `enough_of`."""
        enough = enough_of(len(present))
        return int(np.sort(self.trained[present])[-enough]) if enough else 0

    def eligible(self, present: np.ndarray) -> np.ndarray:
        """Return the clients that have trained often enough to be judged now: at least half of `trainings` times."""
        return present[2 * self.trained[present] >= max(self.trainings(present), 1)]

    def decide(
        self,
        sample: np.ndarray,
        found: UsefulClusters,
        progress: np.ndarray,
        current: np.ndarray,
        every: int,
        trainings: int,
    ) -> bool:
        """Record a judgement by these clients; return whether its clusters are to be used from now on.

        Evidence grows with training. With few data, one judgement may be wrong by chance, but two are seldom wrong in
        the same way. So a judgement counts only if it repeats the one before, and "one cluster" only if clients have
        learnt something; until then the verdict is "not yet". The pull to the centres begins with the first judgement
        that counts, even if it finds one cluster. The last two columns of `progress` are the clients' losses on their
        training samples before and after their own training; `current` are the clusters in use.
        """
        before, after = progress[:, -2:].sum(axis=0)
        learnt = float(1 - after / before) if before > 0 else 0.0
        known = self.proposal[sample] != NO_CLUSTER
        repeated = bool(known.sum() >= 2) and agree(self.proposal[sample][known], found.assignment[known])
        same = len(np.unique(current[sample])) == found.clusters and agree(current[sample], found.assignment)
        self.judgements += 1
        early = found.clusters == 1 and learnt < LEARNT
        use = (repeated and not early) or (not self.decided and self.judgements >= LAST_WORD)
        if self.decided and same:
            state, use = "confirmed", False
        elif use:
            state, self.decided = ("changed" if self.decided else "found"), True
        else:
            state = "change waits for the next judgement" if self.decided else "not yet"
        self.proposal = np.full(len(self.proposal), NO_CLUSTER)
        if not early:
            self.proposal[sample] = found.assignment
        self.next_at = trainings + min(trainings, every)
        best = found.best
        self.verdict = {
            "verdict": state,
            "clusters": found.clusters,
            "supported": list(found.supported),
            "score": None if best is None else round(best.score, 3),
            "limit": round(found.limit, 3),
            "gain": None if best is None else round(best.gain, 4),
            "learnt": round(learnt, 4),
            "candidates": len(found.splits),
            "asked": found.asked,
            "trainings": trainings,
        }
        return use


def enough_of(clients: int) -> int:
    """Return how many of these clients must have trained often enough: half, but at most MOST_JUDGED."""
    return min(ceil(clients / 2), MOST_JUDGED)


def rounds_until(trainings: int, clients: int, cohort: int) -> int:
    """Return about how many rounds it takes until enough clients have trained this often, with random cohorts.

    >>> rounds_until(10, 20, 20), rounds_until(10, 10_000, 100)
    (10, 484)
    """
    if cohort >= clients:
        return trainings
    wanted, share = enough_of(clients) / clients, cohort / clients
    low, high = trainings, ceil(4 * trainings / share)
    while low < high:
        middle = (low + high) // 2
        if scipy.stats.binom.sf(trainings - 1, middle, share) >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def stratified(points: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of at most `most` rows of `points` (n, D), with some rows of each small group that differs.

    A quarter of the rows are drawn one after the other, with probabilities by the squared distance from the rows drawn
    before (as in k-means++). Each drawn row brings its three nearest rows, so that no group has only one row.
    """
    if len(points) <= most:
        return np.arange(len(points))
    directions = unit(points)
    taken = np.zeros(len(points), bool)
    apart = np.full(len(points), 2.0)
    while taken.sum() < most:
        weights = np.where(taken, 0.0, apart**2) + 1e-12 * ~taken
        row = int(rng.choice(len(points), p=weights / weights.sum()))
        distance = np.clip(1.0 - directions @ directions[row], 0.0, 2.0)
        apart = np.minimum(apart, distance)
        near = np.argsort(np.where(taken, np.inf, distance), kind="stable")
        taken[near[: min(4, most - int(taken.sum()))]] = True
    return np.flatnonzero(taken)


def held_out_losses(
    fed: Federation,
    clients: np.ndarray,
    tree: np.ndarray,
    beside: np.ndarray | None = None,
    split: "Known | None" = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Ask clients for their losses under the mean of the other members of each group of a tree (n, n - 1).

    Row i belongs to `clients[i]`, which is leaf i of scipy's tree; `clients` are in rising order. losses[i, t] is NaN
    where leaf i is not in the group that row t of the tree makes. Clients are asked about samples of `split`; if it is
    None, about those that `asked_about` chooses.

    Also return the progress (n, 3) of the clients: their losses under the initial model, on the samples that they are
    asked about and on training samples, and under their own models on training samples. The outputs of the model
    `beside`, if given, are added to those of every model (CAM).
    """
    groups, extra = groups_of_tree(tree), [] if beside is None else [beside]
    losses = np.full((len(clients), len(tree)), np.nan)
    progress = fed.map(clients, partial(first_and_last_loss, split=split), *extra, passes=2 * FORWARD)
    answer = partial(losses_of_others, split=split)
    in_order = [row for level in levels_of_tree(tree) for row in level]
    for first in range(0, len(in_order), HELD):
        rows = in_order[first : first + HELD]
        members = np.zeros((fed.clients, len(rows)), bool)
        for column, row in enumerate(rows):
            members[clients[groups[row]], column] = True
        asked = np.flatnonzero(members.any(axis=1))
        sizes = members.sum(axis=0)
        # A client receives the means of the groups that it is in, and no others.
        means = Sent((_means(fed, members), sizes), fed.layout.size * FLOAT_BYTES, int(sizes.sum()))
        found = fed.map(asked, answer, means, Each(members, np.arange(fed.clients)), *extra, passes=FORWARD)
        place = np.searchsorted(clients, asked)
        losses[np.ix_(place, np.array(rows))] = found
    return losses, progress


def _means(fed: Federation, members: np.ndarray) -> np.ndarray:
    """Return the mean model of each column of `members` (clients, groups); groups may have members in common."""
    means = np.zeros((members.shape[1], fed.layout.size), np.float32)
    waiting = np.arange(members.shape[1])
    while len(waiting):  # take as many groups at once as have no member in common
        apart, taken = [], np.zeros(len(members), bool)
        for column in waiting:
            if not (taken & members[:, column]).any():
                apart.append(column)
                taken |= members[:, column]
        who = np.flatnonzero(taken)
        means[apart] = fed.mean_by_cluster(who, members[who][:, apart].argmax(axis=1), len(apart))
        waiting = np.setdiff1d(waiting, apart)
    return means


def first_and_last_loss(client: "Client", beside: np.ndarray | None = None, split: "Known | None" = None) -> np.ndarray:
    """Return the loss under the initial model, where the client is asked, and both losses on its training samples.

    These two are under the initial model and under the client's own model.
    """
    before, after = client.losses(np.stack([client.initial, client.model()]), beside, MOST_SAMPLES).mean(axis=1)
    asked = split or asked_about(client)
    if asked == "train":
        return np.array([before, before, after])
    return np.array([client.losses(client.initial, beside, MOST_SAMPLES, asked).mean(), before, after])


def asked_about(client: "Client") -> "Known":
    """Return `validation` for a client that has few training samples and some for validation, else `train`."""
    few = len(client.samples()[1]) < FEW_SAMPLES
    return "validation" if few and len(client.samples("validation")[1]) else "train"


def losses_of_others(
    client: "Client",
    groups: tuple[np.ndarray, np.ndarray],
    member: np.ndarray,
    beside: np.ndarray | None = None,
    split: "Known | None" = None,
) -> np.ndarray:
    """Return the client's losses under the means of groups without itself, given the means and the sizes of all groups.

    For groups without the client, the loss is NaN.
    """
    means, sizes = groups
    found = np.full(len(member), np.nan)
    own, of_groups = client.model(), means[member]
    others = of_groups + (of_groups - own) / (sizes[member, None] - 1).astype(np.float32)
    found[member] = client.losses(others, beside, MOST_SAMPLES, split or asked_about(client)).mean(axis=1)
    return found
