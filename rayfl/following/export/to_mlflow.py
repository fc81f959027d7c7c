"""MLflow: a run in a SQLite file; `mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db` shows it."""

import logging
import os
from pathlib import Path
from typing import Any

from rayfl.errors import InputError
from rayfl.following.export.target import Target
from rayfl.following.listing import setting_text
from rayfl.following.new_rounds import Batch, scalars
from rayfl.results.status import Status

_EXPERIMENT = "rayfl"
_MOST_METRICS = 1000  # per call
_MOST_PARAMS = 100
_MOST_TEXT = 500  # of a parameter's value; older versions of MLflow take no more


class MlflowExport(Target):
    """Metrics by round, and the config as parameters. Rounds are added to the same MLflow run."""

    kind = "mlflow"
    package = "mlflow"

    def __init__(self, out: Path, name: str, status: Status) -> None:
        super().__init__(out, name, status)
        self._store = out / "mlflow.db"
        self._client: Any = None

    def write(self, batch: Batch) -> None:
        """Log the rounds as steps. Times are those of the run, so that a metric logged twice counts once."""
        client, run_id = self._opened()
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(1000 * moment), number)
            for number, moment, row in batch.rows()
            for name, value in scalars(row, batch.sizes(number)).items()
        ]
        for at in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(run_id, metrics=metrics[at : at + _MOST_METRICS])
        self.write_note(batch.last, mlflow_run=run_id)

    def close(self) -> None:
        """Mark the run as ended in MLflow, if it has ended."""
        if self._client is not None and self.status.complete:
            self._client.set_terminated(self.note["mlflow_run"])

    def _opened(self) -> tuple[Any, str]:
        if self._client is None:
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # otherwise it sends usage reports when imported
            from mlflow import MlflowClient

            for name in ("alembic", "mlflow.store.db.utils"):  # they log every table that they create
                logging.getLogger(name).setLevel(logging.WARNING)
            self._store.parent.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(f"sqlite:///{self._store}")
        if "mlflow_run" not in self.note:
            self.note["mlflow_run"] = self._create(self._client)
        elif not self._is_there(self.note["mlflow_run"]):
            raise InputError(f"{self._store} lacks what was exported: remove {self.folder} and export again")
        return self._client, self.note["mlflow_run"]

    def _is_there(self, run_id: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_run(run_id) is not None
        except MlflowException:
            return False

    def _create(self, client: Any) -> str:
        from mlflow.entities import Param

        experiment = client.get_experiment_by_name(_EXPERIMENT)
        artifacts = (self._store.parent / "mlartifacts").resolve().as_uri()
        number = experiment.experiment_id if experiment else client.create_experiment(_EXPERIMENT, artifacts)
        begun = None if self.status.begun is None else round(1000 * self.status.begun)
        tags = {"rayfl.run": self.status.run.path}
        run_id = client.create_run(number, start_time=begun, run_name=self.name, tags=tags).info.run_id
        params = [Param(key, setting_text(value)[:_MOST_TEXT]) for key, value in self.settings.items()]
        for at in range(0, len(params), _MOST_PARAMS):
            client.log_batch(run_id, params=params[at : at + _MOST_PARAMS])
        return run_id
