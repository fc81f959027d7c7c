"""Clusters that help their members: held-out losses decide how many clusters there are.

Clients are joined to a tree by the similarity of their models. For every group in the tree, each member reports the
loss that the mean of the *other* members' models has on its own samples. These models were not trained on those
samples, so the loss is held out: a method that pulls members to their centre cannot make a useless split look useful.
(The tree should not depend on these samples either; see rayfl.methods.judging.) Splitting and merging are one
question: do the members of both halves have a lower loss with their half than with the whole group?
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from rayfl.clustering.cuts import Labels, in_order_of_first
from rayfl.clustering.gram import Floats
from rayfl.clustering.similarity import unit

#: How often clusters may be found where there are none: the level of all tests of one judgement together.
LEVEL = 0.01
#: The relative gain that clusters must have over the group that they divide.
GAIN = 0.1


@dataclass(frozen=True)
class Split:
    """The evidence about one group of the tree: should it be divided into the clusters found inside it?"""

    sizes: tuple[int, int]  # asked members of the two halves; all members if a half cannot be tested
    gain: float  # relative gain of the clusters inside the group, see `useful_clusters`
    score: float  # a z-score: how sure it is that members of both halves gain
    stands: bool


@dataclass(frozen=True)
class UsefulClusters:
    """The clusters that help, and the evidence for their number."""

    assignment: Labels  # (n,) 0, 1, ... in order of the first client
    splits: tuple[Split, ...]  # all groups of the tree that were tested
    limit: float  # what the score of a split must exceed
    supported: tuple[int, ...]  # numbers of clusters found with `gain`, twice `gain` and half of it
    asked: int  # clients whose losses are known

    @property
    def clusters(self) -> int:
        """The number of clusters."""
        return int(self.assignment.max(initial=0)) + 1

    @property
    def best(self) -> Split | None:
        """The split with the most evidence, also if it does not stand; None if nothing could be tested."""
        return max(self.splits, key=lambda split: (split.stands, split.score), default=None)


def groups_of_tree(tree: Floats) -> list[Labels]:
    """Return the members of the group that each row of scipy's tree makes, in the order of the halves.

    >>> [g.tolist() for g in groups_of_tree(np.array([[0.0, 2, 1, 2], [1, 3, 5, 3]]))]
    [[0, 2], [1, 0, 2]]
    """
    rows = len(tree) + 1
    members: list[Labels] = [np.array([row]) for row in range(rows)]
    for one, other in tree[:, :2].astype(np.int64):
        members.append(np.concatenate([members[one], members[other]]))
    return members[rows:]


def levels_of_tree(tree: Floats) -> list[list[int]]:
    """Return the rows of scipy's tree by level, such that the groups of one level have no member in common.

    >>> levels_of_tree(np.array([[0.0, 1, 1, 2], [2, 3, 2, 2], [4, 5, 9, 4]]))
    [[0, 1], [2]]
    """
    level = [0] * (len(tree) + 1)
    for one, other in tree[:, :2].astype(np.int64):
        level.append(1 + max(level[one], level[other]))
    found = np.array(level[len(tree) + 1 :])
    return [np.flatnonzero(found == depth).tolist() for depth in range(1, int(found.max(initial=0)) + 1)]


def useful_clusters(
    tree: Floats,
    losses: Floats,
    points: Floats,
    initial: Floats | None = None,
    level: float = LEVEL,
    gain: float = GAIN,
) -> UsefulClusters:
    """Return the clusters of a tree whose members are served better by their cluster than by a larger group.

    `losses[i, t]` is the loss of client i with the mean model of the other members of the group that row t of scipy's
    `tree` makes, or NaN if client i is not in the group or was not asked. `initial[i]` is the loss of client i with an
    untrained model.

    The tree is pruned from the leaves to the root. A group stays in one piece unless the clusters inside it have lower
    losses for members of both halves, by at least the share `gain`, and with significance `level` over all tests of
    the tree. The share is of the group's loss, or of what was learnt in the clusters (`initial` minus their loss) if
    that is less: where most of the loss cannot be avoided, a tenth of it is much. The gains of each half are tested by
    a t-test over its members; a half with fewer than two asked members is not tested. A client that is left alone
    joins the nearest cluster by the cosine of `points` (n, D).
    """
    start = np.full(len(points), np.inf) if initial is None else initial
    groups = groups_of_tree(tree)
    tested = _halves(tree, groups, losses)
    limit = float(scipy.stats.norm.isf(level / max(len(tested), 1)))
    chosen, splits = _pruned(tree, groups, tested, losses, start, limit, gain)
    others = [_pruned(tree, groups, tested, losses, start, limit, gain * factor)[0] for factor in (2.0, 0.5)]
    found = [_assigned(pieces, points) for pieces in (chosen, *others)]
    asked = int((~np.isnan(losses)).any(axis=1).sum())
    supported = tuple(sorted({int(labels.max()) + 1 for labels in found}))
    return UsefulClusters(found[0], splits, limit, supported, asked)


def agree(one: Labels, other: Labels, least: float = 0.9) -> bool:
    """Return whether two clusterings of the same clients are alike: an adjusted Rand index of at least `least`.

    >>> agree(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0])), agree(np.array([0, 0, 0, 0]), np.array([0, 0, 1, 1]))
    (True, False)
    """
    from sklearn.metrics import adjusted_rand_score  # takes half a second to import

    return bool(adjusted_rand_score(one, other) >= least)


def _halves(tree: Floats, groups: Sequence[Labels], losses: Floats) -> dict[int, tuple[Labels, Labels]]:
    """For each group with at least two asked members in each half: the asked members of both halves."""
    found = {}
    rows = len(tree) + 1
    for t, (one, other) in enumerate(tree[:, :2].astype(np.int64)):
        halves = [groups[half - rows] if half >= rows else np.array([half]) for half in (one, other)]
        asked = [half[~np.isnan(losses[half, t])] for half in halves]
        if min(len(half) for half in halves) >= 2 and min(len(half) for half in asked) >= 2:
            found[t] = (asked[0], asked[1])
    return found


def _pruned(
    tree: Floats,
    groups: Sequence[Labels],
    tested: dict[int, tuple[Labels, Labels]],
    losses: Floats,
    initial: Floats,
    limit: float,
    least: float,
) -> tuple[list[Labels], tuple[Split, ...]]:
    """The largest groups that stay in one piece, without groups of one client; and all splits that were tested."""
    rows = len(tree) + 1
    whole = np.ones(len(tree) + rows, bool)
    served = np.full(rows, np.nan)  # the loss of each client in its cluster so far
    splits = []
    for t, (one, other) in enumerate(tree[:, :2].astype(np.int64)):
        members, here = groups[t], losses[groups[t], t]
        if t in tested:
            halves = list(tested[t])
        else:  # a half cannot be tested, such as a single client: test all clients that are in a cluster so far
            asked = members[~np.isnan(here) & ~np.isnan(served[members])]
            halves = [asked] if not (whole[one] and whole[other]) and len(asked) >= 2 else []
        stands = False
        if halves:
            parts = [losses[half, t] - served[half] for half in halves]
            loss = float(sum(losses[half, t].sum() for half in halves))
            learnt = float(sum((initial[half] - served[half]).sum() for half in halves))
            scale = min(loss, max(learnt, 1e-9 * loss))
            gain = float(sum(part.sum() for part in parts)) / scale if scale > 0 else 0.0
            score = float(sum(_score(part) for part in parts) / np.sqrt(len(parts)))
            stands = gain >= least and score > limit and all(part.mean() > 0 for part in parts)
            sizes = [len(h) for h in halves] if len(halves) == 2 else [_size(groups, h, rows) for h in (one, other)]
            splits.append(Split((sizes[0], sizes[1]), gain, score, stands))
        whole[rows + t] = not stands
        # A client in none of the clusters inside is served by the whole group until it joins a cluster.
        served[members] = np.where(np.isnan(served[members]), here, served[members]) if stands else here
    pieces, open_groups = [], [len(whole) - 1] if len(tree) else []
    while open_groups:
        group = open_groups.pop()
        if not whole[group]:
            open_groups += tree[group - rows, :2].astype(np.int64).tolist()
        elif group >= rows:
            pieces.append(groups[group - rows])
    return pieces, tuple(splits)


def _size(groups: Sequence[Labels], half: int, rows: int) -> int:
    """Return the number of members of a half: a single row, or the group of a row of the tree."""
    return 1 if half < rows else len(groups[half - rows])


def _score(gains: Floats) -> float:
    """The t-test of gains over clients as a z-score, so that the scores of two halves can be added up."""
    spread = gains.std(ddof=1) / np.sqrt(len(gains))
    if spread == 0:
        return 0.0 if gains.mean() == 0 else float(np.copysign(_SUREST, gains.mean()))
    tail = scipy.stats.t.sf(gains.mean() / spread, len(gains) - 1)
    return float(np.clip(scipy.stats.norm.isf(tail), -_SUREST, _SUREST))


#: A bound for scores, which are infinite where a probability is rounded to 0 or 1.
_SUREST = 30.0


def _assigned(pieces: Sequence[Labels], points: Floats) -> Labels:
    """Number the pieces; clients in none of them join the nearest one."""
    labels = np.full(len(points), -1)
    for number, piece in enumerate(pieces):
        labels[piece] = number
    alone = np.flatnonzero(labels < 0)
    if not len(pieces):
        return np.zeros(len(points), np.int64)
    if len(alone):
        directions = unit(points)
        centres = np.stack([directions[piece].mean(axis=0) for piece in pieces])
        labels[alone] = (directions[alone] @ centres.T).argmax(axis=1)
    return in_order_of_first(labels)
