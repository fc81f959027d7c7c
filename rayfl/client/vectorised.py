"""The vectorised trainer: several clients at once, each a row of one matrix.

Sequences of plain layers run on all rows with the code in `layers`, any other network with `vmap`. Results equal those
of `loop` up to rounding, and no bit of a client's result depends on which clients are trained with it: a pass has full
batches, all rows have the same memory layout, and with `vmap` there are always GROUP rows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from rayfl.client.bound import BoundRows, rows_like
from rayfl.client.layer_types import DENSE
from rayfl.client.layers import PlainLayers, aligned, block_size, is_plain
from rayfl.client.loop import clip
from rayfl.client.optimisers import State, optimiser_of
from rayfl.client.task import CLASSIFICATION, Task
from rayfl.client.training_job import Batch, TrainingJob
from rayfl.config import LocalConfig
from rayfl.models import FlatModel
from rayfl.models.flat import by_name

Tensors = dict[str, torch.Tensor]

#: Rows of a pass with `vmap`, one client each: always this number. On some CPUs, libraries sum in another order for
#: another number of rows; a client's bits would then depend on the other clients.
GROUP = 8

#: The maximum of rows for plain networks with other than DENSE layers. Their kernels get blocks of rows, so the number
#: of rows changes no bit; with more rows, fewer of the other operations are started. Time with 16 rows over that with
#: 8, batch 10 / 32: thesis_cifar10 0.94 / 1.00 on AVX2 and 0.95 / 1.01 on AVX-512, digits_cnn with 64 channels 0.95 /
#: 0.97 and 0.95 / 0.96.
PLAIN_GROUP = 16

#: The maximum of rows for networks of DENSE layers, where most of a step's time goes into starting operations.
DENSE_GROUP = 32


def train_together(
    model: FlatModel, jobs: Sequence[TrainingJob], local: LocalConfig, lr: float, task: Task = CLASSIFICATION
) -> list[torch.Tensor]:
    """Return each job's trained vector (size,), the buffers included.

    Only the architecture of `model` is used; its vector does not change. The jobs may differ in everything; jobs that
    cannot share a step (see `_kind`), such as those with different terms, are trained separately.
    """
    kinds: dict[tuple, list[int]] = {}
    for at, job in enumerate(jobs):
        kinds.setdefault(_kind(job), []).append(at)
    trained: dict[int, torch.Tensor] = {}
    for members in kinds.values():
        group = Group(model, [jobs[at] for at in members], local, lr, task)
        trained.update(zip(members, group.train(), strict=True))
    return [trained[at] for at in range(len(jobs))]


def _kind(job: TrainingJob) -> tuple:
    """Return what must be equal for two jobs to be computed in the same step."""
    trained = tuple((where.start, where.stop) for where in job.trained or ())
    return (job.partner is None, trained, *(bound.kind for bound in job.terms))


class Group:
    """Rows, each with one client in training; when a client has finished, the next one takes its row.

    Where the number of rows must not change, unused rows are computed too, and their results are ignored.
    """

    def __init__(
        self,
        model: FlatModel,
        jobs: Sequence[TrainingJob],
        local: LocalConfig,
        lr: float,
        task: Task = CLASSIFICATION,
    ) -> None:
        self.model, self.jobs, self.local, self.lr, self.task = model, jobs, local, lr, task
        self.size = size = most_rows(model.module)
        layout, like = model.layout, model.vector
        self.parameters = rows_like(like, size, layout.parameters)
        self.gradient = rows_like(like, size, layout.parameters)
        self.optimiser = optimiser_of(local)
        self.state = {name: _like_rows(vector) for name, vector in self.optimiser.init(self.parameters).items()}
        self.trained = jobs[0].trained or (slice(0, layout.parameters),)
        # vmap's batch norm writes its statistics through a view, so they must be contiguous.
        self.buffers = {
            name: like.new_zeros(size, *shape)
            for name, where, shape in _tensors(model)
            if where.start >= layout.parameters
        }
        self.frozen = {n for n, p in model.module.named_parameters(remove_duplicate=False) if not p.requires_grad}
        self.mixes_samples = _mixes_samples(model.module)
        self.partners = rows_like(like, size, layout.size) if jobs[0].partner else None
        self.terms = [BoundRows(bound, size, layout) for bound in zip(*(t.terms for t in jobs), strict=True)]
        self.of_samples = [rows for rows in self.terms if rows.term.on != "parameters"]
        self.moves = [rows for rows in self.terms if rows.term.moves]
        others = (*self.of_samples, *self.moves)
        self.of_parameters = [rows for rows in self.terms if rows not in others]
        features = any(rows.term.on == "features" for rows in self.of_samples)
        self.network = model.network(features=features)
        # Counters and constants are not part of the vector; they are copied, since the network may change them.
        self.others = {n: b.clone() for n, b in self.network.named_buffers()}
        self.forward: Callable[[Tensors, torch.Tensor], tuple[torch.Tensor, ...]] = vmap(self._forward)
        if is_plain(model.module):
            self.forward = PlainLayers(model, features, self._noise, fixed=True)
        self.generators: list[torch.Generator | None] = [None] * size
        self.drawing: list[tuple[torch.Generator | None, slice]] = []
        self.drew = False

    def train(self) -> list[torch.Tensor]:
        """Return the trained vectors."""
        self.model.module.train()
        trained: dict[int, torch.Tensor] = {}
        waiting = iter(enumerate(self.jobs))
        rows = [self._row(row, waiting, trained) for row in range(self.size)]
        while any(coming := [next(row, None) for row in rows]):
            spare = next(batch for batch in coming if batch)
            needed = max(row + 1 for row, batch in enumerate(coming) if batch)
            used = -(-needed // (block := self._block(spare[0]))) * block
            self._step(slice(used), [batch or spare for batch in coming[:used]], self.local.batch_size)
        return [trained[at] for at in range(len(self.jobs))]

    def _block(self, inputs: torch.Tensor) -> int:
        """Return the block size: the number of rows in a pass is always a multiple of it."""
        return block_size(self.model.module, inputs.shape) if is_plain(self.model.module) else self.size

    def _row(
        self, row: int, waiting: Iterator[tuple[int, TrainingJob]], trained: dict[int, torch.Tensor]
    ) -> Iterator[Batch]:
        """Yield the batches that one row trains on together with the other rows, client after client."""
        for at, job in waiting:
            self._enter(row, job)
            for batch in job.batches:
                if self.mixes_samples and len(batch[1]) < self.local.batch_size:
                    # Without padding, which would change the results of the real samples.
                    self._step(slice(row, row + 1), [batch], len(batch[1]))
                else:
                    yield batch
            trained[at] = torch.cat([self.parameters[row], *(b[row].flatten() for b in self.buffers.values())])
            if job.velocity is not None:
                job.velocity.copy_(self.state["velocity"][row])
        self.generators[row] = None

    def _enter(self, row: int, job: TrainingJob) -> None:
        self.parameters[row] = job.start[: self.model.layout.parameters]
        for name, where, shape in _tensors(self.model):
            if name in self.buffers:
                self.buffers[name][row] = job.start[where].view(shape)
        for vectors in self.state.values():
            vectors[row] = 0
        if job.velocity is not None:
            self.state["velocity"][row] = job.velocity
        self.generators[row] = _generator(self.parameters.device, job.seed)
        if self.partners is not None and job.partner is not None:
            self.partners[row] = job.partner.vector
        for term, bound in zip(self.terms, job.terms, strict=True):
            term.enter(row, bound)

    def _step(self, rows: slice, batches: Sequence[Batch], size: int) -> None:
        """Do one step on some rows, as `loop.train` does it on one."""
        inputs = torch.stack([_filled(x, size) for x, _ in batches])
        labels = torch.stack([_filled(y, size) for _, y in batches])
        counts = [len(y) for _, y in batches]
        each = [[1 / n if i < n else 0 for i in range(size)] for n in counts]
        shares = self.parameters.new_tensor(each)
        # For a batch that was filled up, draw noise for the real samples only, as the loop does.
        drawn = [slice(n) if n < size else slice(None) for n in counts]
        self.drawing = list(zip(self.generators[rows], drawn, strict=True))
        parameters, gradient = self.parameters[rows], self.gradient[rows]
        weights = self._views(parameters)
        leaves = {name: weight.requires_grad_() for name, weight in weights.items() if name not in self.frozen}
        buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        losses = self._losses(rows, weights | buffers, inputs, labels)
        gradients = torch.autograd.grad((losses * shares).sum(), list(leaves.values()), allow_unused=True)
        found = dict(zip(leaves, gradients, strict=True))
        with torch.no_grad():
            for name, place in self._views(gradient).items():
                own = found.get(name)
                place.zero_() if own is None else place.copy_(own)
            for term in self.of_parameters:
                term.add_gradient(rows, parameters, gradient)
            if self.local.clip_norm is not None:
                for row in gradient:
                    clip([row[where] for where in self.trained], self.local.clip_norm)
            state: State = {name: vectors[rows] for name, vectors in self.state.items()}
            step = self.optimiser.step(parameters, gradient, state)
            for term in self.moves:
                term.move(rows, parameters)
            for where in self.trained:
                parameters[:, where].sub_(step[:, where], alpha=self.lr)

    def _losses(self, rows: slice, views: Tensors, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the losses that autograd differentiates, (rows, samples)."""
        *features, outputs = self.forward(views, inputs)
        answers = outputs if self.partners is None else outputs + self._fixed(self.partners[rows], inputs)[-1]
        losses = self.task.loss(answers.flatten(0, 1), labels.flatten()).view(labels.shape)
        for term in self.of_samples:
            which = 0 if term.term.on == "features" else -1
            fixed = [self._fixed(models, inputs)[which] for models in term.models(rows)]
            losses = losses + term.losses(rows, (*features, outputs)[which], fixed)
        return losses

    @torch.no_grad()
    def _fixed(self, vectors: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run models that are not trained, (rows, size), in eval mode."""
        tensors = by_name(self.model.layout, vectors)
        self.model.module.eval()
        try:
            return self.forward(tensors, inputs)
        finally:
            self.model.module.train()

    def _forward(self, tensors: Tensors, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run one row."""
        held = self.others | {place: tensor for name, tensor in tensors.items() for place in self.network.places[name]}
        with _Stacked(self._noise):
            return functional_call(self.network, held, (inputs,), tie_weights=False)

    def _views(self, matrix: torch.Tensor) -> Tensors:
        """Return the parameters, or their gradients, by name, as views of a matrix with one row per client."""
        pieces = [t for t in _tensors(self.model) if t[0] not in self.buffers]
        return {name: matrix[:, where].view(-1, *shape) for name, where, shape in pieces}

    def _noise(self, shape: torch.Size, rate: float) -> torch.Tensor:
        """Draw the factors that the loop's dropout would use, for each row from its client's generator."""
        self.drew = True
        noise = self.parameters.new_ones(shape)
        for row, (generator, samples) in zip(noise, self.drawing, strict=True):
            if generator is not None:
                row[samples].bernoulli_(1 - rate, generator=generator)
        return noise.div_(1 - rate)


def _generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def _tensors(model: FlatModel) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
    layout = model.layout
    return zip(layout.names, layout.slices, layout.shapes, strict=True)


def most_rows(module: nn.Module) -> int:
    """Return how many clients are trained together at most."""
    if all(type(m) in DENSE for m in module.modules()):
        return DENSE_GROUP
    return PLAIN_GROUP if is_plain(module) else GROUP


def _filled(samples: torch.Tensor, size: int) -> torch.Tensor:
    """Repeat samples to fill a batch. The copies get weight 0; zeros instead of copies could give NaN."""
    if len(samples) >= size:
        return samples
    return samples[torch.arange(size, device=samples.device) % len(samples)]


def _mixes_samples(module: nn.Module) -> bool:
    """Whether a sample's output may depend on its batch: with batch norm it does, in a user's layer it may."""
    return any(
        isinstance(m, _BatchNorm) or not type(m).__module__.startswith(("torch.nn.", "rayfl.models."))
        for m in module.modules()
    )


# --- layers of all rows ---------------------------------------------------------


class _Stacked(TorchFunctionMode):
    """Replaces functions in a network that `vmap` does not support, or whose bits in `vmap` depend on the row."""

    def __init__(self, noise: Callable[[torch.Size, float], torch.Tensor]) -> None:
        super().__init__()
        self.noise = noise

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return _linear(*args, **kwargs)
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is torch.lstm:
            return _lstm(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(
        self, inputs: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p in (0, 1):
            return F.dropout(inputs, p, training, inplace)
        return _Noisy.apply(inputs, lambda shape: self.noise(shape, p))


class _Noisy(Function):
    """Multiplies each row with noise from its own generator; `vmap` would draw for all rows from one generator."""

    @staticmethod
    def forward(inputs: torch.Tensor, draw: Callable[[torch.Size], torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError("dropout of values that are the same for all clients")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, inputs: torch.Tensor, draw: Callable[[torch.Size], torch.Tensor]
    ) -> tuple[torch.Tensor, int]:
        inputs = inputs.movedim(in_dims[0], 0)
        return inputs * draw(inputs.shape), 0


def _linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """F.linear, padded so that the bits do not depend on the row."""
    outputs = weight.shape[0]
    return F.linear(*aligned(inputs.flatten(0, -2), weight, bias))[..., :outputs].unflatten(0, inputs.shape[:-1])


def _like_rows(matrix: torch.Tensor) -> torch.Tensor:
    """Return zeros of this matrix's shape, with the parameters' memory layout if a row has the parameters' size."""
    return rows_like(matrix, *matrix.shape)


def _lstm(
    inputs: torch.Tensor,
    start: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """nn.LSTM from its equations, because `vmap` does not support torch.lstm."""
    per_layer = 4 if biases else 2
    if isinstance(start, torch.Tensor) or bidirectional or (dropout and training) or len(weights) != per_layer * layers:
        raise NotImplementedError("an LSTM with packed sequences, two directions, dropout or projections")
    states = inputs.transpose(0, 1) if batch_first else inputs
    last: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(layers):
        from_inputs, from_hidden, *bias = weights[per_layer * layer : per_layer * (layer + 1)]
        hidden, cell = (s[layer] for s in start)
        outputs = []
        for gates in _linear(states, from_inputs, bias[0] + bias[1] if bias else None).unbind(0):
            write, forget, new, read = (gates + _linear(hidden, from_hidden)).chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
            hidden = read.sigmoid() * cell.tanh()
            outputs.append(hidden)
        states = torch.stack(outputs)
        last.append((hidden, cell))
    hiddens, cells = (torch.stack(each) for each in zip(*last, strict=True))
    return states.transpose(0, 1) if batch_first else states, hiddens, cells
