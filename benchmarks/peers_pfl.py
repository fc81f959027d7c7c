"""FedAvg in pfl-research: its simulated backend, distributed by environment variables, as its documentation says.

    python benchmarks/peers_pfl.py FOLDER ROUNDS same|own   in pfl's environment, once per process, see peers.py

With `own`, pfl evaluates as it does by default: besides the validation users, every training user is tested before and
after training, on its training data. With `same`, it tests only what rayfl tests: every client's test set, once a
round.
"""

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from peers_work import PeerWork, answer, read, scores
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.common_types import Population
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    """The network with the methods that pfl needs."""

    def __init__(self, work: PeerWork) -> None:
        super().__init__()
        self.net, self.classes = work.module, work.classes

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.train()
        return cross_entropy(self.net(inputs), labels)

    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        accuracy, macro_f1, loss = scores(self.net, [(inputs, labels)], self.classes)
        count = len(labels)
        values = {"accuracy": accuracy, "macro_f1": macro_f1, "loss": loss}
        return {name: Weighted(value * count, count) for name, value in values.items()}


class WithoutTrainingUsers(FederatedAveraging):
    """FedAvg that does not test users on their training data."""

    def simulate_one_user(self, model: Any, user_dataset: Any, central_context: Any) -> Any:
        if central_context.population == Population.TRAIN:
            central_context = replace(central_context, do_evaluation=False)
        return super().simulate_one_user(model, user_dataset, central_context)


class Stamps(TrainingProcessCallback):
    """Notes when rounds end, and the last accuracy."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.accuracy = 0.0

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.stamps.append(time.perf_counter())
        values = aggregate_metrics.to_simple_dict()
        self.accuracy = next(v for k, v in values.items() if "Val" in k and "accuracy" in k)
        return False, Metrics()


def main() -> None:
    folder, rounds, evaluation = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - pfl draws from numpy's global state, which must be alike in all processes
    work = read(folder)
    clients = len(work.train)

    def training(client: int) -> PyTorchTensorDataset:
        samples = work.train[client]
        chosen = samples[torch.randperm(len(samples))[: work.steps * work.batch]]
        return PyTorchTensorDataset((work.inputs[chosen], work.labels[chosen]), user_id=str(client))

    tests = [PyTorchTensorDataset(work.tests(client)[0], user_id=str(client)) for client in range(clients)]
    users = list(range(clients))
    net = Net(work)
    stamps = Stamps()
    algorithm = FederatedAveraging() if evaluation == "own" else WithoutTrainingUsers()
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=1, train_cohort_size=clients, val_cohort_size=clients
        ),
        SimulatedBackend(
            FederatedDataset(training, get_user_sampler("minimize_reuse", users)),
            FederatedDataset(tests.__getitem__, get_user_sampler("minimize_reuse", users)),
            [WeightByDatapoints()],
        ),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=None, local_learning_rate=work.lr, local_num_steps=work.steps
        ),
        NNEvalHyperParams(local_batch_size=None),
        [stamps],
    )
    if pytorch_ops.distributed.global_rank == 0:
        answer(stamps.stamps, stamps.accuracy)


if __name__ == "__main__":
    main()
