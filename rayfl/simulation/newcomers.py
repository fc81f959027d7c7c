"""Newcomers: assigned by the method, then tested at once and after rounds of fine-tuning on their own data.

Fine-tuning starts from the models that the method gives a newcomer, and changes no state of the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.client.handed import EvalModels, Mixture, Models, Overlay, Personal, Sent
from rayfl.methods.method import FINE_TUNING, Method

if TYPE_CHECKING:
    from rayfl.client.client import Client

Columns = dict[str, Any]


@dataclass(frozen=True)
class Newcomers:
    """The clients that arrived in a round: columns with a row per client and number of fine-tuning rounds."""

    rows: Columns
    bytes_up: int  # what assigning them took
    bytes_down: int

    def summary(self, metric: str) -> dict[str, float]:
        """Return a metric after each number of fine-tuning rounds, weighted by test samples, and the traffic."""
        rows, values = self.rows, self.rows[metric]
        found: dict[str, float] = {"newcomers": len(np.unique(rows["client"]))}
        for tuned in np.unique(rows["tuned"]).tolist():
            these = (rows["tuned"] == tuned) & ~np.isnan(values) & (rows["n_test"] > 0)
            mean = np.average(values[these], weights=rows["n_test"][these]) if these.any() else np.nan
            found[f"newcomers_{metric}_{tuned}"] = float(mean)
        return {**found, "newcomers_bytes_up": self.bytes_up, "newcomers_bytes_down": self.bytes_down}


def assign_and_test(method: Method, clients: np.ndarray, tune: Sequence[int], truth: np.ndarray | None) -> Newcomers:
    """Let the method assign newcomers, and test them; `truth` is the planted cluster of all clients, if there is one.

    Assigning is part of the method, so its traffic is counted. Tests and fine-tuning only measure: theirs is not.
    """
    fed = method.fed
    up, down = fed.ledger.bytes_up, fed.ledger.bytes_down
    assigned = method.assign_newcomers(clients)
    up, down = fed.ledger.bytes_up - up, fed.ledger.bytes_down - down
    found: list[Columns] = []
    with fed.looking_on():
        for tuned, models in _tuned(method, assigned.models, clients, max(tune)):
            if tuned in tune:
                scores = fed.evaluate(models, clients=clients)
                columns = {name: values[clients] for name, values in scores.items()}
                found.append({"client": clients, "tuned": np.full(len(clients), tuned), **columns})
    rows = {name: np.concatenate([columns[name] for columns in found]) for name in found[0]}
    who = rows["client"]
    rows |= {"n_train": fed.n_train[who], "n_test": fed.n_test[who]}
    if assigned.cluster is not None:
        rows["cluster"] = np.tile(assigned.cluster, len(found))
    if truth is not None:
        rows["true_cluster"] = truth[who]
    return Newcomers(rows, up, down)


def _tuned(method: Method, models: EvalModels, clients: np.ndarray, rounds: int) -> Iterator[tuple[int, EvalModels]]:
    """Yield what these clients are tested with after 0, 1, 2, ... rounds of fine-tuning."""
    yield 0, models
    if not rounds:
        return
    parts = models.parts if isinstance(models, Mixture) else (models,)
    together = len(parts) == 2 and isinstance(models, Mixture) and models.combine == "logits" and method.tuned_together
    slots = [f"newcomer {number}" for number in range(len(parts))]
    beside = [f"newcomer {number}, beside" for number in range(len(parts))]
    own = tuple(Personal(slot) for slot in slots)
    try:
        for tuned in range(1, rounds + 1):
            if together and tuned > 1:  # each part is trained with a copy of the other part from before
                for names in zip(slots, beside, strict=True):
                    method.fed.map(clients, _copy, Sent(names, 0, 0), slot=names[0])
                parts = tuple(Personal(slot) for slot in beside)
            for number, part in enumerate(parts):
                partner = parts[1 - number] if together else None
                if isinstance(partner, Overlay):
                    raise ValueError("a sum with an overlay cannot be fine-tuned: test newcomers with arrive.tune=[0]")
                start = part.models if isinstance(part, Overlay) else part if isinstance(part, Models) else None
                stream = FINE_TUNING + tuned
                method.fed.train(
                    clients, start, keep=True, partner=partner, slot=slots[number], stream=stream, from_rest=True
                )
            yield tuned, Mixture(own, models.combine) if isinstance(models, Mixture) else own[0]
            parts = own
    finally:
        method.fed.drop(clients, [*slots, *beside])


def _copy(client: "Client", names: tuple[str, str]) -> None:
    source, target = names
    client.keep(target, client.model(source))
