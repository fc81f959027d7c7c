"""Which clients take part in a round, and which are lost during it: drawn from the seed and the round's number only."""

import numpy as np

from rayfl.config import Config
from rayfl.federation.presence import Presence
from rayfl.randomness import Purpose, generator
from rayfl.simulation.presence import cohort_size


def draw_cohort(config: Config, presence: Presence, n_train: np.ndarray, number: int) -> np.ndarray:
    """Return the clients of a round, sorted: drawn uniformly, or one by one in proportion to their training samples."""
    available, size = presence.available(number), cohort_size(config, presence, number)
    chances = None
    if config.participation.kind == "by_size":
        chances = n_train[available] / n_train[available].sum()
    rng = generator(config.seed, Purpose.COHORT, number)
    return np.sort(rng.choice(available, size, replace=False, p=chances))


def survives(config: Config, cohort: np.ndarray, clients: int, number: int, least: int) -> np.ndarray:
    """Return which clients of a cohort are not lost during the round.

    Each client has its own random number, which does not depend on the rest of the cohort. If fewer than `least`
    clients were left, the `least` clients with the smallest numbers stay, because the method needs that many.
    """
    if not config.participation.dropout:
        return np.ones(len(cohort), bool)
    draws = generator(config.seed, Purpose.LOST_UPDATES, number).random(clients)[cohort]
    stay = draws < 1 - config.participation.dropout
    if stay.sum() < least:
        stay[np.argsort(draws, kind="stable")[:least]] = True
    return stay
