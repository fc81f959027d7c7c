"""SCAFFOLD: clients keep control variates, which correct each step for how far their data are from the others'."""

from dataclasses import dataclass

import numpy as np

from rayfl import Method
from rayfl.federation import Linear, Personal, everyone


@dataclass
class ScaffoldState:
    model: np.ndarray
    control: np.ndarray  # c, as long as a model


def new_control(client, start, control):
    """Return by how much c_i changes: (start - trained) / (steps * lr) - c."""
    size = client.layout.parameters
    moved = (start - client.model())[:size] / (client.local.steps * client.lr)
    before = client.kept("control")
    before = np.zeros(size, np.float32) if before is None else before[:size]
    after = before - control[:size] + moved
    client.keep("control", after)
    return after - before


class Scaffold(Method):
    def start(self):
        self.state = ScaffoldState(self.fed.initial, np.zeros_like(self.fed.initial))

    def round(self, cohort):
        fed, state = self.fed, self.state
        corrections = [Linear(everyone(state.control, fed.clients)), Linear(Personal("control"), -1.0)]
        fed.train(cohort, start=everyone(state.model, fed.clients), objective=corrections)
        change = fed.map(cohort, new_control, state.model, state.control)
        control = state.control.copy()
        control[: fed.layout.parameters] += change.sum(axis=0) / fed.clients
        self.state = ScaffoldState(fed.mean(cohort), control)

    def eval_models(self):
        return everyone(self.state.model, self.fed.clients)
