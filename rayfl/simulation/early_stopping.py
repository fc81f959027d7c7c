"""Early stopping: end a run when a metric has stopped improving."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from rayfl.analysis.metrics import lower_is_better
from rayfl.config import describe_errors
from rayfl.config.section import MOST, Section
from rayfl.errors import CallbackError, InputError, closest
from rayfl.results import TABLES
from rayfl.simulation.callbacks import Callback, RunFacts

if TYPE_CHECKING:
    from rayfl.simulation.server import RoundRecord

#: Columns of `rounds` that are not measurements.
_KEYS = ("run", "method", "seed", "round", "extras")
_NEEDS_TRUTH = ("ari", "nmi", "misclustering")


class _Options(Section):
    metric: str
    patience: int = Field(ge=1, le=MOST)
    min_change: float = Field(ge=0)
    mode: Literal["max", "min"] | None


@dataclass
class Best:
    """The best value so far."""

    metric: str
    value: float | None = None  # None before the first one
    round: int = 0
    waited: int = 0  # evaluations since the best one, or since early stopping last ended the run


class EarlyStopping(Callback):
    """End the run when `metric` has not improved by more than `min_change` in `patience` evaluations in a row.

    `metric` is a column of `rounds` or a key of `extras`. `mode` says whether higher (`max`) or lower (`min`) is
    better; the default is lower for a loss, an error (mse, mae) and misclustering. Only rounds with the metric count.
    """

    state: Best

    def __init__(
        self,
        metric: str = "validation_accuracy",
        patience: int = 5,
        min_change: float = 0.0,
        mode: Literal["max", "min"] | None = None,
    ) -> None:
        try:
            given = {"metric": metric, "patience": patience, "min_change": min_change, "mode": mode}
            options = _Options.model_validate(given)
        except ValidationError as error:
            raise InputError(*describe_errors(error, "early_stopping", _Options)) from None
        self.metric, self.patience, self.min_change = options.metric, options.patience, options.min_change
        self.mode = options.mode or ("min" if lower_is_better(metric) else "max")

    def check(self, run: RunFacts) -> list[str]:
        """Refuse a metric that this run cannot have."""
        given = f"early_stopping.metric={self.metric}"
        if self.metric in _KEYS:
            return [f"{given} is no measurement: name a column of rounds such as accuracy, or a key of extras"]
        if self.metric.startswith("validation_") and not run.n_validation.any():
            return [
                f"{given}: clients have no validation samples; set partition.validation to a share such as 0.1, or name"
                " another metric"
            ]
        if self.metric in _NEEDS_TRUTH and run.true_cluster is None:
            return [f"{given}: partition.kind={run.config.partition.kind} plants no clusters; name another metric"]
        if run.config.method.options.get("finetune"):
            return [
                "callbacks: early_stopping does not go with method.finetune=True: clients are fine-tuned in the last"
                " round, and which one that is would be known only after it; leave one of them out"
            ]
        return []

    def on_start(self, run: RunFacts) -> None:
        """Start without a best value."""
        self.state = Best(self.metric)

    def on_round_end(self, record: "RoundRecord") -> str | None:
        """Compare with the best value so far."""
        value, best = record.value(self.metric), self.state
        if value is None:
            if {"accuracy", "loss"} & set(record.summary) and self.metric not in TABLES["rounds"].names:
                self._refuse_unknown(record)
            return None
        if best.metric != self.metric:  # a resumed run may watch another metric
            best = self.state = Best(self.metric)
        if self._improves(value):
            best.value, best.round, best.waited = value, record.number, 0
            return None
        best.waited += 1
        if best.waited < self.patience:
            return None
        best.waited = 0  # if the run is given more rounds, it gets the same patience again
        since = "is not a number" if best.value is None else f"{best.value:.4g} in round {best.round} was the best"
        by = f" by more than {self.min_change:g}" if self.min_change else ""
        return f"{self.metric} has not improved{by} in {self.patience} evaluations: {since}"

    def _improves(self, value: float) -> bool:
        best = self.state.value
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value > best + self.min_change if self.mode == "max" else value < best - self.min_change

    def _refuse_unknown(self, record: "RoundRecord") -> None:
        numbers = [name for name in (*record.summary, *record.extras) if record.value(name) is not None]
        raise CallbackError(
            f"early_stopping.metric={self.metric}: round {record.number} was evaluated and has no such"
            f" value{closest(self.metric, numbers)}; it has: {', '.join(numbers)}"
        )
