"""Saving a run's models: the models that clients are tested with, from the server to the run's folder.

The first half runs on the server, the second in the process that started the run. Saving models causes no traffic.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from rayfl.client.handed import EvalModels, Mixture, Models, Overlay, Personal
from rayfl.config import ModelsToSave
from rayfl.data.partition.plain import plain_transform
from rayfl.federation.interface import Federation
from rayfl.methods.clustered import Clustered
from rayfl.methods.method import Method
from rayfl.models import Layout, Part
from rayfl.results import Storage
from rayfl.results.model_files import LEFT_OUT, PERSONAL, ModelFiles, folder_of
from rayfl.simulation.preparation import Prepared

PIECE_BYTES = 64 * 2**20

# -- on the server -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelPart:
    """One of the models each client is tested with: a row of a stack, the client's own, or a combination by `part`.

    `choice[i]` is the row of client i, -1 for none; `own[i]` says whether the client has a model in `slot`. With both,
    `part` of the client's own model is replaced by the row. A client with neither is tested with the initial model.
    """

    stack: np.ndarray
    choice: np.ndarray
    part: Part
    slot: str | None
    own: np.ndarray


@dataclass(frozen=True)
class TestedModels:
    """The models that clients are tested with, as plain data."""

    parts: tuple[ModelPart, ...]
    combine: Any


@dataclass(frozen=True)
class DescribedModels:
    """A description of all models of a server; the clients' own models are sent separately, in pieces.

    `centres` are candidates for the models of clusters; the first one that fits is used.
    """

    tested: TestedModels
    global_model: TestedModels | None
    centres: tuple[TestedModels, ...]
    assignment: np.ndarray | None


class ServesModels(Protocol):
    """A server whose models can be read."""

    def describe_models(self) -> DescribedModels: ...  # noqa: D102
    def own_models(self, slot: str, clients: np.ndarray) -> np.ndarray: ...  # noqa: D102


class ModelsOfServer:
    """The models of a server: the current ones, or those that were held before fine-tuning."""

    def __init__(self, method: Method, fed: Federation) -> None:
        self._method, self._fed = method, fed
        self._held: DescribedModels | None = None
        self._held_own: dict[str, np.ndarray] = {}

    def hold(self, which: ModelsToSave) -> None:
        """Keep the models as they are now: fine-tuning, which comes next, overwrites the clients' own models."""
        self._held = self.described()
        slots = {part.slot for part in self._held.tested.parts if part.slot is not None}
        everyone = np.arange(self._fed.clients)
        self._held_own = {slot: self.own(slot, everyone) for slot in slots} if which == "all" else {}

    def let_go(self) -> None:
        """Forget the models that were held."""
        self._held, self._held_own = None, {}

    def described(self) -> DescribedModels:
        """Return the models that clients are tested with, and the models of clusters."""
        if self._held is not None:
            return self._held
        method = self._method
        tested, also = self._plain(method.eval_models()), method.also_tested()
        newcomers = _for_newcomers(tested)
        global_model = self._plain(also["global"]) if "global" in also else newcomers
        candidates = [tested, *[self._plain(other) for name, other in also.items() if name != "global"]]
        if isinstance(method, Clustered):
            candidates.append(self._plain(method.tested(method.centres())))
        candidates += [other for other in (newcomers, global_model) if other is not None]
        centres = tuple(other for other in candidates if all(part.slot is None for part in other.parts))
        return DescribedModels(tested, global_model, centres, method.assignment())

    def own(self, slot: str, clients: np.ndarray) -> np.ndarray:
        """Return these clients' latest models in a slot (n, size); the initial model for a client without one."""
        if slot in self._held_own:
            return self._held_own[slot][clients]
        fed = self._fed
        vectors = np.tile(fed.initial, (len(clients), 1))
        kept = fed.kept_states(clients)
        rest = []
        for at, client in enumerate(clients.tolist()):
            if client in kept and slot in kept[client].models:
                vectors[at] = kept[client].models[slot]
            else:
                rest.append(at)
        rest = [at for at in rest if fed.has_model(clients[[at]], slot)[0]]
        if rest:  # these models exist only in this round, so marking them as sent has no effect later
            vectors[rest] = fed.collect(clients[rest], slot=slot, buffers=True)
        return vectors

    def _plain(self, tested: EvalModels) -> TestedModels:
        parts = tested.parts if isinstance(tested, Mixture) else (tested,)
        combine = tested.combine if isinstance(tested, Mixture) else "logits"
        return TestedModels(tuple(self._part(part) for part in parts), combine)

    def _part(self, part: Models | Personal | Overlay) -> ModelPart:
        everyone = np.arange(self._fed.clients)
        own = part.own if isinstance(part, Overlay) else part if isinstance(part, Personal) else None
        has = np.zeros(len(everyone), bool) if own is None else self._fed.has_model(everyone, own.slot)
        models = part.models if isinstance(part, Overlay) else part if isinstance(part, Models) else None
        slot = None if own is None else own.slot
        if models is None:
            nothing = np.empty((0, self._fed.layout.size), np.float32)
            return ModelPart(nothing, np.full(len(everyone), -1), "all", slot, has)
        # If a client is tested with a whole given model, its own model is not used.
        laid: Part = models.part if isinstance(part, Overlay) else "all"
        if self._fed.layout.covers(laid):
            has = has & (models.choice < 0)
        return ModelPart(models.stack, np.asarray(models.choice), laid, slot, has)


