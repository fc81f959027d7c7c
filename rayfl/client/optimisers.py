"""Optimisers on flat vectors: (P,) for one client, or (rows, P) for several clients.

An optimiser computes a direction; the trainer then subtracts lr times this direction from the parameters.
`local.optimizer` names one of `OPTIMISERS` or your own class. Weight decay is as in torch: sgd and adam add it to
the gradient, adamw to the step.
"""

import inspect
from abc import ABC, abstractmethod

import torch

from rayfl.config import LocalConfig
from rayfl.errors import InputError, closest, shown
from rayfl.own_code import import_module_of, reason

#: What an optimiser keeps between two steps, by name: vectors like the parameters, or one number per row (rows, 1).
State = dict[str, torch.Tensor]


class Optimiser(ABC):
    """Turns gradients into steps. All it remembers is in the state, so that one object serves all clients."""

    def __init__(self, weight_decay: float = 0.0) -> None:
        self.weight_decay = weight_decay

    @abstractmethod
    def init(self, parameters: torch.Tensor) -> State:
        """Return the initial state for parameters of this shape: tensors of zeros, which the trainer resets to zero."""

    @abstractmethod
    def step(self, parameters: torch.Tensor, gradient: torch.Tensor, state: State) -> torch.Tensor:
        """Return the direction of a step; may change the gradient and the state in place."""


class SGD(Optimiser):
    """Stochastic gradient descent, with momentum m: v = m v + g."""

    def __init__(self, weight_decay: float = 0.0, momentum: float = 0.0) -> None:
        super().__init__(weight_decay)
        self.momentum = momentum

    def init(self, parameters: torch.Tensor) -> State:
        """Return a velocity of zeros, if there is momentum."""
        return {"velocity": torch.zeros_like(parameters)} if self.momentum else {}

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor, state: State) -> torch.Tensor:
        """Return the velocity, or the gradient."""
        if self.weight_decay:
            gradient.add_(parameters, alpha=self.weight_decay)
        return state["velocity"].mul_(self.momentum).add_(gradient) if self.momentum else gradient


class Adam(Optimiser):
    """Adam: running means of the gradient and of its square, both corrected for their start at zero."""

    def __init__(
        self, weight_decay: float = 0.0, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        super().__init__(weight_decay)
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and epsilon > 0):
            raise ValueError(f"beta1={beta1} and beta2={beta2} must be in [0, 1), and epsilon={epsilon} above 0")
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def init(self, parameters: torch.Tensor) -> State:
        """Return the two running means and the number of steps."""
        zeros = torch.zeros_like(parameters)
        return {
            "mean": zeros,
            "square": torch.zeros_like(parameters),
            "steps": parameters.new_zeros(*zeros.shape[:-1], 1),
        }

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor, state: State) -> torch.Tensor:
        """Return the corrected mean divided by the root of the corrected mean square."""
        if self.weight_decay:
            gradient.add_(parameters, alpha=self.weight_decay)
        return self._direction(gradient, state)

    def _direction(self, gradient: torch.Tensor, state: State) -> torch.Tensor:
        steps = state["steps"].add_(1)
        mean = state["mean"].mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        root = (square / (1 - self.beta2**steps)).sqrt_().add_(self.epsilon)
        return (mean / (1 - self.beta1**steps)).div_(root)


class AdamW(Adam):
    """Adam whose weight decay does not go through the running means."""

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor, state: State) -> torch.Tensor:
        """Return Adam's direction plus the weight decay."""
        direction = self._direction(gradient, state)
        return direction.add_(parameters, alpha=self.weight_decay) if self.weight_decay else direction


OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def optimiser_of(local: LocalConfig) -> Optimiser:
    """Return the optimiser that the config names, with its options."""
    name = local.optimizer
    if name == "sgd" and not local.optimizer_options:  # a short cut, since the loop calls this for each client
        return SGD(local.weight_decay, local.momentum)
    kind = OPTIMISERS.get(name) if ":" not in name else _own_optimiser(name)
    if kind is None:
        raise InputError(
            f"local.optimizer={shown(name)} is not allowed{closest(name, list(OPTIMISERS))}; allowed:"
            f" {', '.join(OPTIMISERS)}, or package.module:Class"
        )
    known = [p for p in inspect.signature(kind).parameters if p != "weight_decay"]
    options = dict(local.optimizer_options)
    if local.momentum:
        options.setdefault("momentum", local.momentum)
    for option in options:
        if option not in known:
            key = "local.momentum" if option == "momentum" else f"local.optimizer_options.{option}"
            raise InputError(
                f"{key}={shown(options[option])} is not used by local.optimizer={name}: remove it"
                + (f"; its options are {', '.join(known)}" if known else "")
            )
    try:
        return kind(weight_decay=local.weight_decay, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"local.optimizer={name} with {shown(options)}: {reason(error)}") from None


def _own_optimiser(name: str) -> type[Optimiser]:
    module, attribute = import_module_of("local.optimizer", name)
    found = getattr(module, attribute, None)
    if not (inspect.isclass(found) and issubclass(found, Optimiser)) or inspect.isabstract(found):
        raise InputError(
            f"local.optimizer={name} is not a subclass of rayfl.client.optimisers.Optimiser with init and step"
        )
    return found
