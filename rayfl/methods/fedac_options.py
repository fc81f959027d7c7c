"""Options of FedAC; the paper's letters in brackets."""

from typing import Literal

from pydantic import Field

from rayfl.clustering import GranularityNorm
from rayfl.config import MOST
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions

#: The most clients for which the similarity matrix is reported. It is in every round's row: 2 MB for this many clients.
MOST_REPORTED = 500


class FedACOptions(ClusteredOptions):
    """Options of FedAC; the paper's letters in brackets."""

    clusters: int = Field(4, ge=1, le=MOST_CLUSTERS, description="number of clusters to start from [K]")
    mu: float = Field(1.0, ge=0, description="pull of a client's model to its cluster's centre")
    lam: float = Field(0.1, ge=0, description="pull of its backbone to the global embedding [lambda]")
    components: int = Field(50, ge=1, le=MOST, description="numbers per client that travel for clustering [D]")
    pca_every: int = Field(100, ge=1, le=MOST, description="rounds between two fits of the low-rank map")
    origin: Literal["initial", "mean", "none"] = Field("initial", description="from where the cosine is seen")
    tuning: Literal["utility", "granularity", "none"] = Field(
        "utility",
        description="how the number of clusters is tuned; utility: by losses on data that no member of a cluster has"
        " seen, granularity: the paper's rule, none: it stays as given",
    )
    tune_from: int = Field(
        5,
        ge=1,
        le=MOST,
        description="utility: trainings per client before the first judgement; the next is due at twice",
    )
    tune_every: int = Field(40, ge=1, le=MOST, description="utility: the most trainings between two judgements")
    gain: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="utility: by this part, clusters must lower the held-out loss of those they divide, or add to what"
        " has been learnt",
    )
    merge_below: float = Field(0.2, ge=0, description="granularity: merge a cluster below this [a]")
    split_above: float = Field(0.8, gt=0, description="granularity: split a cluster above this [b]")
    granularity_norm: GranularityNorm = Field(
        "l2",
        description="distance in G_c: l2 agrees with the paper's Figures 4(c) and 4(d), squared is as printed",
    )
    similarity: Literal["lrcos", "cosine", "l2"] = Field(
        "lrcos",
        description="how a client is compared with the centres: by D numbers as in the paper, or by whole weights",
    )
    report_similarity: bool = Field(
        False,
        description=f"put the matrix of similarities (l2: distances) into extras, for up to {MOST_REPORTED} clients",
    )
