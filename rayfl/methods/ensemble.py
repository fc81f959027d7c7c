"""FedAvg+ and FedProx+ (thesis 3.5.2): K independent federations of one kind, and a soft vote of their models.

The K federations have different initial models and see different batches; the same clients take part in all of them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from rayfl.client.handed import Mixture, Models, everyone
from rayfl.client.objective import Proximal
from rayfl.methods.fedprox import MU_SOURCE, THESIS_MU
from rayfl.methods.method import Method
from rayfl.methods.options import MOST_CLUSTERS, MethodOptions


class EnsembleOptions(MethodOptions):
    """Options of an ensemble."""

    clusters: int = Field(5, ge=1, le=MOST_CLUSTERS, description="number of federations [K]")


class ProximalEnsembleOptions(EnsembleOptions):
    """Options of FedProx+."""

    mu: float = Field(THESIS_MU, ge=0, description=f"pull to the federation's global model; {MU_SOURCE}")


@dataclass
class EnsembleState:
    """The global model of each federation."""

    models: np.ndarray  # (K, size)


class FedAvgEnsemble(Method):
    """K independent federations, soft vote."""

    paper = "thesis 3.5.2"
    Options: ClassVar[type[MethodOptions]] = EnsembleOptions
    state: EnsembleState

    @classmethod
    def check(cls, options: Any, clients: int, cohort: int, rounds: int) -> list[str]:
        """Refuse to fine-tune a vote."""
        if options.finetune:
            return ["method.finetune=True: an ensemble's vote cannot be fine-tuned; leave it out"]
        return []

    def start(self) -> None:
        """Begin with K different initial models."""
        self.state = EnsembleState(self.fed.initial_models(self.options.clusters))

    def round(self, cohort: np.ndarray) -> None:
        """One round of each federation."""
        models = self.state.models.copy()
        for k, model in enumerate(self._models()):
            self.fed.train(cohort, start=model, objective=self._objective(model), stream=k)
            models[k] = self.fed.mean(cohort, self.fed.n_train[cohort])
        self.state.models = models

    def _objective(self, model: Models) -> list[Proximal]:
        return []

    def _models(self) -> tuple[Models, ...]:
        return tuple(everyone(model, self.fed.clients) for model in self.state.models)

    def eval_models(self) -> Mixture:
        """Average the probabilities of the K models."""
        return Mixture(self._models(), "probabilities")

    def assignment(self) -> np.ndarray:
        """All clients use the same vote, so all are in one cluster."""
        return np.zeros(self.fed.clients, np.int32)


class FedProxEnsemble(FedAvgEnsemble):
    """K independent federations with a proximal term, soft vote."""

    Options = ProximalEnsembleOptions

    def _objective(self, model: Models) -> list[Proximal]:
        return [Proximal(model, self.options.mu)]