def _for_newcomers(tested: TestedModels) -> TestedModels | None:
    """Return the models for clients without personal layers: the shared layers over the initial model.

    None if no layers are shared, or if all are.
    """
    if all(part.slot is None for part in tested.parts) or any(not len(part.stack) for part in tested.parts):
        return None
    if any(part.slot is not None and part.part == "all" for part in tested.parts):
        return None
    nobody = np.zeros(len(tested.parts[0].own), bool)
    return TestedModels(tuple(replace(part, slot=None, own=nobody) for part in tested.parts), tested.combine)


# -- in the process that started the run -------------------------------------------------------------------------


class _Pool:
    """Different models, each stored once, numbered from 0 (the initial model)."""

    def __init__(self, layout: Layout, initial: np.ndarray) -> None:
        self._layout = layout
        self.vectors: list[np.ndarray] = []
        self._numbers: dict[bytes, int] = {}
        self.initial = initial
        self.add(initial)

    def add(self, vector: np.ndarray) -> int:
        vector = np.ascontiguousarray(vector, np.float32)
        key = blake2b(vector.data, digest_size=16).digest()
        if key not in self._numbers:
            self._numbers[key] = len(self.vectors)
            self.vectors.append(vector)
        return self._numbers[key]

    def laid_over(self, below: np.ndarray, row: np.ndarray, part: Part) -> np.ndarray:
        """Return the model `below` with one part replaced by the same part of the model `row`."""
        if self._layout.covers(part):
            return row
        vector = below.copy()
        for where in self._layout.ranges(part):
            vector[where] = row[where]
        return vector

    def place(self, part: ModelPart, wanted: np.ndarray, which: ModelsToSave) -> np.ndarray:
        """Return each client's model number in this pool, PERSONAL or LEFT_OUT.

        Rows that several clients use count as shared, and so do the rows of clients in `wanted`.
        """
        places = np.where(part.own, PERSONAL if which == "all" else LEFT_OUT, 0)
        free = np.flatnonzero(~part.own)
        rows, at, counts = np.unique(part.choice[free], return_inverse=True, return_counts=True)
        shared = (counts > 1) | (np.bincount(at, wanted[free], len(rows)) > 0)
        numbers = np.zeros(len(rows), np.int64)  # 0 is the initial model, for clients that are given no row
        for number, row in enumerate(rows.tolist()):
            if row >= 0 and (which == "all" or shared[number]):
                numbers[number] = self.add(self.laid_over(self.initial, part.stack[row], part.part))
            elif row >= 0:
                numbers[number] = LEFT_OUT
        places[free] = numbers[at]
        return places


