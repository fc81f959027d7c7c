"""Local training: every client alone with its own data, and its own model. The floor that sharing must beat."""

import numpy as np

from rayfl.client.handed import Personal
from rayfl.methods.method import Method


class Local(Method):
    """One model per client, never shared."""

    paper = "baseline; thesis 2.1"

    def round(self, cohort: np.ndarray) -> None:
        """Train each client from where it stopped."""
        self.fed.train(cohort, keep=True)

    def eval_models(self) -> Personal:
        """Test each client with its own."""
        return Personal()
