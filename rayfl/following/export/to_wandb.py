"""Weights & Biases, offline: `wandb sync` uploads the folder whenever you like. Nothing is sent from here."""

import os
from typing import Any

from rayfl.following.export.target import Target
from rayfl.following.new_rounds import Batch, scalars


class WandbExport(Target):
    """An offline run. wandb cannot add rounds to an offline run of another process."""

    kind = "wandb"
    package = "wandb"
    starts_over = (
        "wandb cannot continue an offline run: all rounds are exported again, as a new one; upload only the last one"
    )

    _run: Any = None
    _last = 0

    def find_last(self) -> int:
        """Return 0, so that all rounds are exported, unless there are no new rounds."""
        done, there = super().find_last(), self.status.round
        return done if done >= there else 0

    def write(self, batch: Batch) -> None:
        """Log the rounds as steps."""
        if self._run is None:
            self._run = self._open()
        for number, _, row in batch.rows():
            self._run.log(scalars(row, batch.sizes(number)), step=number)
        self._last = batch.last

    def _open(self) -> Any:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # otherwise it sends error reports when imported
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        # Turn off what wandb collects by default (host, git, packages, console): it is not part of the run.
        settings = wandb.Settings(
            mode="offline",
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        return wandb.init(
            project="rayfl",
            name=self.name.replace("/", "-"),
            group=self.status.method,
            dir=str(self.folder),
            config=self.settings,
            settings=settings,
            reinit="create_new",
        )

    def close(self) -> None:
        """Finish the offline run. The note is written only then, because a killed export is incomplete."""
        if self._run is not None:
            self._run.finish()
            self._run = None
            self.write_note(self._last)

    @classmethod
    def close_tool(cls) -> None:
        """Wait for wandb's own process, which may still be writing after `finish`."""
        import wandb

        wandb.teardown()
