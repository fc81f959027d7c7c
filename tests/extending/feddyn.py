"""FedDyn: a proximal term and a linear one, whose slope each client updates by how far it moved."""

from dataclasses import dataclass

import numpy as np

from rayfl import Method
from rayfl.federation import Linear, Personal, Proximal, everyone
from rayfl.methods.options import MethodOptions


class Options(MethodOptions):
    alpha: float = 0.1


@dataclass
class DynState:
    model: np.ndarray
    drift: np.ndarray


def new_slope(client, start, alpha):
    """Keep g_i = g_i + alpha (trained - start), whose negative is the linear term's slope."""
    before = client.kept("slope")
    client.keep("slope", (0 if before is None else before) + alpha * (client.model() - start))


class FedDyn(Method):
    Options = Options

    def start(self):
        self.state = DynState(self.fed.initial, np.zeros_like(self.fed.initial))

    def round(self, cohort):
        fed, state, alpha = self.fed, self.state, self.options.alpha
        handed = everyone(state.model, fed.clients)
        fed.train(cohort, start=handed, objective=[Linear(Personal("slope")), Proximal(handed, alpha)])
        fed.map(cohort, new_slope, state.model, np.float32(alpha))
        mean = fed.mean(cohort)
        drift = state.drift - alpha * len(cohort) / fed.clients * (mean - state.model)
        self.state = DynState(mean - drift / np.float32(alpha), drift)

    def eval_models(self):
        return everyone(self.state.model, self.fed.clients)