def save_models(
    server: ServesModels, prepared: Prepared, storage: Storage, number: int, which: ModelsToSave, last: bool
) -> None:
    """Write the models after round `number`; to models/ itself if it is the last round."""
    models, layout = server.describe_models(), prepared.facts.layout
    pool = _Pool(layout, prepared.facts.initial)
    alone = _alone_in_cluster(models.assignment, len(prepared.facts.n_train))

    def placed(tested: TestedModels, which: ModelsToSave) -> np.ndarray:
        return np.stack([pool.place(part, alone, which) for part in tested.parts], axis=1)

    rows = placed(models.tested, which)
    files = ModelFiles(storage, folder_of(None if last else number), number, layout)
    personal = np.flatnonzero((rows == PERSONAL).any(axis=1))
    piece = max(1, PIECE_BYTES // (4 * layout.size * rows.shape[1]))
    for first in range(0, len(personal), piece):
        files.write_personal(*_personal(server, models.tested, pool, rows, personal[first : first + piece]))
    centres = [(placed(tested, "shared"), tested.combine) for tested in models.centres]
    everyone = _the_same(rows, np.arange(len(rows)))
    combine = models.tested.combine
    if everyone is None and models.global_model is not None:
        everyone = _the_same(placed(models.global_model, "shared"), np.arange(len(rows)))
        combine = models.global_model.combine
    about: dict[str, np.ndarray] = {"rows": rows.astype(np.int32)}
    if models.assignment is not None:
        about["cluster"] = models.assignment.astype(np.int32)
    inputs, more = _inputs(prepared, number)
    files.write_shared(
        np.stack(pool.vectors),
        about | more,
        models=which,
        combine=models.tested.combine,
        everyone=None if everyone is None else {"rows": everyone, "combine": combine},
        clusters=_clusters(models.assignment, centres),
        inputs=inputs,
        seed=prepared.config.seed,
        channels_last=prepared.facts.recipe.channels_last,
    )


def _alone_in_cluster(assignment: np.ndarray | None, clients: int) -> np.ndarray:
    """Return which clients are the only member of their cluster: their model is also the cluster's model."""
    if assignment is None:
        return np.zeros(clients, bool)
    sizes = np.bincount(assignment[assignment >= 0], minlength=1)
    return (assignment >= 0) & (sizes[np.maximum(assignment, 0)] == 1)


def _the_same(rows: np.ndarray, clients: np.ndarray) -> list[int] | None:
    """Return the models of these clients, if they all have the same ones; else None."""
    first = rows[clients[0]]
    same = (first >= 0).all() and (rows[clients] == first).all()
    return first.tolist() if same else None


def _clusters(assignment: np.ndarray | None, centres: list[tuple[np.ndarray, Any]]) -> list[dict[str, Any]]:
    """Return the models of each cluster: from the first candidate that is the same for all its clients."""
    found = []
    for cluster in [] if assignment is None else np.unique(assignment[assignment >= 0]).tolist():
        members = np.flatnonzero(assignment == cluster)
        for rows, combine in centres:
            same = _the_same(rows, members)
            if same is not None:
                found.append({"cluster": cluster, "rows": same, "combine": combine})
                break
    return found


def _personal(
    server: ServesModels, tested: TestedModels, pool: _Pool, rows: np.ndarray, clients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return these clients' personal models, as three arrays: the client, the part's number, and the model."""
    found: list[tuple[int, int, np.ndarray]] = []
    for number, part in enumerate(tested.parts):
        some = clients[rows[clients, number] == PERSONAL]
        if part.slot is None or not len(some):
            continue
        for client, below in zip(some.tolist(), server.own_models(part.slot, some), strict=True):
            row = part.choice[client]
            vector = below if row < 0 else pool.laid_over(below, part.stack[row], part.part)
            found.append((client, number, vector))
    found.sort(key=lambda entry: entry[:2])
    whose, parts, vectors = zip(*found, strict=True)
    return np.array(whose), np.array(parts), np.stack(vectors)


def _inputs(prepared: Prepared, number: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what the index and the model file say about the samples, as clients see them in this round."""
    data, partition = prepared.dataset, prepared.partition
    more = {"shift": np.asarray(data.shift), "scale": np.asarray(data.scale)}
    transforms: list[dict[str, Any]] = []
    transform_of = partition.transform_of_at(number)
    if transform_of is not None:
        transforms = [plain_transform(transform) for transform in partition.transforms]
        more["transform"] = transform_of.astype(np.int32)
    inputs = {
        "kind": data.kind,
        "shape": list(data.input_shape),
        "classes": data.classes,
        "vocabulary": data.vocabulary,
        "transforms": transforms,
    }
    for name in ("feature_names", "class_names"):
        if (names := getattr(data, name)) is not None:
            inputs[name] = list(names)
    return inputs, more
