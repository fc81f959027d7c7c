"""Clients that change cluster at given rounds: suddenly, gradually, or there and back."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from rayfl.config.composed import DriftEvent


class Move(NamedTuple):
    """From this round on, these clients are in these clusters."""

    round: int
    clients: np.ndarray
    clusters: np.ndarray


class _Step(NamedTuple):
    """One round of an event: which clients change cluster, and whether they go back."""

    round: int
    event: int
    clients: np.ndarray
    back: bool


def moves(
    events: Sequence[DriftEvent], true_cluster: np.ndarray, clusters: int, rngs: Sequence[np.random.Generator]
) -> list[Move]:
    """Return who changes cluster when, in the order of rounds; each event draws from its own generator.

    >>> swap = DriftEvent(round=5, share=1.0, clusters=[0])
    >>> moves([swap], np.array([0, 0, 1]), 2, [np.random.default_rng(0)])
    [Move(round=5, clients=array([0, 1]), clusters=array([1, 1]))]
    """
    steps: list[_Step] = []
    offsets: list[np.ndarray] = []  # how far a client's cluster number moves, where this is drawn
    for number, (event, rng) in enumerate(zip(events, rngs, strict=True)):
        who = _chosen(event, true_cluster, rng)
        offsets.append(rng.integers(1, clusters, size=len(true_cluster)))
        steps += _steps(event, number, who, rng)
    now = true_cluster.copy()
    before = [now.copy() for _ in events]  # the clusters that an event took its clients from
    found: list[Move] = []
    steps.sort(key=lambda step: step[:2])
    for at, of_round in groupby(steps, key=lambda step: step.round):
        then = now.copy()
        for step in of_round:
            who = step.clients
            if step.back:
                now[who] = before[step.event][who]
            else:
                before[step.event][who] = now[who]
                now[who] = _target(events[step.event], now[who], offsets[step.event][who], clusters)
        changed = np.flatnonzero(now != then)
        if len(changed):
            found.append(Move(at, changed, now[changed]))
    return found


def _chosen(event: DriftEvent, true_cluster: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the clients of an event: a share of its clusters' clients, spread over these clusters, at least one."""
    order = rng.permutation(len(true_cluster))
    order = order[np.argsort(true_cluster[order], kind="stable")]
    if event.clusters is not None:
        order = order[np.isin(true_cluster[order], event.clusters)]
    steps = np.floor(np.arange(len(order) + 1) * event.share + 1e-9)
    chosen = np.diff(steps) > 0
    if not chosen.any():
        chosen[0] = True
    return np.sort(order[chosen])


def _steps(event: DriftEvent, number: int, who: np.ndarray, rng: np.random.Generator) -> list[_Step]:
    first = event.round or event.every
    assert first is not None  # the config says one of them
    if event.every is not None:
        return [_Step(first + turn * event.every, number, who, turn % 2 == 1) for turn in range(event.turns)]
    if event.until is None:
        return [_Step(first, number, who, False)]
    rounds = rng.integers(first, event.until, size=len(who), endpoint=True)
    return [_Step(int(at), number, who[rounds == at], False) for at in np.unique(rounds)]


def _target(event: DriftEvent, now: np.ndarray, offsets: np.ndarray, clusters: int) -> np.ndarray:
    if event.to == "next":
        return (now + 1) % clusters
    if event.to == "random":
        return (now + offsets) % clusters
    to = np.array(event.to)
    return np.full_like(now, to[0]) if len(to) == 1 else to[now]
