"""The work that the peers get, as files: the same samples, clients, network and initial weights as rayfl's.

Imports only torch and numpy, because it runs in the peers' own environments.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class PeerWork:
    """The work in memory, raw and normalised, so that reading does not slow a peer down."""

    module: nn.Module
    raw: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor
    inputs: torch.Tensor
    labels: torch.Tensor
    train: list[torch.Tensor]
    test: list[torch.Tensor]
    classes: int
    steps: int
    batch: int
    lr: float

    def batches(self, client: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return newly drawn batches for one local training."""
        samples = self.train[client]
        chosen = samples[torch.randperm(len(samples))[: self.steps * self.batch]].split(self.batch)
        return [(self.inputs[indices], self.labels[indices]) for indices in chosen]

    def tests(self, client: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(self.inputs[self.test[client]], self.labels[self.test[client]])]

    def loader(self, samples: torch.Tensor, shuffle: bool) -> DataLoader:
        """Return samples as users of torch usually read them: one by one, each normalised when it is read."""
        return DataLoader(_Samples(self, samples), self.batch, shuffle=shuffle)


@dataclass(frozen=True)
class _Samples(Dataset):
    work: PeerWork
    chosen: torch.Tensor

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        index = self.chosen[at]
        return self.work.raw[index].float() * self.work.scale + self.work.shift, self.work.labels[index]


@cache
def read(folder: str) -> PeerWork:
    """Read the work, once per process."""
    torch.set_num_threads(1)
    with np.load(Path(folder) / "work.npz") as file:
        arrays = {name: file[name] for name in file.files}
    scale, shift = (torch.from_numpy(arrays[name])[:, None, None] for name in ("scale", "shift"))
    train, test = (torch.from_numpy(arrays[name]).long() for name in ("train", "test"))
    n_train, n_test = (np.diff(arrays[f"{name}_offsets"]).tolist() for name in ("train", "test"))
    return PeerWork(
        module=torch.load(Path(folder) / "model.pt", weights_only=False),
        raw=torch.from_numpy(arrays["inputs"]),
        scale=scale,
        shift=shift,
        inputs=torch.from_numpy(arrays["inputs"]).float().mul_(scale).add_(shift),
        labels=torch.from_numpy(arrays["labels"]).long(),
        train=list(train.split(n_train)),
        test=list(test.split(n_test)),
        **json.loads((Path(folder) / "work.json").read_text()),
    )


@torch.no_grad()
def scores(
    module: nn.Module, tests: Iterable[tuple[torch.Tensor, torch.Tensor]], classes: int
) -> tuple[float, float, float]:
    """Return accuracy, macro-F1 and loss, as rayfl reports them for each client."""
    module.eval()
    found = [(module(inputs), labels) for inputs, labels in tests]
    logits, labels = torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])
    predicted = logits.argmax(1)
    hits = torch.bincount(labels[labels == predicted], minlength=classes)
    both = torch.bincount(labels, minlength=classes) + torch.bincount(predicted, minlength=classes)
    f1 = (2 * hits[both > 0] / both[both > 0]).mean()
    return (predicted == labels).float().mean().item(), f1.item(), cross_entropy(logits, labels).item()


def answer(stamps: list[float], accuracy: float) -> None:
    """Print the seconds of each round except the first, and the last accuracy; `stamps` are the ends of all rounds."""
    seconds = [end - begin for begin, end in pairwise(stamps)]
    print(json.dumps({"seconds": seconds, "accuracy": accuracy}), file=sys.stdout, flush=True)
