"""Local training: every client trains alone, on its own data. The baseline that any sharing must beat."""

import numpy as np

from rayfl.client.handed import Personal
from rayfl.methods.method import Method


class Local(Method):
    """One model per client, never shared."""

    paper = "baseline; thesis 2.1"

    def round(self, cohort: np.ndarray) -> None:
        """Continue the training of each client's own model."""
        self.fed.train(cohort, keep=True)

    def eval_models(self) -> Personal:
        """Test each client with its own model."""
        return Personal()
