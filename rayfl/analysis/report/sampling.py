"""Which of many clients are shown: a few of each group, the same ones every time a page is created."""

import numpy as np

_SEED = 20


def stratified(groups: np.ndarray, most: int) -> np.ndarray:
    """Return the sorted positions of at most `most` members, each group in proportion to its size.

    Every group has at least one member, as long as there are no more groups than `most`.

    >>> stratified(np.array([0, 0, 0, 0, 1, 1]), 3).tolist()
    [0, 1, 4]
    """
    if len(groups) <= most:
        return np.arange(len(groups))
    _, member_of, sizes = np.unique(groups, axis=0, return_inverse=True, return_counts=True)
    member_of = member_of.reshape(-1)
    wanted = sizes * (most / len(groups))
    quota = np.maximum(1, np.floor(wanted)).astype(int)
    while quota.sum() > most:  # many tiny groups: take from the group that is furthest above its share
        above = np.where(quota > 1, quota - wanted, quota - 2.0 * most)
        if (quota <= 1).all():
            above = -sizes.astype(float)
            above[quota == 0] = -np.inf
        quota[np.argmax(above)] -= 1
    for group in np.argsort(quota - wanted, kind="stable")[: most - quota.sum()]:
        quota[group] = min(quota[group] + 1, sizes[group])
    order = np.random.default_rng(_SEED).permutation(len(groups))
    order = order[np.argsort(member_of[order], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(groups)) - np.repeat(starts, sizes)
    return np.sort(order[rank < np.repeat(quota, sizes)])


def said(shown: int, of: int, what: str = "clients") -> str:
    """Return a caption's sentence about a sample; empty if all are shown.

    >>> said(10, 10), said(10, 2000)
    ('', ' Shown are 10 of 2,000 clients, drawn at random from each group in proportion to its size.')
    """
    if shown >= of:
        return ""
    return f" Shown are {shown:,} of {of:,} {what}, drawn at random from each group in proportion to its size."
