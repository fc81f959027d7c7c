"""Saved models as torch modules that take samples as they are in the source: raw, not normalised.

The file format is in `model_files`. A network that the run's config names by import path is imported only if the caller
trusts the folder or names the network too, because the folder may come from anybody.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from rayfl.client.passes import Combine
from rayfl.client.stacked import stacked_logits
from rayfl.client.task import CLASSIFICATION, Regression, Task, find_task
from rayfl.config import Config, ModelConfig
from rayfl.data import Dataset
from rayfl.data.dataset import Transform
from rayfl.data.partition.plain import named_functions, read_transform
from rayfl.errors import InputError, shown
from rayfl.models import FlatModel, build_model
from rayfl.object_names import is_object_name, offered
from rayfl.results.model_files import (
    ABOUT,
    FOLDER,
    LEFT_OUT,
    PERSONAL,
    Inputs,
    ModelsIndex,
    flat_vector,
    folder_of,
    read_index,
    read_tensors,
    saved_rounds,
)
from rayfl.results.storage import Storage


class RawSamples:
    """Turns raw samples into the network's inputs, as the run did."""

    def __init__(
        self, inputs: Inputs, shift: np.ndarray, scale: np.ndarray, transform: Transform | None = None
    ) -> None:
        self._inputs, self._shift, self._scale, self._transform = inputs, shift, scale, transform

    def __call__(self, samples: Any) -> torch.Tensor:
        """Return the normalised inputs (n, *shape) for raw samples of that shape."""
        raw, kind = self._checked(samples), self._inputs.kind
        starts, window = None, 0
        if kind == "text":
            window = raw.shape[1]
            starts, raw = np.arange(len(raw)) * window, raw.reshape(-1)
        count = len(raw) if starts is None else len(starts)
        nothing = np.zeros(count, np.uint8)
        dataset = Dataset(
            raw,
            nothing,
            self._inputs.classes,
            kind,
            nothing.astype(bool),
            self._shift,
            self._scale,
            starts=starts,
            window=window,
        )
        return dataset.batch(np.arange(count), self._transform)[0]

    def _checked(self, samples: Any) -> np.ndarray:
        raw = samples.numpy(force=True) if isinstance(samples, torch.Tensor) else np.asarray(samples)
        shape, kind = tuple(self._inputs.shape), self._inputs.kind
        wanted = {"image": "uint8 pixels", "vector": "numbers", "text": "character codes"}[kind]
        good = {"image": raw.dtype == np.uint8, "vector": raw.dtype.kind in "biuf", "text": raw.dtype.kind in "iu"}
        if raw.shape[1:] != shape or not good[kind]:
            raise InputError(
                f"samples are {raw.dtype} of shape {raw.shape}: give {wanted} of shape"
                f" (n, {', '.join(map(str, shape))}), as they are in the source, not normalised"
            )
        if kind == "text" and raw.size and not 0 <= raw.min() <= raw.max() < (self._inputs.vocabulary or 0):
            raise InputError(
                f"character codes go from {raw.min()} to {raw.max()}, the run knows 0 to {self._last_code}"
            )
        return raw.astype(np.float32) if kind == "vector" else raw

    @property
    def _last_code(self) -> int:
        return (self._inputs.vocabulary or 0) - 1


