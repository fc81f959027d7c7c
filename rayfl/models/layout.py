"""Where each tensor of a network lies in its flat vector: plain numbers, for a server that does without torch."""

from dataclasses import dataclass
from typing import Literal

#: A part of a network: everything, what comes before the head, the head, the fully connected layers at the end, or the
#: first so many layers.
Part = Literal["all", "backbone", "head", "dense"] | int


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a network lies in its flat vector.

    Backbone parameters come first, then the head's, each in module order; then the float buffers (running
    statistics of batch norm). Whole-number buffers, and those a module does not save, are no part of it.
    """

    names: tuple[str, ...]
    slices: tuple[slice, ...]
    shapes: tuple[tuple[int, ...], ...]
    channels_last: tuple[bool, ...]
    """Whether a tensor of shape (out, in, height, width) lies in the vector as (out, height, width, in)."""
    parameters: int
    """P: how many numbers are trained."""
    size: int
    """Length of the vector: P and the buffers."""
    backbone: slice
    head: slice
    buffers: slice
    dense: slice
    layers: tuple[tuple[str, slice], ...]
    """The modules that own parameters, as they follow each other in the vector: "the first L layers" is one
    slice from 0 to the end of layers[L - 1]."""

    def part(self, name: Part) -> slice:
        """Return the slice of a part; `all` means all parameters, without the buffers."""
        if name == "all":
            return slice(0, self.parameters)
        if name == "backbone":
            return self.backbone
        if name == "head":
            return self.head
        if name == "dense":
            return self.dense
        if isinstance(name, int) and 0 <= name <= len(self.layers):
            return slice(0, self.layers[name - 1][1].stop if name else 0)
        raise ValueError(
            f"part {name!r} is not one of all, backbone, head, dense, or a number of the {len(self.layers)} layers"
        )

    def ranges(self, part: Part) -> tuple[slice, ...]:
        """Return what travels when a part is sent: its parameters, and with the backbone's layers the buffers."""
        if part == "all":
            return (slice(0, self.size),)
        with_buffers = part == "backbone" or (isinstance(part, int) and part > 0)
        pieces = (self.part(part), self.buffers) if with_buffers else (self.part(part),)
        return tuple(p for p in pieces if p.stop > p.start)
