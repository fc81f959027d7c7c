"""A module whose weights live in one flat vector, and the layout of that vector.

Methods, sums and messages use only these vectors and slices of them; no code loops over named tensors. `zoo` builds the
network, and `rayfl.client` trains it.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from rayfl.errors import InputError, closest
from rayfl.models.layout import Layout
from rayfl.models.outside import Outside

#: Normalisation layers, which have their own parameters and statistics.
NORMALISING = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)


class FlatModel:
    """A module whose parameters, gradients and float buffers are views of flat tensors.

    `vector` (size,) and `gradient` (P,) are live: a step of SGD is `vector[:P] -= lr * gradient`. Autograd
    adds to the gradient in place; clear it with `gradient.zero_()`, since `module.zero_grad()` would detach the
    views. The gradient of parameters that do not require one stays zero.

    The module's other state is in `outside`: it is reset to its initial value before every training and every test.

    With `channels_last`, the weights of 2-d convolutions and the maps between layers are stored with the channels last,
    which is faster on CPUs; a network that calls `view` on such maps would fail. Runs always use float32; another
    `dtype` is for checks of the arithmetic.

    >>> model = FlatModel(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    >>> model.layout.backbone, model.layout.head
    (slice(0, 8, None), slice(8, 11, None))
    """

    def __init__(
        self,
        module: nn.Module,
        head: str | None = None,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point():  # .to(float32) would drop the imaginary part
                raise InputError(f"{type(module).__name__} has parameters that are not real numbers: {name}")
        self.module = module.to(device=device, dtype=dtype)
        self.head = _find_head(module, head)
        self.layout, tensors = _lay_out(module, self.head, channels_last)
        each = list(zip(tensors, self.layout.slices, self.layout.shapes, self.layout.channels_last, strict=True))
        self.vector = torch.cat([(t.movedim(1, -1) if last else t).detach().reshape(-1) for t, *_, last in each])
        self._networks: dict[bool, Network] = {}
        self.gradient = self.vector.new_zeros(self.layout.parameters)
        for tensor, where, shape, last in each:
            # Assigning .data keeps the Parameter objects, so modules that hold their own references to them (LSTM,
            # tied weights) see the views too.
            tensor.data = unflattened(self.vector[where], shape, last)
            if where.stop <= self.layout.parameters:
                tensor.grad = unflattened(self.gradient[where], shape, last)
        self.outside = Outside(module, tensors)

    def load(self, vector: np.ndarray | torch.Tensor, ranges: tuple[slice, ...] = (slice(None),)) -> None:
        """Copy `vector` in, or only these ranges of it.

        It may be read-only, like arrays from shared memory; the model never keeps a reference to it.
        """
        if tuple(vector.shape) != (self.layout.size,):
            raise ValueError(f"a vector of shape {tuple(vector.shape)} is no model of {self.layout.size} numbers")
        for where in ranges:
            piece = vector[where]
            if isinstance(piece, torch.Tensor):
                self.vector[where].copy_(piece.detach())
            elif self.vector.device.type == "cpu":
                # Not torch.from_numpy: it warns about read-only arrays.
                np.copyto(self.vector[where].numpy(), piece, casting="same_kind")
            else:
                self.vector[where].copy_(torch.from_numpy(np.array(piece, dtype=np.float32)))

    def copy(self) -> torch.Tensor:
        """Return a copy of the current vector, on the model's device."""
        return self.vector.clone()

    def numpy(self) -> np.ndarray:
        """Return a copy of the current vector as a float32 array."""
        return self.vector.to("cpu", copy=True).numpy()

    def network(self, features: bool = False) -> "Network":
        """Return this model's architecture for calls with other weights."""
        if features not in self._networks:
            self._networks[features] = Network(self, features)
        return self._networks[features]

    def features(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the head's inputs for `inputs`, and the logits; gradients flow through both."""
        seen: list[torch.Tensor] = []

        def keep(_: nn.Module, args: tuple[Any, ...]) -> None:
            seen.append(args[0])

        handle = self.module.get_submodule(self.head).register_forward_pre_hook(keep)
        try:
            logits = self.module(inputs)
        finally:
            handle.remove()
        if len(seen) != 1:
            raise InputError(
                f"model.head={self.head} is called {len(seen)} times per forward pass, features need exactly"
                " one: name another module"
            )
        return seen[0], logits


def unflattened(piece: torch.Tensor, shape: tuple[int, ...], channels_last: bool) -> torch.Tensor:
    """Return a piece of a flat vector, or of rows of vectors, as a tensor of this shape; the result is a view."""
    if not channels_last:
        return piece.view((*piece.shape[:-1], *shape))  # unflatten cannot produce a tensor without dimensions
    out, channels, height, width = shape
    return piece.unflatten(-1, (out, height, width, channels)).movedim(-1, -3)


def by_name(layout: Layout, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors by name, as views of a vector (size,), or with one more dimension of rows (K, size)."""
    each = zip(layout.names, layout.slices, layout.shapes, layout.channels_last, strict=True)
    return {name: unflattened(vectors[..., where], shape, last) for name, where, shape, last in each}


class Network(nn.Module):
    """The module in the form that functional_call needs: returns (logits,) or, with `features`, (head inputs, logits).

    `places` has the names under which it holds each tensor of the layout. Call it with all of them and with
    tie_weights=False: otherwise, functional_call replaces a tied tensor under each of its names and restores them one
    by one; if a module has two names, the last restore puts back a temporary tensor, and the module has lost its
    weights.
    """

    def __init__(self, model: FlatModel, features: bool) -> None:
        super().__init__()
        self.module = model.module
        self._run = model.features if features else lambda inputs: (model.module(inputs),)
        held: dict[torch.Tensor, list[str]] = {}
        for path, owner in self.named_modules():
            own = (path, False, False)  # only its own tensors, not those of submodules; all names of a shared tensor
            for name, tensor in (*owner.named_parameters(*own), *owner.named_buffers(*own)):
                held.setdefault(tensor, []).append(name)
        named = dict(self.module.named_parameters(remove_duplicate=False)) | dict(self.module.named_buffers())
        self.places = {name: held[named[name]] for name in model.layout.names}

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the module."""
        return self._run(inputs)


def _find_head(module: nn.Module, head: str | None) -> str:
    modules = dict(module.named_modules())
    if head is None:
        dense = [name for name, m in modules.items() if isinstance(m, nn.Linear)]
        if not dense:
            raise InputError(
                f"model.head is missing: {type(module).__name__} has no fully connected layer (nn.Linear) to"
                f" be the head; name one of: {', '.join(_names_with_parameters(module))}"
            )
        return dense[-1]
    named = _names_with_parameters(module)
    if head == "" or head not in modules:
        raise InputError(
            f"model.head={head!r} is no module of {type(module).__name__}{closest(head, named)};"
            f" it has: {', '.join(named)}"
        )
    if head not in named:
        raise InputError(f"model.head={head} has no parameters: name one of {', '.join(named)}")
    return head


def _names_with_parameters(module: nn.Module) -> list[str]:
    return [name for name, m in module.named_modules() if name and any(True for _ in m.parameters())]


def _dense_start(module: nn.Module, layers: list[tuple[str, slice]], end: int) -> int:
    """Return the start of the block of fully connected layers at the end of the parameters."""
    for name, where in reversed(layers):
        if not isinstance(module.get_submodule(name), nn.Linear):
            break
        end = where.start
    return end


def _layers_of_buffers(
    module: nn.Module, head: str, buffers: list[str], layers: list[str], in_backbone: int
) -> list[int]:
    """Return the layer of each buffer: that of its module, or else the last layer before it in module order.

    Buffers inside the head belong to layers of the head, all others to layers of the backbone if it has any.
    """
    order = {name: place for place, (name, _) in enumerate(module.named_modules())}
    found = []
    for buffer in buffers:
        owner = buffer.rpartition(".")[0]
        inside = owner == head or owner.startswith(f"{head}.")
        side = range(in_backbone, len(layers)) if inside or not in_backbone else range(in_backbone)
        before = [layer for layer in side if order[layers[layer]] <= order[owner]]
        found.append(max(before, key=lambda layer: order[layers[layer]], default=side[0]))
    return found


def _lay_out(module: nn.Module, head: str, channels_last: bool) -> tuple[Layout, list[torch.Tensor]]:
    """Return the layout, and the module's tensors in the layout's order."""
    # A shared parameter has several names and is counted once. If one of its owners is outside the head,
    # training the backbone changes it, so it belongs to the backbone.
    owners: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owners.setdefault(parameter, []).append(name)
    prefix = f"{head}."
    backbone: list[tuple[str, torch.Tensor]] = []
    top: list[tuple[str, torch.Tensor]] = []
    for parameter, names in owners.items():
        outside = [n for n in names if head and not n.startswith(prefix)]
        if outside:
            backbone.append((outside[0], parameter))
        else:
            top.append((names[0], parameter))
    if not top:
        raise InputError(f"model.head={head} shares all its parameters with the backbone: name another module")
    saved = module.state_dict()
    buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point() and n in saved]
    tensors = [*backbone, *top, *buffers]
    ends = np.cumsum([t.numel() for _, t in tensors]).tolist()
    slices = tuple(slice(end - t.numel(), end) for end, (_, t) in zip(ends, tensors, strict=True))
    parameters = sum(p.numel() for _, p in (*backbone, *top))
    split = sum(p.numel() for _, p in backbone)
    normalising = {name for name, m in module.named_modules() if isinstance(m, NORMALISING)}
    convolved = {m.weight for m in module.modules() if isinstance(m, nn.Conv2d)}
    layers: list[tuple[str, slice]] = []
    layer_of: list[int] = []
    for (name, _), where in zip((*backbone, *top), slices, strict=False):
        owner = name.rpartition(".")[0]
        if layers and layers[-1][0] == owner:
            layers[-1] = (owner, slice(layers[-1][1].start, where.stop))
        else:
            layers.append((owner, where))
        layer_of.append(len(layers) - 1)
    in_backbone = len({layer for layer, _ in zip(layer_of, backbone, strict=False)})
    layer_of += _layers_of_buffers(module, head, [name for name, _ in buffers], [n for n, _ in layers], in_backbone)
    layout = Layout(
        names=tuple(n for n, _ in tensors),
        slices=slices,
        shapes=tuple(tuple(t.shape) for _, t in tensors),
        channels_last=tuple(channels_last and t in convolved for _, t in tensors),
        layer_of=tuple(layer_of),
        parameters=parameters,
        size=ends[-1],
        backbone=slice(0, split),
        head=slice(split, parameters),
        buffers=slice(parameters, ends[-1]),
        dense=slice(_dense_start(module, layers, parameters), parameters),
        layers=tuple(layers),
        norm=tuple(n.rpartition(".")[0] in normalising for n, _ in tensors),
    )
    return layout, [t for _, t in tensors]
