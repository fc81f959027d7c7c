"""What is known of a federation before it starts: its clients, the network, and how clients train."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfl.config import LocalConfig, ModelConfig
from rayfl.federation.presence import Presence
from rayfl.models import Layout

if TYPE_CHECKING:
    from rayfl.models import FlatModel


@dataclass(frozen=True)
class Recipe:
    """Everything needed to build the network again, with another initialisation."""

    config: ModelConfig
    input_shape: tuple[int, ...]
    classes: int
    vocabulary: int | None
    seed: int
    channels_last: bool = False

    def build(self, index: int = 0) -> "FlatModel":
        """Return the network with initialisation number `index`."""
        from rayfl.models import FlatModel, build_model  # torch: only where networks are built

        module = build_model(self.config, self.input_shape, self.classes, self.vocabulary, self.seed, index)
        return FlatModel(module, self.config.head, channels_last=self.channels_last)


@dataclass(frozen=True)
class Facts:
    """What the server knows of the federation before it starts."""

    n_train: np.ndarray
    n_test: np.ndarray
    train_cost: np.ndarray  # samples that each client processes in one round of training
    layout: Layout
    initial: np.ndarray
    public: np.ndarray  # samples that the server may use, without labels; no client has them
    recipe: Recipe
    n_validation: np.ndarray
    local: LocalConfig  # how clients train
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")  # of the task, in the order in which workers report them
    presence: Presence | None = None  # None: everybody is always there