class SavedModel(nn.Module):
    """The model of a client, a cluster or everyone: one network, or several whose outputs are combined.

    `model(samples)` takes raw samples and returns logits, computed exactly as the run did when it tested clients, in
    eval mode and without gradients. To continue training, use `networks` with `prepare(samples)`.
    """

    def __init__(
        self, networks: Sequence[nn.Module], head: str | None, channels_last: bool, combine: Combine, raw: RawSamples
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.combine = combine
        self._head, self._channels_last, self._raw = head, channels_last, raw
        self._flatten()

    def _flatten(self) -> None:
        self._flat = [
            FlatModel(network, self._head, next(network.parameters()).device, self._channels_last)
            for network in self.networks
        ]

    def _apply(self, *arguments: Any, **named: Any) -> "SavedModel":
        super()._apply(*arguments, **named)
        self._flatten()  # after moving to another device, tensors are no longer views of the flat vectors
        return self

    def prepare(self, samples: Any) -> torch.Tensor:
        """Return the networks' inputs for raw samples."""
        return self._raw(samples).to(self._flat[0].vector.device)

    def forward(self, samples: Any) -> torch.Tensor:
        """Return the outputs for raw samples: (n, classes), or (n, 1) for a regression."""
        stack = torch.stack([flat.vector for flat in self._flat])
        outputs = stacked_logits(self._flat[0], stack, self.prepare(samples))
        if len(outputs) == 1:
            return outputs[0]
        task = CLASSIFICATION if outputs.shape[2] > 1 else Regression()
        return task.combined(outputs, self.combine)


class SavedModels:
    """The models that one run saved, at its end or after a round."""

    def __init__(
        self, storage: Storage, config: Config, number: int | None = None, objects: Mapping[str, Any] | None = None
    ) -> None:
        """`objects` are the Python objects that the config names, by key."""
        self._storage, self._config, self._folder = storage, config, folder_of(number)
        self._objects = objects or {}
        index = read_index(storage, self._folder)
        if index is None:
            raise InputError(_none_there(storage, config, number))
        self.index: ModelsIndex = index

    @cached_property
    def _shared(self) -> dict[str, np.ndarray]:
        return read_tensors(self._storage, self._folder, self.index.shared)

    @property
    def clusters(self) -> list[int]:
        """The clusters that have a model."""
        return [entry.cluster for entry in self.index.clusters]

    def of_cluster(self, cluster: int, network: Any = None, trust: bool = False) -> SavedModel:
        """Return the model of a cluster; pass samples as a client of that cluster has them."""
        for entry in self.index.clusters:
            if entry.cluster == cluster:
                return self._built([(row, None) for row in entry.rows], entry.combine, network, trust)
        there = f"there are {', '.join(map(str, self.clusters))}" if self.clusters else "the run has none"
        raise InputError(f"there is no model of cluster {shown(cluster)} in {self._path}: {there}{self._others()}")

    def of_everyone(self, network: Any = None, trust: bool = False) -> SavedModel:
        """Return the model that all clients share, or the global model."""
        if self.index.everyone is None:
            raise InputError(f"there is no one model for all clients in {self._path}{self._others()}")
        rows = self.index.everyone.rows
        return self._built([(row, None) for row in rows], self.index.everyone.combine, network, trust)

    def of_client(self, client: int, network: Any = None, trust: bool = False, transformed: bool = False) -> SavedModel:
        """Return the model that a client was tested with.

        Pass samples as they are in the source: the transform of the client's planted cluster (a rotation, inverted
        pixels) is applied to them, unless they are already `transformed`. Labels are never changed.
        """
        rows = self._about("rows")
        if not isinstance(client, int | np.integer) or not 0 <= client < len(rows):
            raise InputError(f"client={shown(client)}: the run has clients 0 to {len(rows) - 1}")
        wanted = rows[client].tolist()
        if LEFT_OUT in wanted:
            raise InputError(
                f"the model of client {client} was not saved: it is the client's own, and output.models was"
                f" {self.index.models}; run again with output.models=all"
            )
        own = self._personal(int(client)) if PERSONAL in wanted else {}
        sources = [(row, own.get(part) if row == PERSONAL else None) for part, row in enumerate(wanted)]
        transform = None if transformed else self._transform(int(client), trust)
        return self._built(sources, self.index.combine, network, trust, transform)

    def assign(self, samples: Any, labels: Any, network: Any = None, trust: bool = False) -> int:
        """Return the cluster whose model has the smallest mean loss on a new client's samples."""
        if not self.clusters:
            raise InputError(f"{self._path} holds no models of clusters{self._others()}")
        task, classes = self._task(trust), self.index.inputs.classes
        kind = np.int64 if task.targets == "class" else np.float32
        y = torch.as_tensor(np.asarray(labels).astype(kind))
        fits = y.ndim == 1 and len(y) == len(samples) and len(y) > 0
        if not fits or (task.targets == "class" and not 0 <= int(y.min()) <= int(y.max()) < classes):
            wanted = f"class per sample, 0 to {classes - 1}" if task.targets == "class" else "number per sample"
            raise InputError(f"labels have the shape {tuple(y.shape)} for {len(samples)} samples: give one {wanted}")
        models = [self.of_cluster(cluster, network, trust) for cluster in self.clusters]
        losses = [float(task.loss(model(samples).cpu(), y).double().mean()) for model in models]
        return self.clusters[int(np.argmin(losses))]

    # -- inside -----------------------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return f"{self._storage.path}/{self._folder}"

    def _others(self) -> str:
        """Return the end of a message that says which models can be loaded instead."""
        found = []
        if self.index.everyone is not None:
            found.append("model() for all clients")
        if self.clusters:
            found.append(f"model(cluster=...) for {', '.join(map(str, self.clusters[:10]))}")
        saved = LEFT_OUT not in self._about("rows")
        found.append("model(client=...)" if saved else "with output.models=all, model(client=...)")
        return f"; use {' or '.join(found)}"

    def _about(self, name: str) -> np.ndarray:
        try:
            return self._shared[f"{ABOUT}{name}"]
        except KeyError:
            raise self._damaged(f"it lacks {name}") from None

    def _damaged(self, why: Any) -> InputError:
        return InputError(f"{self._path} does not hold models of this run's network ({why}): restore it, or run again")

    def _transform(self, client: int, trust: bool) -> Transform | None:
        if not self.index.inputs.transforms:
            return None
        try:
            found = read_transform(self.index.inputs.transforms[int(self._about("transform")[client])], None)
        except (IndexError, ValueError) as error:
            raise self._damaged(error) from None
        functions = named_functions([found])
        if functions and not trust:
            raise InputError(
                f"the models in {self._path} name code to be imported, {functions[0]}: if you trust it, pass"
                " trust=True; or pass transformed=True with samples as the client sees them"
            )
        return found

    def _personal(self, client: int) -> dict[int, tuple[dict[str, np.ndarray], int]]:
        """Return, for each of the client's personal models, the arrays that hold it and its row in them."""
        for file in self.index.personal:
            if file.first <= client <= file.last:
                arrays = read_tensors(self._storage, self._folder, file.name)
                try:
                    places = np.flatnonzero(arrays[f"{ABOUT}client"] == client)
                    return {int(arrays[f"{ABOUT}part"][row]): (arrays, int(row)) for row in places}
                except (KeyError, IndexError) as error:
                    raise self._damaged(error) from None
        raise self._damaged(f"no file has the model of client {client}")

    def _built(
        self,
        sources: Sequence[tuple[int, tuple[dict[str, np.ndarray], int] | None]],
        combine: Combine,
        network: Any,
        trust: bool,
        transform: Transform | None = None,
    ) -> SavedModel:
        shift, scale, inputs = self._about("shift"), self._about("scale"), self.index.inputs
        networks = []
        for row, own in sources:
            if row == PERSONAL and own is None:
                raise self._damaged("a client's own model is missing")
            arrays, at = own or (self._shared, row)
            module = self._network(network, trust)
            flat = FlatModel(module, self._config.model.head, channels_last=self.index.channels_last)
            try:
                flat.load(flat_vector(flat.layout, arrays, at))
            except (ValueError, IndexError) as error:
                raise self._damaged(error) from None
            networks.append(module.eval())
        raw = RawSamples(inputs, shift, scale, transform)
        return SavedModel(networks, self._config.model.head, self.index.channels_last, combine, raw)

    def _task(self, trust: bool) -> Task:
        """Return the run's task; if the config names it by import path, only if the folder is trusted."""
        if is_object_name(self._config.task):
            if "task" not in self._objects:
                raise InputError(
                    f"the run in {self._storage.path} was given a Python object as its task, {self._config.task}: pass"
                    " it with Run.objects['task'] = ..."
                )
            with offered(self._objects["task"]) as name:
                return find_task(name)
        if ":" in self._config.task and not trust:
            raise InputError(
                f"the config in {self._storage.path} names code to be imported, task={self._config.task}: if you trust"
                " it, pass trust=True"
            )
        return find_task(self._config.task)

    def _network(self, given: Any, trust: bool) -> nn.Module:
        """Build the run's network, or copy the given one."""
        if isinstance(given, nn.Module):
            return deepcopy(given)
        config = self._config.model
        if is_object_name(config.name):
            given = self._objects.get("model.name") if given is None else given
            if not callable(given):
                raise InputError(
                    f"the run in {self._storage.path} was given a Python object as its model, {config.name}: pass it"
                    " again, with model=..."
                )
            with offered(given) as name:
                return self._build(config.model_copy(update={"name": name}))
        if given is not None and given != config.name:
            raise InputError(f"model={shown(given)}: the run was made with model.name={config.name}")
        if ":" in config.name and not (trust or given):
            raise InputError(
                f"the config in {self._storage.path} names code to be imported, model.name={config.name}: if you trust"
                f" it, pass trust=True, or model={config.name!r}"
            )
        return self._build(config)

    def _build(self, config: ModelConfig) -> nn.Module:
        inputs = self.index.inputs
        return build_model(config, tuple(inputs.shape), inputs.classes, inputs.vocabulary, self.index.seed)


def _none_there(storage: Storage, config: Config, number: int | None) -> str:
    if number is not None:
        found = ", ".join(map(str, saved_rounds(storage))) or "none"
        return f"{storage.path} has no models of round {number}; those of these rounds were saved: {found}"
    if config.output.models == "none":
        return f"{storage.path} has no models: it was run with output.models=none; run again without"
    return (
        f"{storage.path}/{FOLDER} is not there: the run is not finished (see Run.finished), or was made by a rayfl that"
        " did not save models"
    )
