"""The pages of `experiments/results.py`: what is kept of finished sweeps, and what is written from it."""
