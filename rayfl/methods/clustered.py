"""The frame of clustered methods: K centres, each client's cluster, and the add-ons of clustered methods.

A clustered method says how clients are assigned and how centres move. It trains through `local_training`, weighs
models through `losses` and names what is tested through `tested`; these three functions apply the add-ons:

- `cks` (thesis Eq. 5.6) pulls every client to the mean over all clients, as soon as there is one; `con` (Eq. 4.3, 4.4)
  makes a client's model like its own centre and unlike the others; `con_cks` (Eq. 6.1) applies `cks` to the backbone
  and `con` to the head.
- `cam` (CAM, section 3; thesis ch. 7) adds a global model W_g: a client's output is the sum of the logits of W_g and of
  its cluster's (or its own) model. Both are trained at once, each with the other fixed at the round's start; W_g begins
  with random numbers of its own. The accuracy of each of the two models alone is also reported. With `cam.residual`
  false, FedAvg and the method are trained apart and only tested together (thesis 7.4.4).

The two texts on CAM differ: a cluster's model becomes the plain weighted mean (thesis Eq. 7.6), or with `cam.damped`
moves to this mean only by the cluster's share of the samples (CAM Eq. 6). Statistics of batch norm are never damped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rayfl.aggregation import damped_mean
from rayfl.client.handed import MODEL, EvalModels, Mixture, Models, Personal, everyone
from rayfl.client.objective import FeatureContrast, ParameterContrast, Proximal, Term
from rayfl.clustering import NO_CLUSTER
from rayfl.federation.interface import Federation
from rayfl.federation.library import losses
from rayfl.methods.method import Assigned, Method
from rayfl.methods.options import ClusteredOptions
from rayfl.models import Part

GLOBAL = "global"
CAM_WARMUP, CAM_ROUNDS = 30, 100  # the papers' warm-up, and how many rounds their runs have


@dataclass
class ClusteredState:
    """What the server of a clustered method remembers."""

    centres: np.ndarray  # W (K, size)
    assignment: np.ndarray  # (m,) rows of centres, -1 before a client has taken part
    shared: np.ndarray  # W_g (size,): the mean over all clusters, or CAM's global model


class Clustered(Method):
    """A method with K centres."""

    Options = ClusteredOptions
    options: Any
    state: Any
    #: Whether the texts on CAM name this method: then it has a warm-up, and a form without residuals.
    named_by_cam: ClassVar[bool] = False
    #: Whether `cam.damped` is allowed: this needs clients that start from the centre that is then damped.
    dampens: ClassVar[bool] = False

    def __init__(self, options: Any, fed: Federation, seed: int) -> None:
        super().__init__(options, fed, seed)
        if self.residual:  # "randomly initialise Theta_1:K and Theta_g": another draw than every centre's
            self.state.shared = fed.initial_models(1, first=max(1, len(self.state.centres)))[0]

    @classmethod
    def settle(cls, options: Any, rounds: int) -> Any:
        """Fill in how long CAM's warm-up is."""
        if options.cam is None or options.cam.warmup is not None:
            return options
        warms_up = cls.named_by_cam and options.cam.residual
        warmup = min(CAM_WARMUP, rounds * CAM_WARMUP // CAM_ROUNDS) if warms_up else 0
        return options.model_copy(update={"cam": options.cam.model_copy(update={"warmup": warmup})})

    @classmethod
    def check(cls, options: Any, clients: int, cohort: int, rounds: int) -> list[str]:
        """Refuse options of CAM that would do nothing, or leave no round for the clusters."""
        cam = options.cam
        if cam is None:
            return []
        faults = []
        if cam.warmup and not cls.named_by_cam:
            faults.append(f"method.cam.warmup={cam.warmup}: only ifca, fesem and wecfl have a warm-up; leave it out")
        elif cam.warmup and not cam.residual:
            faults.append(
                f"method.cam.warmup={cam.warmup}: models that are trained apart (method.cam.residual=False) have no"
                " warm-up; leave it out"
            )
        elif cam.warmup and cam.warmup >= rounds:
            faults.append(
                f"method.cam.warmup={cam.warmup} is not shorter than rounds={rounds}: no cluster would ever be used;"
                " shorten it, or leave it out"
            )
        if not cam.residual and not cls.named_by_cam:
            faults.append("method.cam.residual=False: only ifca, fesem and wecfl can do without; leave it out")
        if cam.damped and not cls.dampens:
            faults.append(
                "method.cam.damped=True: it is a step of IFCA-CAM, only ifca and oneshot_ifca have it; leave it out"
            )
        elif cam.damped and not cam.residual:
            faults.append(
                "method.cam.damped=True: IFCA that is trained apart (method.cam.residual=False) is not damped; leave"
                " it out"
            )
        return faults

    def start(self) -> None:
        """Begin with K different models and nobody assigned."""
        centres = self.fed.initial_models(self.first_centres())
        nobody = np.full(self.fed.clients, NO_CLUSTER)
        self.state = ClusteredState(centres, nobody, self.fed.initial)

    def first_centres(self) -> int:
        """How many centres there are at the start."""
        return self.options.clusters

    # -- what the add-ons change --------------------------------------------------------------------------------

    @property
    def additive(self) -> bool:
        """Whether a client's output is the sum of the global and the cluster's model's outputs."""
        return "cam" in self.options.addons

    @property
    def residual(self) -> bool:
        """Whether the global and the cluster's model are each trained with the other one's logits added."""
        return self.additive and self.options.cam.residual

    @property
    def tuned_together(self) -> bool:
        """Whether the global and the cluster's model are each fine-tuned with the other one's logits added."""
        return self.residual

    @property
    def warming_up(self) -> bool:
        """Whether CAM's warm-up is still going on."""
        return self.fed.round <= self.warmup_rounds

    @property
    def warmup_rounds(self) -> int:
        """How long CAM's warm-up is; 0 without it."""
        return (self.options.cam.warmup or 0) if self.additive else 0

    @property
    def _shares_knowledge(self) -> bool:
        return bool({"cks", "con_cks"} & set(self.options.addons))

    def local_training(
        self, cohort: np.ndarray, start: Models | None = None, objective: Sequence[Term] = (), keep: bool = False
    ) -> None:
        """Train the cohort toward its clusters, with the add-ons' terms; then update the model that clusters share."""
        options, state = self.options, self.state
        terms = list(objective)
        # Until somebody has trained, W_g is the initial model and not a mean: there is nothing to pull to.
        if self._shares_knowledge and not np.array_equal(state.shared, self.fed.initial):
            piece: Part = "backbone" if "con_cks" in options.addons else "all"
            terms.append(Proximal(everyone(state.shared, self.fed.clients, piece), options.cks.strength))
        if "con" in options.addons or "con_cks" in options.addons:
            strength = (options.con.temperature, options.con.weight)
            if options.con.on == "parameters" or "con_cks" in options.addons:
                part: Part = "head" if "con_cks" in options.addons else options.con.part
                terms.append(ParameterContrast(replace(self.centres(), part=part), *strength))
            else:
                terms.append(FeatureContrast(self.centres(), *strength))
        beside: Models | None = None
        if self.additive:
            shared = everyone(state.shared, self.fed.clients)
            # The global model's partner is the cluster's model as it stands before this round's training.
            partner: Models | Personal = Personal() if keep else (start or self.centres())
            self.fed.train(cohort, start=shared, partner=partner if self.residual else None, slot=GLOBAL)
            beside = shared if self.residual else None
        self.fed.train(cohort, start, terms, keep, partner=beside)
        if self.additive or self._shares_knowledge:
            self._move_shared(cohort, GLOBAL if self.additive else MODEL)

    def losses(self, clients: np.ndarray, stack: np.ndarray) -> np.ndarray:
        """Return the loss of every model of the stack on each client's training data; with CAM, of the sum (Eq. 2)."""
        partner = everyone(self.state.shared, self.fed.clients) if self.residual else None
        return losses(self.fed, clients, stack, partner)

    def tested(self, models: Models | Personal) -> EvalModels:
        """Return what a client is tested with, given the model of its cluster or its own."""
        if not self.additive:
            return models
        return Mixture((everyone(self.state.shared, self.fed.clients), models), "logits")

    def also_tested(self) -> Mapping[str, EvalModels]:
        """With CAM, test the global model and the cluster's (or the client's own) each alone."""
        tested = self.eval_models()
        if not self.additive or not isinstance(tested, Mixture):
            return {}
        shared, own = tested.parts
        return {"global": shared, "own" if isinstance(own, Personal) else "cluster": own}

    def share_what_was_learnt_alone(self, clients: np.ndarray, slot: str = MODEL) -> None:
        """With CKS, set W_g to the mean of models that were trained alone (thesis Eq. 5.2).

        CAM's global model is trained beside the clusters' from the start, and is not touched.
        """
        if self._shares_knowledge:
            self._move_shared(clients, slot)

    def _move_shared(self, cohort: np.ndarray, slot: str) -> None:
        """Eq. 9 of CAM: the mean over all clients of the cohort, weighted by samples."""
        self.state.shared = self.fed.mean(cohort, self.fed.n_train[cohort], slot=slot)

    # -- what most clustered methods do -------------------------------------------------------------------------

    def centres(self) -> Models:
        """Hand each client the centre of its cluster."""
        return Models(self.state.centres, self.state.assignment)

    def recentre(self, cohort: np.ndarray, weighted: bool = True) -> None:
        """Move each centre to the mean of this cohort's models in its cluster; a centre without such models stays.

        Damped (CAM, Eq. 6), a centre moves only by its cluster's share of the cohort's samples.
        """
        state, fed = self.state, self.fed
        rows, count = state.assignment[cohort], len(state.centres)
        weights = fed.n_train[cohort] if weighted else None
        means = fed.mean_by_cluster(cohort, rows, count, weights)
        in_use = np.unique(rows)
        if self.additive and self.options.cam.damped:
            shares = np.bincount(rows, fed.n_train[cohort], count) / fed.n_train[cohort].sum()
            for row in in_use:
                means[row] = damped_mean(state.centres[row], means[row], shares[row], fed.layout.parameters)
        centres = state.centres.copy()
        centres[in_use] = means[in_use]
        state.centres = centres

    def eval_models(self) -> EvalModels:
        """Test everyone with the cluster's model."""
        return self.tested(self.centres())

    def personal_models(self) -> EvalModels:
        """Test each client with its own model, and newcomers with the model that they were given until they have one.

        With CAM, newcomers are no exception: before its first round, a client's own model is the initial model.
        """
        return self.tested(Personal()) if self.additive else self.own_or_given(Personal(), self.given_newcomers())

    def given_newcomers(self) -> Models:
        """Hand newcomers the model that they were given when they came."""
        return self.centres()

    def assignment(self) -> np.ndarray:
        """Return each client's cluster."""
        return self.state.assignment

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Assign newcomers to the centre with the least loss, among the centres that somebody is assigned to.

        Newcomers are tested with this centre, even in methods that test clients with their own models. Before there
        are clusters, newcomers get none.
        """
        state = self.state
        rows = np.unique(state.assignment[np.setdiff1d(self.fed.present, clients)])
        rows = rows[rows != NO_CLUSTER]
        if not len(rows):
            return Assigned(self.eval_models(), np.full(len(clients), NO_CLUSTER))
        least = self.losses(clients, state.centres[rows]).argmin(axis=1) if len(rows) > 1 else 0
        state.assignment[clients] = rows[least]
        return self.welcomed(clients)

    def welcomed(self, clients: np.ndarray) -> Assigned:
        """Test newcomers with the centre of the cluster that they were given."""
        return Assigned(self.tested(self.centres()), self.state.assignment[clients])
