"""Your own callback: a line per round in a log file, which continues after a crash."""

import logging

from rayfl import Callback


class LogLines(Callback):
    def __init__(self, file):
        self.log = logging.getLogger("rayfl.rounds")
        self.log.setLevel(logging.INFO)
        self.handler = logging.FileHandler(file)

    def on_start(self, run):
        self.log.addHandler(self.handler)
        self.log.info("after round %d of %s", run.round, run.path)

    def on_round_end(self, record):
        self.log.info("round %d: loss %.4f", record.number, record.summary["loss"])

    def on_end(self, run):
        self.log.removeHandler(self.handler)
