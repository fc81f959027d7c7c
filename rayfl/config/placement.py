"""Config keys `ray.*`, `state.*` and `output.*`: where a run computes and what it leaves."""

from typing import Literal

from pydantic import Field, model_validator

from rayfl.config.section import MOST, Section
from rayfl.errors import shown

_RAY_STEP = 0.0001

#: Which models are saved: none; those that clients share (cluster centres, the global model); those of all clients too.
ModelsToSave = Literal["none", "shared", "all"]


class RayConfig(Section):
    """The Ray cluster and the shares of it that actors take."""

    address: str | None = Field(
        None,
        description="a Ray cluster; default: the Ray of this process, else $RAY_ADDRESS, else a local one",
    )
    actors: int | None = Field(None, ge=1, le=MOST, description="number of client actors; default: as many as fit")
    cpus_per_actor: float = Field(1.0, ge=0, le=MOST, description="CPUs that each client actor takes")
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
        """GPUs per actor, from whichever of the two keys is set."""
        return 1 / self.actors_per_gpu if self.actors_per_gpu else self.gpus_per_actor or 0.0


class StateConfig(Section):
    """Where the models are that clients hold, on each actor."""

    memory_mb: int = Field(
        2048, ge=0, le=MOST, description="memory for them per actor; more than that is kept in mapped files"
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
    models: ModelsToSave = Field(
        "shared",
        description="models saved after the last round: none, shared (cluster centres, the global model), or all"
        " (each client's own too)",
    )
    sketches: int = Field(
        0,
        ge=0,
        le=4096,
        description="numbers per client and round that stand for the model it trained, in the table sketches/, for"
        " figures of who is near whom; 0 for none",
    )


Training = Literal["auto", "loop", "vectorised"]
