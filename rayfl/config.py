"""The configuration: one typed tree. YAML, dotted overrides and Python keywords in; resolved YAML out.

Every fault becomes one line that names the key, the value, what is allowed and the closest valid name. What a
method's own options mean stands with the method; here they are only carried.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from rayfl.errors import InputError, closest, shown
from rayfl.input_tree import MOST_CHARACTERS, check_tree, dump_yaml, load_yaml
from rayfl.uris import without_secrets

Source = Literal[
    "digits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    "svhn",
    "image_folder",
    "npz",
    "parquet",
    "text",
]
#: The most of anything that is counted: rounds, clients, samples, ... What fits into memory is checked later.
MOST = 10**9
#: The most planted clusters that each hold all samples, or have an angle of their own.
MOST_COPIES = 1000
#: Concentrations outside this range round to one client or class that gets all, or to equal shares.
ALPHAS = (1e-9, 1e9)
Positive = Annotated[int, Field(ge=1, le=MOST)]
Angle = Annotated[float, Field(ge=-360, le=360)]
PartitionKind = Literal["iid", "dirichlet", "classes", "cluster_dirichlet", "cluster_classes", "transforms", "natural"]


class Section(BaseModel):
    """A node of the tree: no unknown keys, no silent conversions, immutable once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def __repr_args__(self) -> Any:
        """Show a config without the secrets that it holds."""
        return [(name, _without_secrets(value)) for name, value in super().__repr_args__()]


class DataConfig(Section):
    """Where the samples come from."""

    source: Source = Field("digits", description="the data set, or the kind of file it is in")
    root: str | None = Field(
        None, description="folder of the downloaded sets (mnist ... svhn); default: $RAYFL_DATA, else ./data"
    )
    path: str | None = Field(None, description="file or folder of an image_folder, npz, parquet or text source")
    label: str = Field("label", description="parquet: the column with the class of each row")
    window: int = Field(80, ge=1, le=100_000, description="text: how many characters are seen before the next one")
    stride: int = Field(1, ge=1, le=MOST, description="text: characters between the starts of two windows")
    limit: int | None = Field(None, ge=2, le=MOST, description="take only so many samples, drawn by the seed")
    normalise: Literal["standard", "half", "none"] = Field(
        "standard",
        description="standard: mean 0 and deviation 1 per channel or feature; half: (x - 0.5) / 0.5 on pixels in 0..1, "
        "as in the public code of the thesis; none: pixels in 0..1, features as they are; text is never changed",
    )

    @model_validator(mode="after")
    def _path_where_needed(self) -> "DataConfig":
        if self.source in ("image_folder", "npz", "parquet", "text") and self.path is None:
            raise ValueError(f"data.path is missing: data.source={self.source} reads a file or folder, say which")
        if self.path is not None and self.source not in ("image_folder", "npz", "parquet", "text"):
            raise ValueError(f"data.path={self.path} is not used by data.source={self.source}: use data.root")
        if self.normalise == "half" and self.source in ("parquet", "text"):
            raise ValueError(
                f"data.normalise=half is for the pixels of images, and data.source={self.source} has none: use standard"
                " or none"
            )
        return self


#: Which keys each kind of partition reads, with their defaults; all kinds read clients, samples, test, validation
#: and public.
PARTITION_KEYS: dict[str, dict[str, Any]] = {
    "iid": {},
    "dirichlet": {"alpha": 0.1},
    "classes": {"classes": 2},
    "cluster_dirichlet": {"clusters": 5, "alpha_cluster": 0.1, "alpha_client": 10.0},
    "cluster_classes": {"clusters": 5, "classes_cluster": 3, "classes_client": 2},
    "transforms": {"transform": "rotation", "clusters": None, "angles": None, "whole_per_cluster": None},
    "natural": {"column": None},
}
_CLUSTERED = ("cluster_dirichlet", "cluster_classes", "transforms")
_TRANSFORM_CLUSTERS = {"rotation": 4, "inversion": 2, "label_permutation": 4}


