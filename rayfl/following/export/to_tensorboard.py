"""TensorBoard: one event file for each batch of rounds, written in one piece, with the rounds in its name.

So every round is there exactly once, even if an export is killed and started again.
"""

import io
import re
from typing import Any

import numpy as np

from rayfl.following.export.target import Target, write_whole
from rayfl.following.listing import setting_text
from rayfl.following.new_rounds import Batch, scalars

# TensorBoard reads the files that have `tfevents` in their name, in the order of their names.
_FILE = re.compile(r"events\.out\.tfevents\.rayfl\.(\d{9})-(\d{9})")


class TensorBoardExport(Target):
    """Scalars, histograms of the clients' metrics, and the config as hyper-parameters."""

    kind = "tensorboard"
    package = "tensorboard"

    def find_last(self) -> int:
        """Return the last round in any file."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return max((int(found[2]) for name in names if (found := _FILE.fullmatch(name))), default=0)

    def write(self, batch: Batch) -> None:
        """Write the rounds to a new file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        sink = io.BytesIO()
        writer = RecordWriter(sink)
        rows = list(batch.rows())
        writer.write(Event(wall_time=rows[0][1], file_version="brain.Event:2").SerializeToString())
        if batch.first == 1:
            for summary in self._about():
                writer.write(Event(wall_time=rows[0][1], step=0, summary=summary).SerializeToString())
        for number, moment, row in rows:
            values = [Summary.Value(tag=t, simple_value=v) for t, v in scalars(row, batch.sizes(number)).items()]
            writer.write(Event(wall_time=moment, step=number, summary=Summary(value=values)).SerializeToString())
            for metric in _client_metrics(batch):
                reached = batch.client_values(number, metric).to_numpy(zero_copy_only=False)
                reached = reached[np.isfinite(reached)]
                if len(reached):
                    summary = histogram_pb(f"clients/{metric}", reached)
                    writer.write(Event(wall_time=moment, step=number, summary=summary).SerializeToString())
        write_whole(self.folder / f"events.out.tfevents.rayfl.{batch.first:09d}-{batch.last:09d}", sink.getvalue())
        self.write_note(batch.last)

    def _about(self) -> list[Any]:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        plain = {k: v if isinstance(v, bool | int | float | str) else setting_text(v) for k, v in self.settings.items()}
        rows = "".join(f"    {key}: {setting_text(value)}\n" for key, value in self.settings.items())
        return [hparams_pb(plain, trial_id=self.name), text_pb("config", rows)]


def _client_metrics(batch: Batch) -> list[str]:
    """Return the names of what is measured for each client: the task's metrics, and the loss."""
    names = batch.clients.schema.names
    return list(names[names.index("n_test") + 1 :])
