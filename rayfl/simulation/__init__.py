"""The life of a run: its preparation, rounds, checkpoints, signals, and the screen."""