class PartitionConfig(Section):
    """Who gets which samples."""

    kind: PartitionKind = "transforms"
    clients: int | None = Field(None, ge=1, le=MOST, description="number of clients (20); natural: take only so many")
    clusters: int | None = Field(None, ge=1, le=MOST, description="number of planted clusters")
    cluster_sizes: list[Positive] | None = Field(
        None, min_length=1, description="clients per cluster, instead of clusters of equal size"
    )
    samples: list[Positive] | None = Field(
        None, description="[min, max] samples per client, training and test together"
    )
    test: float | Literal["official"] = Field(
        0.2,
        description="share of each client's samples kept for testing, or official: test samples come from the "
        "source's own test split, with the client's label distribution",
    )
    validation: float | Literal["official"] | None = Field(
        None,
        description="share of each client's training samples kept for validation, or official: validation samples come "
        "from the source's own validation split (val of npz, image folders, parquet); default: official where there is "
        "such a split, else 0. With a share, or 0, that split is dealt for training",
    )
    public: float | Literal["none", "test"] | None = Field(
        None,
        description="samples that only the server sees, without labels, and no client has. test: the source's own test "
        "split, as FedTSDP has it; or a share of the samples, drawn by the seed; or none. Default: none, but "
        "for methods that need them (fedtsdp) test, or 0.1 where there is no such split or partition.test=official",
    )
    alpha: float | None = Field(
        None, ge=ALPHAS[0], le=ALPHAS[1], description="dirichlet: concentration of each client's labels"
    )
    alpha_cluster: float | None = Field(
        None, ge=ALPHAS[0], le=ALPHAS[1], description="cluster_dirichlet: between clusters"
    )
    alpha_client: float | None = Field(
        None, ge=ALPHAS[0], le=ALPHAS[1], description="cluster_dirichlet: within a cluster"
    )
    classes: int | None = Field(None, ge=1, le=MOST, description="classes: how many classes a client has")
    classes_cluster: int | None = Field(None, ge=1, le=MOST, description="cluster_classes: classes of a cluster")
    classes_client: int | None = Field(
        None, ge=1, le=MOST, description="cluster_classes: of which a client has so many"
    )
    transform: Literal["rotation", "inversion", "label_permutation"] | None = Field(
        None, description="transforms: what sets the clusters apart"
    )
    angles: list[Angle] | None = Field(
        None,
        min_length=1,
        max_length=MOST_COPIES,
        description="transforms by rotation: degrees against the clock, one per cluster, instead of quarter turns; "
        "[0, 180] is SR-FCA's CIFAR-10. Other than quarter turns are interpolated, black beyond the edge",
    )
    whole_per_cluster: bool | None = Field(
        None,
        description="transforms: each cluster is dealt all samples, as in SR-FCA's CIFAR-10 (false); a sample is then "
        "held once per cluster, and is training, validation or test data for all of them alike",
    )
    column: str | None = Field(None, description="natural: the column that says whose sample it is")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_kind(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        given = {k: v for k, v in given.items() if v is not None}
        kind = given.get("kind", "transforms")
        if not isinstance(kind, str) or kind not in PARTITION_KEYS:
            return given
        used = PARTITION_KEYS[kind]
        clustered = kind in _CLUSTERED
        for key in {k for keys in PARTITION_KEYS.values() for k in keys} | {"cluster_sizes"}:
            if key in given and key not in used and not (key == "cluster_sizes" and clustered):
                kinds = [k for k, keys in PARTITION_KEYS.items() if key in keys] or list(_CLUSTERED)
                raise ValueError(
                    f"partition.{key}={shown(given[key])} is not used by partition.kind={kind}"
                    f" (only by {', '.join(kinds)}): remove it, or change partition.kind"
                )
        filled = {k: v for k, v in used.items() if v is not None} | given
        if kind != "natural":
            sizes = filled.get("cluster_sizes")
            filled.setdefault("clients", sum(sizes) if _is_ints(sizes) else 20)
        if clustered and _is_ints(given.get("cluster_sizes")) and "clusters" not in given:
            filled["clusters"] = len(given["cluster_sizes"])
        if kind == "transforms" and isinstance(filled["transform"], str):
            angles = filled.get("angles")
            several = len(angles) if isinstance(angles, list) else 0
            filled.setdefault("clusters", several or _TRANSFORM_CLUSTERS.get(filled["transform"]))
        return filled

    @model_validator(mode="after")
    def _possible(self) -> "PartitionConfig":
        if isinstance(self.test, float) and not 0 < self.test < 1:
            raise ValueError(f"partition.test={self.test} must lie between 0 and 1, or be 'official'")
        if isinstance(self.validation, float) and not 0 <= self.validation < 1:
            raise ValueError(f"partition.validation={self.validation} must be at least 0 and below 1, or be 'official'")
        if isinstance(self.public, float) and not 0 < self.public < 1:
            raise ValueError(f"partition.public={self.public} must lie between 0 and 1, or be 'none' or 'test'")
        if self.public == "test" and self.test == "official":
            raise ValueError(
                "partition.public=test and partition.test=official want the same samples: use a share for one of them,"
                " such as partition.test=0.2"
            )
        if self.samples is not None and (len(self.samples) != 2 or not 2 <= self.samples[0] <= self.samples[1]):
            raise ValueError(
                f"partition.samples={self.samples} must be [min, max] with 2 <= min <= max (one to train, one to test)"
            )
        if self.kind == "natural" and self.column is None:
            raise ValueError("partition.column is missing: partition.kind=natural needs the column with the owner")
        if self.clusters is not None and self.clients is not None and self.clusters > self.clients:
            raise ValueError(
                f"partition.clusters={self.clusters} is more than partition.clients={self.clients}:"
                " some clusters would have nobody"
            )
        if self.cluster_sizes is not None:
            if min(self.cluster_sizes, default=0) < 1 or sum(self.cluster_sizes) != self.clients:
                raise ValueError(
                    f"partition.cluster_sizes={self.cluster_sizes} must be positive and add up to"
                    f" partition.clients={self.clients} (they add up to {sum(self.cluster_sizes)})"
                )
            if len(self.cluster_sizes) != self.clusters:
                raise ValueError(
                    f"partition.cluster_sizes={self.cluster_sizes} names {len(self.cluster_sizes)} clusters,"
                    f" partition.clusters={self.clusters}: leave one of them out"
                )
        self._check_angles()
        if self.whole_per_cluster and self.clusters is not None and self.clusters > MOST_COPIES:
            raise ValueError(
                f"partition.clusters={self.clusters} is too many for partition.whole_per_cluster: use at most"
                f" {MOST_COPIES}"
            )
        most = {"rotation": 4, "inversion": 2}.get(self.transform or "") if self.angles is None else None
        if most and self.clusters is not None and self.clusters > most:
            more = "partition.angles names more" if self.transform == "rotation" else "label_permutation has more"
            raise ValueError(
                f"partition.clusters={self.clusters} is too many for partition.transform={self.transform}:"
                f" it has {most} ({more})"
            )
        if self.classes_cluster and self.classes_client and self.classes_client > self.classes_cluster:
            raise ValueError(
                f"partition.classes_client={self.classes_client} is more than"
                f" partition.classes_cluster={self.classes_cluster}: a client's classes are its cluster's"
            )
        return self

    def _check_angles(self) -> None:
        if self.angles is None:
            return
        if self.transform != "rotation":
            raise ValueError(
                f"partition.angles={shown(self.angles)} is not used by partition.transform={self.transform}: remove it,"
                " or use partition.transform=rotation"
            )
        if len(self.angles) != self.clusters:
            raise ValueError(
                f"partition.angles={shown(self.angles)} has {len(self.angles)} angles for"
                f" partition.clusters={self.clusters}: give one angle per cluster, or leave partition.clusters out"
            )
        if len({round(angle, 6) % 360 for angle in self.angles}) < len(self.angles):
            raise ValueError(
                f"partition.angles={shown(self.angles)} names one angle twice: these clusters would be one, remove it"
            )


class ModelConfig(Section):
    """The network."""

    name: str = Field("digits_cnn", description="a name of the zoo, or package.module:Class")
    head: str | None = Field(
        None,
        description="module that is the head (default: the last fully connected layer); the rest is backbone",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the network's class")


class MethodConfig(Section):
    """The method's name, and its own options, which the method itself describes and checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    name: str = Field("fedac", description="see `rayfl methods`, or package.module:Class")
    _of_another: frozenset[str] = PrivateAttr(frozenset())

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options as given."""
        return dict(self.model_extra or {})

    def options_among(self, known: Collection[str]) -> dict[str, Any]:
        """The options as given, without those that a file meant for the method that an override replaced.

        So `rayfl run fedac.yaml method.name=fedavg` runs, and still keeps what both methods know.
        """
        return {k: v for k, v in self.options.items() if k in known or k not in self._of_another}


class LocalConfig(Section):
    """What a client does in one round."""

    steps: int | None = Field(None, ge=1, le=MOST, description="optimiser steps per round (10)")
    epochs: int | None = Field(None, ge=1, le=MOST, description="passes over the client's data, instead of steps")
    batch_size: int = Field(32, ge=1, le=MOST)
    lr: float = Field(0.05, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    keep_momentum: bool = Field(
        False,
        description="keep each client's momentum from round to round, as the code of CAM's author does; the papers do"
        " not say, so by default it starts from rest",
    )
    weight_decay: float = Field(0.0, ge=0)
    lr_decay: float = Field(1.0, gt=0, le=1, description="the learning rate is multiplied by this every round")

    @model_validator(mode="before")
    @classmethod
    def _steps_or_epochs(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            if given.get("steps") is not None and given.get("epochs") is not None:
                raise ValueError(
                    f"local.steps={shown(given['steps'])} and local.epochs={shown(given['epochs'])} exclude each other:"
                    " remove one"
                )
            if given.get("steps") is None and given.get("epochs") is None:
                return {**given, "steps": 10}
        return given

    @model_validator(mode="after")
    def _momentum_to_keep(self) -> "LocalConfig":
        if self.keep_momentum and not self.momentum:
            raise ValueError(
                "local.keep_momentum=True: local.momentum=0.0 leaves nothing to keep; set local.momentum, or leave"
                " local.keep_momentum out"
            )
        return self


class ParticipationConfig(Section):
    """How many clients take part in a round."""

    fraction: float | None = Field(None, gt=0, le=1, description="share of the clients in each round's cohort (1.0)")
    count: int | None = Field(None, ge=1, le=MOST, description="size of the cohort, instead of fraction")

    @model_validator(mode="after")
    def _fraction_or_count(self) -> "ParticipationConfig":
        if self.fraction is not None and self.count is not None:
            raise ValueError(
                f"participation.fraction={self.fraction} and participation.count={self.count} exclude each other:"
                " remove one"
            )
        return self


class EvaluateConfig(Section):
    """When the models are tested."""

    every: int = Field(1, ge=1, le=MOST, description="test all clients every so many rounds, and after the last")


_RAY_STEP = 0.0001


class RayConfig(Section):
    """The Ray cluster and the shares of it that actors take."""

    address: str | None = Field(
        None,
        description="a Ray cluster; default: the Ray of this process, else $RAY_ADDRESS, else a local one",
    )
    actors: int | None = Field(None, ge=1, le=MOST, description="number of client actors; default: as many as fit")
    cpus_per_actor: float = Field(1.0, ge=0, le=MOST)
    gpus_per_actor: float | None = Field(None, ge=0, le=MOST, description="share of a GPU per actor; use 1/k")
    actors_per_gpu: int | None = Field(
        None, ge=1, le=10_000, description="the same as gpus_per_actor = 1/actors_per_gpu"
    )
    resources: dict[str, float] = Field(
        default_factory=dict, description="custom resources that each client actor takes, as nodes were started with"
    )
    placement_group: str | None = Field(
        None,
        description="name of a placement group for the client actors; default: the one this process runs in, if any",
    )
    server: str = Field("head", description="where the server actor lives: head, driver, or a node's name or address")
    start_timeout: float = Field(120.0, gt=0, le=MOST, description="seconds to wait for the actors to start")
    lost_after: float = Field(
        60.0, gt=0, le=MOST, description="seconds without an answer after which an actor counts as lost"
    )

    @model_validator(mode="after")
    def _possible(self) -> "RayConfig":
        wrong = {
            name: amount
            for name, amount in self.resources.items()
            if not 0 < amount <= MOST or name in ("CPU", "GPU") or not name.strip()
        }
        if wrong:
            raise ValueError(
                f"ray.resources={shown(wrong)}: give custom resources names, and positive amounts up to {MOST}; for"
                " CPUs and GPUs there are ray.cpus_per_actor and ray.gpus_per_actor"
            )
        if self.gpus_per_actor is not None and self.actors_per_gpu is not None:
            raise ValueError(
                f"ray.gpus_per_actor={self.gpus_per_actor} and ray.actors_per_gpu={self.actors_per_gpu} exclude each"
                " other: remove one"
            )
        amounts = {"cpus_per_actor": self.cpus_per_actor, "gpus_per_actor": self.gpus_per_actor or 0.0}
        amounts |= {f"resources.{name}": amount for name, amount in self.resources.items()}
        for name, amount in amounts.items():
            if 0 < amount < _RAY_STEP:
                raise ValueError(f"ray.{name}={amount} is too little: Ray counts in steps of {_RAY_STEP}")
        if self.gpus_per_actor is not None and self.gpus_per_actor > 1 and self.gpus_per_actor % 1:
            raise ValueError(f"ray.gpus_per_actor={self.gpus_per_actor} must be at most 1, or a whole number of GPUs")
        return self

    @property
    def gpu_share(self) -> float:
        """GPUs per actor, however it was said."""
        return 1 / self.actors_per_gpu if self.actors_per_gpu else self.gpus_per_actor or 0.0


class StateConfig(Section):
    """Where the models are that clients hold, on each actor."""

    memory_mb: int = Field(
        2048, ge=0, le=MOST, description="memory for them per actor; what is beyond lies in mapped files"
    )
    dir: str | None = Field(None, description="folder of these files on the actor's node; default: the temporary one")


class OutputConfig(Section):
    """Where results go."""

    dir: str = Field(
        "runs", min_length=1, description="folder, or any pyarrow.fs / fsspec URI, that gets one folder per run"
    )
    checkpoint_every: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="rounds between two checkpoints, 0 for none; default: as often as costs under 2 % of the time",
    )


Training = Literal["auto", "loop", "vectorised"]


class Config(Section):
    """Everything a run depends on."""

    name: str | None = Field(None, description="name of the run's folder; default: source-method-seed and the time")
    seed: int = Field(0, ge=0, le=2**63 - 1)  # the tables hold it as int64
    rounds: int = Field(60, ge=1, le=MOST)
    data: DataConfig = DataConfig()
    partition: PartitionConfig = Field(default_factory=lambda: PartitionConfig.model_validate({}))
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    local: LocalConfig = Field(default_factory=lambda: LocalConfig.model_validate({}))
    participation: ParticipationConfig = ParticipationConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    ray: RayConfig = RayConfig()
    state: StateConfig = StateConfig()
    output: OutputConfig = OutputConfig()
    federation: Literal["ray", "serial"] = "ray"
    training: Training = Field(
        "auto",
        description="one client after the other, or several at once; auto: by network, batch size, device and CPU",
    )
    cpu_capability: str | None = Field(
        None,
        max_length=64,
        description="the CPU instructions that a run began with, such as AVX2; filled in when it starts",
    )

    @model_validator(mode="after")
    def _cohort_fits(self) -> "Config":
        count, clients = self.participation.count, self.partition.clients
        if count is not None and clients is not None and count > clients:
            raise ValueError(
                f"participation.count={count} is more than partition.clients={clients}: nobody takes part twice"
            )
        if self.name is not None and not _is_folder_name(self.name):
            raise ValueError(
                f"name={shown(self.name)} cannot be a folder: use letters, digits, '-', '_' and '.', at most"
                f" {_MOST_NAME} characters"
            )
        return self

    def cohort_size(self, clients: int) -> int:
        """How many of `clients` take part in a round: at least one."""
        if self.participation.count is not None:
            return min(self.participation.count, clients)
        return max(1, round((self.participation.fraction or 1.0) * clients))

    def to_tree(self) -> dict[str, Any]:
        """The resolved config as plain values, as it is saved with the run: URIs without their secrets."""
        return _without_secrets(self.model_dump(mode="json", exclude_none=True))

    def to_yaml(self) -> str:
        """The resolved config, as it is saved with the run and read back."""
        return dump_yaml(self.to_tree())


def load_config(
    given: str | Path | Mapping[str, Any] | Config | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
) -> Config:
    """Read a config from a YAML file, a mapping or nothing (the embedded default), with overrides on top.

    >>> load_config({"rounds": 5}, ["method.name=fedavg", "seed=3"]).method.name
    'fedavg'
    """
    tree = _tree(given)
    filed = tree.get("method", {})
    filed = dict(filed) if isinstance(filed, dict) else {}
    pairs = [_parse_override(o) for o in overrides] if not isinstance(overrides, Mapping) else overrides.items()
    for key, value in pairs:
        _set(tree, key, value)
    check_tree(tree)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise InputError(*[_line(e) for e in error.errors()]) from None
    if config.method.name != filed.get("name", MethodConfig().name):
        unchanged = {k for k, v in config.method.options.items() if k in filed and filed[k] == v}
        config.method._of_another = frozenset(unchanged)
    return config


def describe_errors(error: ValidationError, prefix: str, model: type[BaseModel]) -> list[str]:
    """Turn the faults of one section, checked on its own, into lines whose keys start with `prefix`."""
    return [_line(e, (prefix,), model) for e in error.errors()]


def _tree(given: str | Path | Mapping[str, Any] | Config | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Config):
        return given.model_dump(exclude_none=True)
    if isinstance(given, Mapping):
        check_tree(given)
        return deepcopy(dict(given))
    path = Path(given)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)  # a device or a pipe may have no end
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = getattr(error, "strerror", None) or "not a text file"
        raise InputError(f"config file {path} cannot be read: {reason}") from None
    tree = load_yaml(text, f"config file {path}")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"config file {path} must hold keys such as 'rounds: 60', not a {type(tree).__name__}")
    return tree


def _parse_override(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise InputError(f"{shown(text)} is not an override: write key=value, for example method.name=fedavg")
    return key.strip(), load_yaml(value, f"{key.strip()}={shown(value)}: the value")


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key. A mapping is merged into what is there, an empty one clears it, and an either-or key displaces
    its rival.
    """
    *parents, last = dotted.split(".")
    node = tree
    for i, parent in enumerate(parents):
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            name = ".".join(parents[: i + 1])
            raise InputError(f"{dotted}={shown(value)}: {name} is a value ({shown(node)}), it has no keys below it")
    if isinstance(value, Mapping) and value and isinstance(node.get(last), dict):
        for key, inner in value.items():
            _set(node[last], str(key), inner)
        return
    for rivals in (("steps", "epochs"), ("fraction", "count"), ("gpus_per_actor", "actors_per_gpu")):
        if last in rivals and value is not None and parents and parents[-1] in ("local", "participation", "ray"):
            for rival in rivals:
                node.pop(rival, None)
    node[last] = value


def _section(model: type[BaseModel], keys: Sequence[str | int]) -> type[BaseModel] | None:
    for key in keys:
        field = model.model_fields.get(str(key))
        if field is None:
            return None
        kinds = [field.annotation, *get_args(field.annotation)]
        model = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), BaseModel)
    return model


def _line(error: ErrorDetails, prefix: tuple[str, ...] = (), root: type[BaseModel] = Config) -> str:
    loc = [k for k in error["loc"] if not (isinstance(k, str) and (k.startswith("literal[") or k in _TYPE_TAGS))]
    key = ".".join([*prefix, *map(str, loc)])
    value = error["input"]
    if error["type"] == "value_error":  # our own validators say everything themselves
        return str(error["ctx"]["error"])
    if error["type"] == "extra_forbidden":
        section = _section(root, loc[:-1])
        allowed = sorted(section.model_fields) if section else []
        hint = closest(str(loc[-1]), allowed)
        return f"{key}={shown(value)}: there is no key '{loc[-1]}'{hint}; allowed: {', '.join(allowed)}"
    if error["type"] == "literal_error":
        names = [k for k in loc if isinstance(k, str)]  # without the position in a list
        section = _section(root, names[:-1])
        field = section.model_fields.get(names[-1]) if section else None
        allowed = _literals(field.annotation) if field else []
        hint = closest(value, allowed) if isinstance(value, str) else ""
        return f"{key}={shown(value)} is not allowed{hint}; allowed: {', '.join(allowed)}"
    if error["type"] == "missing":
        return f"{key} is missing: {error['msg'].lower()}"
    return f"{key}={shown(value)}: {error['msg'][0].lower()}{error['msg'][1:]}"


_TYPE_TAGS = ("float", "int", "str", "bool", "list[int]")


def _literals(annotation: Any) -> list[str]:
    found = []
    for arg in get_args(annotation):
        found += [arg] if isinstance(arg, str) else _literals(arg)
    return found


def _without_secrets(value: Any) -> Any:
    """Leave the secrets of URIs out of all text in a tree."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {key: _without_secrets(inner) for key, inner in value.items()}
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value


_MOST_NAME = 200  # bytes: file systems end at 255, and files beside the folder have longer names


def _is_folder_name(name: str) -> bool:
    return bool(name.strip(". ")) and not set("/\\\0\n") & set(name) and len(name.encode()) <= _MOST_NAME


def _is_ints(value: Any) -> bool:
    """Whether this is a list of sizes, so that its length and sum mean something."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, int) and 1 <= v <= MOST for v in value)
