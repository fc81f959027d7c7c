"""What clients learn: a loss for each sample, and metrics of how well a model does.

`task` in the config names one of `TASKS` or your own class. To add a loss or a metric, write a subclass:

    class WithAuroc(Classification):
        metrics = {**Classification.metrics, "auroc": auroc}
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from torch.nn.functional import cross_entropy, mse_loss

from rayfl.client.passes import Combine
from rayfl.errors import InputError, closest, shown
from rayfl.object_names import is_object_name
from rayfl.own_code import imported

#: What a sample's label is: the index of a class, or a number to predict.
Targets = Literal["class", "number"]

#: From the outputs (n, outputs) and labels (n,) of one client's samples to a number; NaN where it is undefined.
Metric = Callable[[np.ndarray, np.ndarray], float]

#: Names of table columns, which no metric may have.
_TAKEN = {"loss", "run", "method", "seed", "round", "client", "cluster", "true_cluster", "trained", "n_train", "n_test"}
_TAKEN |= {"clusters", "largest_share", "ari", "nmi", "misclustering", "clients_trained", "bytes_up", "bytes_down"}
_TAKEN |= {"extras", "name", "size", "accuracy_std", "accuracy_worst10"}


class Task:
    """A loss and metrics. Both trainers, all methods and the evaluation of models use it."""

    targets: ClassVar[Targets] = "class"
    #: By name, which is also the column's name in the tables; a run's progress shows the first one.
    metrics: ClassVar[Mapping[str, Metric]] = {}

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample (n,), from outputs (n, outputs) and labels (n,); gradients flow through it."""
        raise NotImplementedError

    def combined(self, outputs: torch.Tensor, combine: Combine) -> torch.Tensor:
        """Combine the outputs of several models (models, n, outputs) into one (n, outputs).

        `logits` adds them (CAM), `probabilities` averages the models' predictions (soft vote).
        """
        if combine == "logits":
            return outputs.sum(0)
        if combine == "probabilities":
            return outputs.mean(0)
        raise ValueError(f"combine={combine!r} is not one of logits, probabilities")


class Classification(Task):
    """Cross-entropy over classes; accuracy and macro-F1."""

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of each sample."""
        return cross_entropy(outputs, labels, reduction="none")

    def combined(self, outputs: torch.Tensor, combine: Combine) -> torch.Tensor:
        """Add logits, or average softmax outputs and return the log of the mean: its softmax is the mean again."""
        if combine == "probabilities":
            return outputs.log_softmax(2).logsumexp(0) - math.log(len(outputs))
        return super().combined(outputs, combine)


def accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of samples whose largest output is that of their class."""
    return float(np.mean(outputs.argmax(1) == labels))


def macro_f1(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the plain mean of F1 over the classes that occur, as labels or as predictions."""
    return mean_f1(labels, outputs.argmax(1), outputs.shape[1])


def mean_f1(true: np.ndarray, predicted: np.ndarray, classes: int) -> float:
    """Return the plain mean of F1 over the classes that occur, as labels or as predictions.

    >>> mean_f1(np.array([0, 0, 1]), np.array([0, 1, 1]), 10)  # F1 is 2/3 for both classes that occur
    0.6666666666666666
    """
    hits = np.bincount(true[true == predicted], minlength=classes)
    both = np.bincount(true, minlength=classes) + np.bincount(predicted, minlength=classes)
    occurs = both > 0
    return float(np.mean(2 * hits[occurs] / both[occurs]))


Classification.metrics = {"accuracy": accuracy, "macro_f1": macro_f1}


class Regression(Task):
    """Squared error of one number per sample; metrics: mean squared error, mean absolute error and R squared."""

    targets = "number"

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the squared error of each sample."""
        return mse_loss(outputs.reshape(labels.shape), labels, reduction="none")


def mse(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean squared error."""
    return float(np.mean(np.square(_numbers(outputs) - labels)))


def mae(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean absolute error."""
    return float(np.mean(np.abs(_numbers(outputs) - labels)))


def r2(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return 1 - (squared errors) / (squared deviations from the labels' mean); NaN where all labels are the same.

    >>> r2(np.array([[1.0], [2.0], [4.0]]), np.array([1.0, 2.0, 3.0]))
    0.5
    """
    labels = labels.astype(np.float64)
    spread = float(np.square(labels - labels.mean()).sum())
    return 1 - float(np.square(_numbers(outputs) - labels).sum()) / spread if spread else math.nan


def _numbers(outputs: np.ndarray) -> np.ndarray:
    return outputs.reshape(len(outputs)).astype(np.float64)


Regression.metrics = {"mse": mse, "mae": mae, "r2": r2}

CLASSIFICATION = Classification()
TASKS: dict[str, type[Task]] = {"classification": Classification, "regression": Regression}


def find_task(name: str) -> Task:
    """Return the task that this text names: one of TASKS, `package.module:Class`, or a Python object's name."""
    task = _own_task(name) if ":" in name else TASKS[name]() if name in TASKS else None
    if task is None:
        raise InputError(
            f"task={shown(name)} is not allowed{closest(name, list(TASKS))}; allowed: {', '.join(TASKS)}, or"
            " package.module:Class"
        )
    wrong = [metric for metric in task.metrics if not metric.isidentifier() or metric in _TAKEN]
    if wrong:
        raise InputError(
            f"task={name}: no metric can be called {', '.join(map(shown, wrong))}: use letters, digits and '_', and no"
            " name of another column of the tables"
        )
    if type(task).loss is Task.loss:
        raise InputError(f"task={name} has no loss: write its method loss(outputs, labels), one number per sample")
    if not task.metrics:
        raise InputError(f"task={name} has no metrics: give it at least one, such as metrics = {{'mse': mse}}")
    return task


def _own_task(name: str) -> Task:
    found = imported("task", name, "class", lambda value: inspect.isclass(value) and issubclass(value, Task))
    if isinstance(found, Task) and is_object_name(name):
        return found
    if not (inspect.isclass(found) and issubclass(found, Task)):
        raise InputError(f"task={name} is not a subclass of rayfl.Task: write one, see docs/extending.md")
    try:
        return found()
    except TypeError as error:
        raise InputError(
            f"task={name} takes arguments: pass an object of it from Python, as task=... ({error})"
        ) from None
