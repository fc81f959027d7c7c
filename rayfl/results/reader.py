"""Reading a run, finished or still running: its config, its tables as DataFrames, and its models.

Nothing is computed here beyond sorting; comparisons, figures and metrics are in `rayfl.analysis`.
"""

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from rayfl.config import Config, load_config
from rayfl.errors import InputError, closest, shown
from rayfl.input_tree import load_yaml
from rayfl.results.client_names import read_client_names
from rayfl.results.fingerprints import Fingerprints, read_fingerprints
from rayfl.results.schema import NEWCOMERS, SKETCHES, TABLES
from rayfl.results.stopped import StoppedEarly, read_stopped
from rayfl.results.storage import Storage
from rayfl.results.writer import read_table

if TYPE_CHECKING:
    import pandas as pd  # importing it takes a third of a second, and a run needs it only at its end

    from rayfl.results.saved_models import SavedModel, SavedModels  # imports torch, which takes seconds

_CONFIG = "config.yaml"
#: The file in the folder of a sweep that lists its runs.
SWEEP_MANIFEST = "sweep.json"
T = TypeVar("T")


class Run:
    """A run's folder. Each table is read once, at its first use: call `load` again to see more rounds."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        #: The Python objects that were given to `rayfl.run`, by config key; a loaded run has none.
        self.objects: dict[str, Any] = {}

    @property
    def path(self) -> str:
        """The run's folder, or its URI."""
        return self._storage.path

    @property
    def storage(self) -> Storage:
        """The run's folder as it was opened, including secrets that `path` does not show."""
        return self._storage

    @cached_property
    def config(self) -> Config:
        """The resolved config that the run was made with."""
        try:
            text = self._storage.read(_CONFIG).decode()
        except UnicodeDecodeError:
            raise InputError(f"{self.path}/{_CONFIG} is not valid YAML: restore it, or run again") from None
        tree = load_yaml(text, f"{self.path}/{_CONFIG}")
        if not isinstance(tree, dict):
            raise InputError(f"{self.path}/{_CONFIG} holds no keys: restore it, or run again")
        return load_config(tree)

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per round."""
        return self._table("rounds", ["round"])

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """One row per round and client."""
        return self._table("clients", ["round", "client"])

    @cached_property
    def clusters(self) -> "pd.DataFrame":
        """One row per round and cluster."""
        return self._table("clusters", ["round", "cluster"])

    @cached_property
    def sketches(self) -> "pd.DataFrame":
        """With output.sketches, one row per round and client that trained: a few numbers that summarise its model."""
        return self._table("sketches", ["round", "client"], SKETCHES)

    @cached_property
    def newcomers(self) -> "pd.DataFrame":
        """One row per newcomer and rounds of fine-tuning (`tuned`) after which it was tested, if there are any."""
        return self._table("newcomers", ["round", "client", "tuned"], NEWCOMERS)

    @cached_property
    def extras(self) -> "pd.DataFrame":
        """What only this method reports: a column per key, a row per round; NaN if a round does not have the key."""
        import pandas as pd

        index = pd.Index(self.rounds["round"], name="round")
        return pd.DataFrame([json.loads(text) for text in self.rounds["extras"]], index=index)

    @cached_property
    def fingerprints(self) -> Fingerprints | None:
        """Digests of the run's data, partition and initial model; None for a run of an older version without them."""
        return read_fingerprints(self._storage)

    @cached_property
    def client_names(self) -> dict[int, str]:
        """The name of each client, if the data name clients: `run.clients.client.map(run.client_names)`."""
        return read_client_names(self._storage)

    @property
    def stopped_early(self) -> StoppedEarly | None:
        """When and why a callback ended the run; None if no callback did, or if the run was later given more rounds."""
        stopped = read_stopped(self._storage)
        return stopped if stopped is not None and self.config.rounds <= stopped.rounds else None

    @property
    def finished(self) -> bool:
        """Whether the run is complete: all its rounds are written, or a callback has ended it."""
        return len(self.rounds) >= self.config.rounds or self.stopped_early is not None

    def model(
        self,
        *,
        client: int | str | None = None,
        cluster: int | None = None,
        round: int | None = None,
        model: Any = None,
        trust: bool = False,
        transformed: bool = False,
    ) -> "SavedModel":
        """Return a saved model as a torch module for raw samples: that of a client, of a cluster, or the global model.

        A client is given by its number, or by its name if the data name clients (`client_names`).

        If clients share only some layers, the model of a cluster, or the global model, has these layers, and all other
        layers are those of the initial model. `round` selects models that a callback saved after that round.

        If the run names its network by import path, the code is imported only with `trust=True`, or if `model` is the
        same import path. `model` may also be the network itself, or its class if the run was given a class. For a
        client, pass samples as they are in the source; or set `transformed` if the samples already have the transform
        of the client's planted cluster.
        """
        if client is not None and cluster is not None:
            raise InputError(f"client={shown(client)} and cluster={shown(cluster)} exclude each other: give one")
        saved = self._models(round)
        if isinstance(client, str):
            client = self._number_of(client)
        if client is not None:
            return saved.of_client(client, model, trust, transformed)
        return saved.of_everyone(model, trust) if cluster is None else saved.of_cluster(cluster, model, trust)

    def predict(self, samples: Any, *, probabilities: bool = False, **which: Any) -> np.ndarray:
        """Return the class of each raw sample (n,), or probabilities (n, classes).

        `which` are the arguments of `model`. For a regression, return the predicted number for each sample (n,).
        """
        outputs = self.model(**which)(samples).cpu()
        if outputs.shape[1] == 1:
            return outputs[:, 0].numpy()
        return (outputs.softmax(1) if probabilities else outputs.argmax(1)).numpy()

    def assign(
        self, samples: Any, labels: Any, *, round: int | None = None, model: Any = None, trust: bool = False
    ) -> int:
        """Return the cluster of a new client: the one whose model has the smallest mean loss on its raw samples."""
        return self._models(round).assign(samples, labels, model, trust)

    def _number_of(self, name: str) -> int:
        names = list(self.client_names.values())
        if name in names:
            return names.index(name)
        has = f"there are {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}" if names else "they have numbers"
        raise InputError(f"client={shown(name)}: no client has this name{closest(name, names)}; {has}")

    def _models(self, number: int | None) -> "SavedModels":
        from rayfl.results.saved_models import SavedModels

        return SavedModels(self._storage, self.config, number, self.objects)

    def _table(self, name: str, order: list[str], schema: pa.Schema | None = None) -> "pd.DataFrame":
        parts = []
        for file in [f for f in self._storage.list(name) if f.endswith(".parquet")]:
            try:
                parts.append(read_table(self._storage.read(f"{name}/{file}")))
            except (pa.ArrowException, ValueError) as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise InputError(
                    f"{self.path}/{name}/{file} is damaged ({reason}): restore it, or move the run away"
                ) from None
        # A run of version 0.1 has fewer columns; a run whose task has other metrics has more.
        every = pa.schema([field.with_nullable(True) for field in schema or TABLES[name]])
        frame = pa.concat_tables([every.empty_table(), *parts], promote_options="default").to_pandas()
        if frame["method"].isna().any():
            frame = frame.assign(method=self.config.method.name, seed=self.config.seed)
        if name in ("clients", "newcomers"):
            # By default, pandas turns a column of integers with nulls into floats: cluster 3 becomes 3.0.
            frame = frame.astype({"cluster": "Int32", "true_cluster": "Int32"})
        return frame.sort_values(order, kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        config, rounds = self.config, self.rounds
        tested = rounds["accuracy"].dropna()
        accuracy = f", accuracy {tested.iloc[-1]:.4f}" if len(tested) else ""
        return (
            f"Run({self.path!r}: {config.method.name} on {config.data.source}, seed {config.seed},"
            f" {len(rounds)} of {config.rounds} rounds{accuracy})"
        )

    def _repr_html_(self) -> str:
        from rayfl.results.html_summary import summary_html

        return summary_html(self)


def load(path: str | Path | Storage) -> Run:
    """Open the run in the folder `path`, or at a pyarrow.fs / fsspec URI."""
    return _open(path, [_CONFIG, *TABLES])


def load_begun(path: str | Path) -> Run:
    """Open a run that may have been killed before its tables were written."""
    return _open(path, [_CONFIG])


#: How many folders deep `load_all` searches: a study, its sweeps, their runs, and one more.
DEPTH = 4


def load_all(path: str | Path | Storage) -> list[Run]:
    """Open every run below a folder, sorted by name, up to four folders deep; for a run's own folder, just that run.

    A run that was killed before its first round is included, without rows. Links are not followed.
    """
    storage = path if isinstance(path, Storage) else Storage(path)
    if not _attempt(storage.path, lambda: storage.exists("")):
        raise InputError(f"{storage.path} does not exist: give a run folder, or a folder that holds runs")
    return _attempt(storage.path, lambda: list(_runs_below(storage, DEPTH)))


def _runs_below(storage: Storage, depth: int) -> Iterator[Run]:
    if _is_run(storage):
        yield Run(storage)
    elif depth:
        for name in storage.folders():
            yield from _runs_below(storage.folder(name), depth - 1)


def _is_run(storage: Storage) -> bool:
    """Whether the folder is a run's folder; a config.yaml that the user put next to some runs does not make it one."""
    if not storage.exists(_CONFIG):
        return False
    return all(map(storage.exists, TABLES)) or storage.read(_CONFIG).startswith(b"# rayfl ")


def _open(path: str | Path | Storage, needed: list[str]) -> Run:
    storage = path if isinstance(path, Storage) else Storage(path)
    path = storage.path if isinstance(path, Storage) else path
    found = _attempt(path, lambda: storage.exists(""))
    missing = _attempt(path, lambda: [name for name in needed if not storage.exists(name)])
    if not found:
        raise InputError(f"{path} is not a run folder: it does not exist")
    if missing:
        inside = [name for name in storage.list() if storage.exists(f"{name}/{_CONFIG}")]
        hint = f"; it holds runs: {', '.join(inside[:5])}{', ...' if len(inside) > 5 else ''}" if inside else ""
        if storage.exists(SWEEP_MANIFEST):
            hint += "; the sweep itself goes on with the 'rayfl sweep' command that started it"
        raise InputError(f"{path} is not a run folder: {', '.join(missing)} missing{hint}")
    return Run(storage)


def _attempt(path: str | Path, action: Callable[[], T]) -> T:
    try:
        return action()
    except InputError:
        raise
    except Exception as error:  # each file system has its own errors, and others if credentials are missing
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(
            f"{path} cannot be read: {reason}; check the path; the secrets of a URI are not saved with a run:"
            " give them again, in the URI or in the environment"
        ) from None
