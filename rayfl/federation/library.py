"""Functions for `fed.map` that several methods use, and their costs. Functions of one method are in its own file."""

from typing import TYPE_CHECKING

import numpy as np

from rayfl.client.handed import MODEL, Each, Models
from rayfl.clustering.similarity import squared_distances
from rayfl.federation.interface import Federation
from rayfl.federation.ledger import FORWARD
from rayfl.federation.traffic import FLOAT_BYTES

if TYPE_CHECKING:
    from rayfl.client.client import Client


def losses(fed: Federation, clients: np.ndarray, stack: np.ndarray, partner: Models | None = None) -> np.ndarray:
    """Return the mean loss per sample of every model of the stack on each client's training data (n, K).

    With `partner`, the logits of the client's partner model are added to those of every model of the stack.
    """
    beside = [] if partner is None else [Each(partner.stack, partner.choice)]
    passes = (len(stack) + len(beside)) * FORWARD
    return fed.map(clients, _losses, stack, *beside, slot=None, passes=passes, result_bytes=len(stack) * FLOAT_BYTES)


def shares_of_least_loss(fed: Federation, clients: np.ndarray, stack: np.ndarray) -> np.ndarray:
    """Return the share of each client's training samples on which each model has the least loss (n, K)."""
    passes, each = len(stack) * FORWARD, len(stack) * FLOAT_BYTES
    return fed.map(clients, _shares_of_least_loss, stack, slot=None, passes=passes, result_bytes=each)


def distances(fed: Federation, clients: np.ndarray, points: np.ndarray, slot: str = MODEL) -> np.ndarray:
    """Return the squared L2 distance of each client's latest parameters from each of `points` (n, K).

    This stands for a computation on the server, with whole models that the clients have sent.
    """
    return fed.map(clients, _distances, points[:, : fed.layout.parameters], slot=slot, at_server=True)


def _losses(client: "Client", stack: np.ndarray, beside: np.ndarray | None = None) -> np.ndarray:
    return client.losses(stack, beside).mean(axis=1)


def _shares_of_least_loss(client: "Client", stack: np.ndarray) -> np.ndarray:
    each = client.losses(stack)
    return np.bincount(each.argmin(axis=0), minlength=len(stack)) / each.shape[1]


def _distances(client: "Client", points: np.ndarray) -> np.ndarray:
    return squared_distances(client.model()[None, : client.layout.parameters], points)[0]
