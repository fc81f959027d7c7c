"""The life of a run: what is prepared, its rounds, checkpoints, signals, and the screen."""
