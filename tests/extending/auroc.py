"""Per-client AUROC as a metric: a column of `clients`, and its means in `rounds`."""

import numpy as np
from sklearn.metrics import roc_auc_score

from rayfl import Classification


def auroc(outputs, labels):
    """Return the mean over the classes that a client has; NaN where it has only one."""
    present = np.unique(labels)
    if len(present) < 2:
        return float("nan")
    return float(np.mean([roc_auc_score(labels == k, outputs[:, k]) for k in present]))


class WithAuroc(Classification):
    metrics = {**Classification.metrics, "auroc": auroc}  # noqa: RUF012
