"""How testing is divided into forward passes. Only plain arrays: the server uses this module and has no torch."""

from typing import Literal

import numpy as np

#: Samples per forward pass. Changing it may change bits: a network's output for a sample may depend on its batch.
CHUNK = 512

Combine = Literal["logits", "probabilities"]

#: The part of a client's samples that models are tested on.
Split = Literal["test", "validation"]


def plan_groups(choice: np.ndarray, sizes: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Divide clients into groups that are tested in one pass: (model, positions) with about CHUNK samples each.

    The result depends only on the arguments, so it is the same for any number of actors.

    >>> [(k, g.tolist()) for k, g in plan_groups(np.array([0, 1, 0]), np.array([300, 300, 300]))]
    [(0, [0, 2]), (1, [1])]
    """
    groups = []
    for model in np.unique(choice):
        members = np.flatnonzero(choice == model)
        ends = np.cumsum(sizes[members])
        cuts = np.unique(np.searchsorted(ends, np.arange(CHUNK, ends[-1] + CHUNK, CHUNK), side="left") + 1)
        groups += [(int(model), part) for part in np.split(members, cuts[cuts < len(members)])]
    return groups
