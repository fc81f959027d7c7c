"""Where each tensor of a network is in its flat vector: plain numbers, because the server works without torch."""

from dataclasses import dataclass
from typing import Literal

#: A part of a network: everything, the layers before the head, the head, the fully connected layers at the end, or a
#: number of layers from the start, also halves: 3.5 is the first three layers and the first half of the fourth layer's
#: tensors, that is, its weight. without_norm is everything except the normalisation layers and their statistics, which
#: is what FedBN shares.
Part = Literal["all", "backbone", "head", "dense", "without_norm"] | float


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a network is in its flat vector.

    The backbone's parameters come first, then the head's, each in module order; then the float buffers (running
    statistics of batch norm). Integer buffers, and buffers that the module does not save, are not included.
    """

    names: tuple[str, ...]
    slices: tuple[slice, ...]
    shapes: tuple[tuple[int, ...], ...]
    channels_last: tuple[bool, ...]
    """Whether a tensor of shape (out, in, height, width) is stored in the vector as (out, height, width, in)."""
    layer_of: tuple[int, ...]
    """The layer of each tensor. A buffer of a module without parameters belongs to the layer before that module."""
    parameters: int
    """P: how many numbers are trained."""
    size: int
    """Length of the vector: P and the buffers."""
    backbone: slice
    head: slice
    buffers: slice
    dense: slice
    norm: tuple[bool, ...]
    """Which tensors belong to a normalisation layer."""
    layers: tuple[tuple[str, slice], ...]
    """The modules that own parameters, in their order in the vector: "the first L layers" is one slice from 0 to
    the end of layers[L - 1]."""

    def part(self, name: Part) -> slice:
        """Return the slice of a part's parameters, without its buffers.

        Half a layer is the first half of its tensors, rounded up: the weight of a layer with weight and bias, and the
        whole of a layer that has only a weight.
        """
        if name == "all":
            return slice(0, self.parameters)
        if name == "backbone":
            return self.backbone
        if name == "head":
            return self.head
        if name == "dense":
            return self.dense
        if name == "without_norm":
            if any(self.norm):
                raise ValueError("part 'without_norm' is not one piece of this network: use its ranges")
            return slice(0, self.parameters)
        if not isinstance(name, str) and 0 <= name <= len(self.layers) and 2 * name == int(2 * name):
            whole = int(name)
            stop = self.layers[whole - 1][1].stop if whole else 0
            if name > whole:
                tensors = [w for w, layer in zip(self._parameters(), self.layer_of, strict=False) if layer == whole]
                stop = tensors[(len(tensors) - 1) // 2].stop
            return slice(0, stop)
        raise ValueError(
            f"part {name!r} is not one of all, backbone, head, dense, without_norm, or a number of the"
            f" {len(self.layers)} layers, whole or a half"
        )

    def tensors_in(self, part: Part) -> tuple[bool, ...]:
        """Return which tensors travel when a part is sent: its parameters, and the buffers of its whole layers."""
        if part == "all":
            return (True,) * len(self.names)
        if part == "without_norm":
            return tuple(not norm for norm in self.norm)
        where = self.part(part)
        whole = [_inside(layer, where) for _, layer in self.layers]
        count = len(self._parameters())
        return (
            *(_inside(tensor, where) for tensor in self._parameters()),
            *(whole[layer] for layer in self.layer_of[count:]),
        )

    def ranges(self, part: Part) -> tuple[slice, ...]:
        """Return the ranges of the vector that travel when a part is sent, in as few pieces as possible."""
        pieces: list[slice] = []
        for tensor, travels in zip(self.slices, self.tensors_in(part), strict=True):
            if not travels or tensor.start == tensor.stop:
                continue
            if pieces and pieces[-1].stop == tensor.start:
                tensor = slice(pieces.pop().start, tensor.stop)
            pieces.append(tensor)
        return tuple(pieces)

    def trainable(self, part: Part) -> tuple[slice, ...]:
        """Return the ranges of a part's parameters, without buffers, in as few pieces as possible."""
        if part != "without_norm":
            return (self.part(part),)
        return tuple(
            slice(where.start, min(where.stop, self.parameters))
            for where in self.ranges(part)
            if where.start < self.parameters
        )

    def covers(self, part: Part) -> bool:
        """Return whether a part is the whole model, including buffers."""
        return all(self.tensors_in(part))

    def _parameters(self) -> tuple[slice, ...]:
        return tuple(where for where in self.slices if where.stop <= self.parameters)


def _inside(piece: slice, where: slice) -> bool:
    return where.start <= piece.start and piece.stop <= where.stop
