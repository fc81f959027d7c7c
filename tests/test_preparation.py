"""What is settled before a federation exists."""

from collections.abc import Callable

import numpy as np
import pytest

from rayfl.client.batches import draw_batches, samples_seen
from rayfl.config import LocalConfig, load_config
from rayfl.errors import InputError
from rayfl.results import Run
from rayfl.simulation.preparation import prepare

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x if x.sum() > 0 else -x)
"""


def test_what_auto_chose_is_in_the_runs_config_and_gives_the_same_again(simulate_quietly: Callable[..., Run]) -> None:
    small = ["federation=serial", "rounds=2", "local.steps=2", "method.name=fedavg", "model.name=mlp"]
    first = simulate_quietly(*small)
    assert first.config.training == "vectorised"  # tiny networks are faster together
    again = simulate_quietly("name=again", config=first.path + "/config.yaml")
    assert np.array_equal(first.rounds.loss, again.rounds.loss)
    large = prepare(load_config(None, ["model.name=mlp", "model.options.hidden=2000", "partition.clients=4"]))
    assert large.config.training == "loop"


def test_a_network_that_cannot_be_trained_together_is_trained_alone_by_auto_and_refused_by_name(
    own_code: Callable[[str, str], None],
) -> None:
    own_code("own_net", OWN)
    words = ["model.name=own_net:Net", "partition.clients=4"]
    assert prepare(load_config(None, words)).config.training == "loop"
    with pytest.raises(
        InputError, match=r"training=vectorised does not work with model\.name=own_net:Net.*training=loop"
    ):
        prepare(load_config(None, [*words, "training=vectorised"]))


@pytest.mark.parametrize("local", [LocalConfig(steps=7, batch_size=16), LocalConfig(epochs=3, batch_size=16)])
def test_the_cost_of_a_training_is_the_samples_it_sees(local: LocalConfig) -> None:
    for n in (5, 16, 40, 64):
        drawn = draw_batches(np.random.default_rng(0), n, local)
        assert samples_seen(np.array([n]), local).tolist() == [sum(len(b) for b in drawn)]
