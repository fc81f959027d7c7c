"""A network's state outside its flat vector: counters, buffers that are not saved, attributes of a user's class.

Before every training and every test, all of it is reset to its initial value. So no information passes from one client
to the next, and nothing is missing in a checkpoint.
"""

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rayfl.randomness import global_generators_kept, seed_globals

#: Attributes that every module has; they are not changed by a forward pass.
_OF_TORCH = frozenset(vars(nn.Module()))
_KNOWN = ("torch", "torchvision", "rayfl")


class Outside:
    """All state of a module except its `inside` tensors, which are views of a flat vector."""

    def __init__(self, module: nn.Module, inside: Collection[torch.Tensor] = ()) -> None:
        self._module = module
        held = {id(tensor) for tensor in inside}
        self._own = {
            path: owner
            for path, owner in module.named_modules()
            if type(owner).__module__.partition(".")[0] not in _KNOWN
        }
        self._views: list[tuple[str, nn.Module, str, torch.Tensor]] = []
        self._buffers: list[tuple[str, nn.Module, str, torch.Tensor | None, torch.Tensor | None]] = []
        for path, owner in module.named_modules():
            for name, buffer in owner._buffers.items():
                full = f"{path}.{name}".lstrip(".")
                if buffer is not None and id(buffer) in held:
                    self._views.append((full, owner, name, buffer))
                else:
                    self._buffers.append((full, owner, name, buffer, None if buffer is None else buffer.clone()))
        self._parameters = [(name, p, p.data_ptr()) for name, p in module.named_parameters()] if self._own else []
        # Attributes may refer to modules and tensors of the network; a copy of the attributes refers to the same ones.
        self._same = {id(thing): thing for thing in (*module.modules(), *module.parameters(), *module.buffers())}
        self._left_alone: set[tuple[str, str]] = set()
        self._attributes = self._copied(self._current())

    @property
    def has_own_code(self) -> bool:
        """Whether a class of the network was written by the user: it may do anything in its forward pass."""
        return bool(self._own)

    @torch.no_grad()
    def reset(self) -> None:
        """Reset everything to its initial value."""
        for _, owner, name, view in self._views:
            owner._buffers[name] = view
        for _, owner, name, buffer, start in self._buffers:
            if buffer is not None and start is not None:
                buffer.copy_(start)
            owner._buffers[name] = buffer
        if self._own:
            self._put_attributes(self._copied(self._attributes))

    def changed(self) -> list[str]:
        """Return the names of everything that differs from its initial value."""
        names = [
            full
            for full, owner, name, _, start in self._buffers
            if not _only_counts(owner, name) and not _equal(owner._buffers.get(name), start)
        ]
        current = self._current()
        for path, start in self._attributes.items():
            for name in sorted(start.keys() | current[path].keys()):
                if not _equal(current[path].get(name), start.get(name)):
                    names.append(f"{path}.{name}".lstrip("."))
        return names

    def gather(self) -> None:
        """Copy back into the vector what a forward pass assigned in place of the vector's views (`self.mean = ...`)."""
        for full, owner, name, view in self._views:
            current = owner._buffers.get(name)
            if current is view:
                continue
            if current is None or current.shape != view.shape:
                raise RuntimeError(f"the network's forward pass gives its buffer {full} another shape")
            view.copy_(current.detach())
            owner._buffers[name] = view
        for name, parameter, place in self._parameters:
            if parameter.data_ptr() != place:
                raise RuntimeError(
                    f"the network's forward pass puts a new tensor in the place of its parameter {name}: change it in"
                    " place, with copy_"
                )

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Within this block, the network has its initial state and draws the same random numbers each time.

        Afterwards its state is restored, because a test may happen in the middle of a training.
        """
        if not self._own:  # torch's own modules change no state in eval mode
            yield
            return
        buffers = [(owner, name, owner._buffers.get(name)) for _, owner, name, _, _ in self._buffers]
        attributes = self._current()
        # Use new tensors instead of overwriting: a backward pass that has not finished may still need the old values.
        clones = [_clone(start) for *_, start in self._buffers]
        instead = {id(buffer): new for (*_, buffer, _), new in zip(self._buffers, clones, strict=True)}
        with global_generators_kept(self._devices()):
            seed_globals(0)
            for (owner, name, _), new in zip(buffers, clones, strict=True):
                owner._buffers[name] = new
            self._put_attributes(self._copied(self._attributes, instead))
            try:
                yield
            finally:
                for owner, name, buffer in buffers:
                    owner._buffers[name] = buffer
                self._put_attributes(attributes)

    def _devices(self) -> list[torch.device]:
        return sorted({t.device for t in self._module.parameters() if t.device.type == "cuda"}, key=str)

    def _current(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of the user's classes, by module."""
        return {
            path: {
                name: value
                for name, value in vars(owner).items()
                if name not in _OF_TORCH and (path, name) not in self._left_alone
            }
            for path, owner in self._own.items()
        }

    def _copied(
        self, attributes: dict[str, dict[str, Any]], instead: dict[int, torch.Tensor | None] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Return a copy that refers to the network's own modules and tensors, or to those given in `instead`."""
        same = {**self._same, **(instead or {})}
        try:
            # Copy all at once, so that objects shared by two modules are also shared in the copy.
            return deepcopy(attributes, dict(same))
        except Exception:
            for path, each in attributes.items():
                self._left_alone |= {(path, name) for name, value in each.items() if not _can_be_copied(value, same)}
        kept = {
            path: {name: value for name, value in each.items() if (path, name) not in self._left_alone}
            for path, each in attributes.items()
        }
        return deepcopy(kept, dict(same))

    def _put_attributes(self, attributes: dict[str, dict[str, Any]]) -> None:
        for path, owner in self._own.items():
            own, values = vars(owner), attributes[path]
            for name in own.keys() - _OF_TORCH - values.keys():
                if (path, name) not in self._left_alone:
                    del own[name]
            own.update(values)


def _can_be_copied(value: Any, same: dict[int, Any]) -> bool:
    """Whether a value can be copied: an open file or a lock cannot, and is left unchanged."""
    try:
        deepcopy(value, dict(same))
    except Exception:
        return False
    return True


def _only_counts(owner: nn.Module, name: str) -> bool:
    """Whether a buffer is batch norm's count of batches, which is not used if there is a momentum."""
    return isinstance(owner, _BatchNorm) and name == "num_batches_tracked" and owner.momentum is not None


def _clone(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, np.random.Generator) and isinstance(other, np.random.Generator):
        return bool(one.bit_generator.state == other.bit_generator.state)
    if isinstance(one, random.Random) and isinstance(other, random.Random):
        return one.getstate() == other.getstate()
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)
    if type(one).__eq__ is object.__eq__ and type(one) is type(other) and hasattr(one, "__dict__"):
        return _equal(vars(one), vars(other))
    try:
        return bool(one == other)
    except Exception:
        return False
