"""FedAC (Zhang et al. 2024): personal models pulled to a cluster centre and to a global embedding, K found in training.

Algorithm 1, with the low-rank cosine similarity of Algorithm 2 and two rules for the number of clusters: the paper's
granularity (Algorithm 3), every round, and by default `utility`, which asks clients whether a split helps them (see
rayfl.clustering.useful and rayfl.methods.judging). Departures from the paper, and what it leaves open:

- Phi is the mean of the cohort's backbones; line 9 prints a sum, which would grow with the cohort.
- A client goes to the cluster of greatest similarity; Eq. 4 prints arg min.
- A client has no cluster, and counts in no mean, before it has taken part: the paper leaves R^0 open, and an untrained
  model says nothing. The first round's centres are drawn from its clients by k-means++.
- The cosine is taken between differences from the common initial model (`origin: initial`). Raw weights (`none`,
  Algorithm 2) all point the same way; in differences from the cohort's mean (`mean`), a client that has trained only
  a few times looks like a cluster of its own.
- With `utility`, nobody is pulled to a centre before two judgements in a row agree, or the fourth is made: the pull
  would keep the models of a wrong cluster together. Afterwards all clusters are judged again by the same evidence, and
  change if two judgements in a row propose the same change.
- The map is fitted on the cohort and, where that is smaller than D + 1, on other clients that took part. For a
  judgement it is fitted on the judged clients, since clients that a map was fitted on look noisier than others.
- The E-step and the M-step run over all clients, also absent ones (lines 11 and 12), so the server has the model that
  each client sent last. When M is new, the server projects the models of absent clients itself: absent clients are
  asked for nothing, and get the new map when they take part again. (A server with only sums and sketches could
  translate a sketch by M_new M_old^T. But the map of a cohort of 5 has only 4 directions, so such a translation says
  almost nothing; and such a server could not move an absent client from one cluster's mean to another's.)
- `granularity_norm`: Algorithm 3 prints squared distances. By these, clusters in a trial on small CIFAR-10 (8 x 8
  pixels, an MLP, 100 clients, 25 per round, Dirichlet 0.1, K = 10 fixed, one seed, made while rayfl was planned) have
  G_c of 0.07 to 0.15, below the paper's own range of 0.2 to 0.8, and tuning merges all of them. By plain L2, G_c is
  0.26 to 0.39, and tuning that starts with 2, 10 or 20 clusters ends with 8 to 11, as Figures 4(c) and 4(d) show. So
  `l2` is the default and `squared` the printed rule. At the paper's size neither has been measured. A cluster's own
  spread is the root of its mean squared distance, which the server knows from one number per client.
- `similarity: cosine` and `l2` (Figures 3c, 3d) compare whole weights where `lrcos` compares D numbers. The server has
  whole models for its means anyway, so nothing more travels; but the cost of a comparison grows with the model's size.
  So only the cohort is assigned again, and absent clients stay where they are. Tuning, and the first round's centres,
  still use the sketches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.client.handed import EvalModels, Models, Sent, everyone
from rayfl.client.objective import Proximal
from rayfl.clustering import (
    NO_CLUSTER,
    LowRankMap,
    UsefulClusters,
    average_linkage,
    cosine,
    cosine_by_distances,
    cosine_distances,
    fit_low_rank,
    granularity,
    in_norm,
    kmeans_plus_plus,
    match_labels,
    nearest,
    project,
    project_all,
    squared_distances,
    tune_by_granularity,
    unit,
    useful_clusters,
)
from rayfl.federation.facts import Facts
from rayfl.federation.library import distances
from rayfl.federation.traffic import FLOAT_BYTES
from rayfl.methods.clustered import Clustered
from rayfl.methods.fedac_options import MOST_REPORTED, FedACOptions
from rayfl.methods.judging import FEW_SAMPLES, MOST_JUDGED, Judging, held_out_losses, rounds_until, stratified
from rayfl.methods.method import Assigned

if TYPE_CHECKING:
    from rayfl.client.client import Client

#: The most models that the map is fitted on, unless it has more directions; all must come to the server for it.
MOST_FITTED = MOST_JUDGED

#: The most models that are held at once where whole models of all clients are compared.
COMPARED = 32


@dataclass
class FedACState:
    """What the server remembers. Arrays over clients are indexed by client, centres by position in `clusters`."""

    embedding: np.ndarray  # Phi: its backbone part is used
    shared: np.ndarray  # W_g, for the add-ons
    assignment: np.ndarray  # (m,) cluster numbers
    clusters: np.ndarray  # (K,) the numbers in use, in rising order; a number is never reused for another cluster
    centres: np.ndarray  # Omega (K, size)
    centre_sketches: np.ndarray  # (K, D): M (Omega - w_0)
    low_rank: LowRankMap | None  # M
    sketches: np.ndarray  # (m, D): M (w_i - w_0) of each client's last model
    from_initial: np.ndarray  # (m,): ||w_i - w_0||^2
    has_map: np.ndarray  # (m,) whether a client has got M
    judging: Judging
    next_number: int = 0
    clusters_before: int = 0
    welcomed: np.ndarray | None = None  # (m,) the cluster that a newcomer was given when it came; None: nobody came


class FedAC(Clustered):
    """Personal models, clusters by low-rank cosine similarity, their number tuned."""

    paper = "Zhang et al. 2024"
    Options = FedACOptions
    options: FedACOptions
    state: FedACState
    least_cohort = 2
    _matrix: np.ndarray  # of this round, to be reported

    @classmethod
    def check(cls, options: Any, clients: int, cohort: int, rounds: int) -> list[str]:
        """Refuse cohorts and options that do not allow clustering."""
        faults = super().check(options, clients, cohort, rounds)
        if cohort < cls.least_cohort:
            faults.append(
                f"participation gives a cohort of {cohort}: fedac compares a round's clients, let 2 or more take part"
            )
        if options.clusters > clients:
            faults.append(
                f"method.clusters={options.clusters} is more than the {clients} clients: use at most that many"
            )
        if options.merge_below >= options.split_above:
            faults.append(
                f"method.merge_below={options.merge_below} must be less than method.split_above={options.split_above}"
            )
        if options.report_similarity and clients > MOST_REPORTED:
            faults.append(
                f"method.report_similarity=True: a matrix of {clients} clients in every round is too much; leave it"
                f" out, or use at most {MOST_REPORTED} clients"
            )
        return faults

    @classmethod
    def server_models(cls, options: Any, clients: int) -> int:
        """Return K plus the number of models that the low-rank map is fitted on."""
        return options.clusters + min(max(MOST_FITTED, options.components + 1), clients)

    @classmethod
    def notes(cls, options: Any, facts: Facts, cohort: int, rounds: int) -> list[str]:
        """Warn if the run is too short to judge the number of clusters, or if clients have too few samples for it."""
        if options.tuning != "utility":
            return []
        found, clients = [], len(facts.n_train)
        needed = rounds_until(2 * options.tune_from, clients, cohort)
        if needed > rounds:
            found.append(
                f"rounds={rounds} is too short to find the number of clusters: with {cohort} of {clients} clients per"
                f" round, two judgements (method.tune_from={options.tune_from}) need about {needed} rounds; until then"
                " nobody is pulled to a cluster's centre"
            )
        few = (facts.n_train < FEW_SAMPLES) & (facts.n_validation == 0)
        if 2 * few.sum() > clients:
            found.append(
                f"{few.sum()} of {clients} clients have fewer than {FEW_SAMPLES} training samples and none for"
                " validation: clients that have the same labels by chance may be found to be a cluster; set"
                " partition.validation=0.2, then clusters are judged by samples that nobody has trained on"
            )
        return found

    def start(self) -> None:
        """Begin with nobody in any cluster."""
        m, size = self.fed.clients, self.fed.layout.size
        self.state = FedACState(
            embedding=self.fed.initial,
            shared=self.fed.initial,
            assignment=np.full(m, NO_CLUSTER),
            clusters=np.array([], np.int64),
            centres=np.zeros((0, size), np.float32),
            centre_sketches=np.zeros((0, 0)),
            low_rank=None,
            sketches=np.zeros((m, 0)),
            from_initial=np.zeros(m),
            has_map=np.zeros(m, bool),
            judging=Judging.of(m, self.options.tune_from),
        )

    def round(self, cohort: np.ndarray) -> None:
        """Algorithm 1, lines 3 to 13."""
        state, fed = self.state, self.fed
        judges = self.options.tuning == "utility"
        centre = Proximal(self.centres(), 0.0 if judges and not state.judging.decided else self.options.mu)
        embedding = Proximal(everyone(state.embedding, fed.clients, "backbone"), self.options.lam)
        self.local_training(cohort, objective=[centre, embedding], keep=True)
        state.embedding = fed.mean(cohort, part="backbone")
        state.judging.trained[cohort] += 1
        newcomers = cohort[state.assignment[cohort] == NO_CLUSTER]
        seen = np.union1d(np.flatnonzero(state.assignment != NO_CLUSTER), newcomers)
        judged = self._judged_now() if judges else None
        self._sketch(cohort, seen, judged)
        self._assign(cohort, seen)
        self._recentre()
        state.clusters_before = len(state.clusters)
        if self.options.tuning == "granularity":
            self._tune_by_granularity()
        elif judged is not None:
            self._judge(judged, seen)
        if self.options.report_similarity:  # now: fine-tuning after the last round changes models
            self._matrix = self._between_clients()

    # -- Algorithm 2: sketches ------------------------------------------------------------------------------

    def _sketch(self, cohort: np.ndarray, seen: np.ndarray, judged: np.ndarray | None) -> None:
        """Let the cohort project its models; if the map is fitted again, also project those of absent clients."""
        state, options = self.state, self.options
        if state.low_rank is None or (self.fed.round - 1) % options.pca_every == 0 or judged is not None:
            on = self._fit_on(cohort, seen) if judged is None else judged
            state.low_rank = fit_low_rank(self.fed.collect(on), options.components)
            state.sketches = np.zeros((self.fed.clients, len(state.low_rank.components)))
            centres = list(state.centres[:, : self.fed.layout.parameters])
            state.centre_sketches = project_all(state.low_rank, centres, self._initial())
            state.has_map[:] = False
            # The server projects the models that absent clients sent last, so nothing travels.
            absent = np.setdiff1d(seen, cohort)
            if len(unsent := absent[self.fed.unsent(absent)]):
                raise ValueError(f"the server has not got the latest models of the clients {unsent.tolist()}")
            self._project(absent, at_server=True)
        self._project(cohort)

    def _project(self, clients: np.ndarray, at_server: bool = False) -> None:
        """Let clients project their models; a new map travels to each client once, and D + 1 numbers travel back."""
        state = self.state
        assert state.low_rank is not None
        if not len(clients):
            return
        new = int((~state.has_map[clients]).sum())
        sent = Sent(state.low_rank, state.low_rank.components.size * FLOAT_BYTES, new)
        found = self.fed.map(clients, project_models, sent, together=True, at_server=at_server)
        state.sketches[clients], state.from_initial[clients] = found
        if not at_server:
            state.has_map[clients] = True

    def _fit_on(self, cohort: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Return the clients whose models the map is fitted on: D directions need D + 1 of them."""
        wanted, rng = self.options.components + 1, self.rng()
        if len(cohort) > MOST_FITTED:
            return np.sort(rng.choice(cohort, MOST_FITTED, replace=False))
        others = np.setdiff1d(seen, cohort)
        spare = min(len(others), max(wanted - len(cohort), 0))
        return np.union1d(cohort, rng.choice(others, spare, replace=False))

    def _origin(self) -> np.ndarray:
        """Return the sketch M (x - w_0) of the origin x from which the cosine is measured."""
        low_rank = self.state.low_rank
        assert low_rank is not None  # nothing is compared before the first sketch
        if self.options.origin == "initial":
            return np.zeros(len(low_rank.components))
        return project(low_rank, self._origin_point(), self._initial())

    def _origin_point(self) -> np.ndarray:
        low_rank, initial = self.state.low_rank, self._initial()
        assert low_rank is not None
        return {"initial": initial, "none": np.zeros_like(initial), "mean": low_rank.mean}[self.options.origin]

    def _initial(self) -> np.ndarray:
        return self.fed.initial[: self.fed.layout.parameters]

    # -- the E-step and the M-step (Eq. 4 and 5) ------------------------------------------------------------

    def _assign(self, cohort: np.ndarray, seen: np.ndarray) -> None:
        """Assign all clients that have taken part to the most similar centre; by whole weights, only the cohort."""
        state, by_sketches = self.state, self.options.similarity == "lrcos"
        origin = self._origin()
        if not len(state.clusters):
            points = state.sketches[seen] - origin
            points = points if self.options.similarity == "l2" else unit(points)
            drawn = kmeans_plus_plus(points, self.options.clusters, self.rng())
            state.clusters = np.arange(len(drawn))
            state.centre_sketches = drawn + origin
            by_sketches = True  # the centres that were drawn are sketches, not models
        if not by_sketches:
            state.assignment[cohort] = state.clusters[self._likeness(cohort).argmax(axis=1)]
        elif self.options.similarity == "l2":
            state.assignment[seen] = state.clusters[nearest(state.sketches[seen], state.centre_sketches)]
        else:
            similarity = cosine(state.sketches[seen] - origin, state.centre_sketches - origin)
            state.assignment[seen] = state.clusters[similarity.argmax(axis=1)]

    def _likeness(self, cohort: np.ndarray) -> np.ndarray:
        """Return how similar these clients are to each centre, by whole weights; greater is more similar."""
        centres, origin = self.state.centres[:, : self.fed.layout.parameters], self._origin_point()[None]
        found = distances(self.fed, cohort, np.vstack([centres, origin]))
        if self.options.similarity == "l2":
            return -found[:, :-1]
        return cosine_by_distances(found[:, :-1], found[:, -1], squared_distances(centres, origin)[:, 0])

    def _recentre(self) -> None:
        """Move each centre to the plain mean of its clients' last models; a cluster without clients is removed."""
        state = self.state
        state.next_number = max(state.next_number, int(state.assignment.max()) + 1)
        state.clusters = np.unique(state.assignment[state.assignment != NO_CLUSTER])
        state.centres = self.fed.mean_of_kept(state.assignment, state.clusters)
        # The map is linear, so the sketch of a mean is the mean of the sketches, and no centre is projected.
        state.centre_sketches = np.stack([state.sketches[state.assignment == k].mean(axis=0) for k in state.clusters])

    # -- the number of clusters -----------------------------------------------------------------------------

    def _tune_by_granularity(self) -> None:
        """Algorithm 3, with distances between full weights."""
        state, options = self.state, self.options
        intra, between = self._spread()
        state.assignment = tune_by_granularity(
            state.assignment,
            state.clusters,
            intra,
            between,
            state.sketches - self._origin(),
            options.merge_below,
            options.split_above,
            state.next_number,
            options.granularity_norm,
        )
        self._recentre()

    def _judged_now(self) -> np.ndarray | None:
        """Return the clients by which the number of clusters is judged in this round; None if no judgement is due."""
        judging, present = self.state.judging, self.fed.present
        if judging.trainings(present) < judging.next_at:
            return None
        eligible = judging.eligible(present)
        if len(eligible) < 4 or self.state.low_rank is None:
            return None
        points = self.state.sketches[eligible] - self._origin()
        return eligible[stratified(points, MOST_JUDGED, self.rng())]

    def _judge(self, judged: np.ndarray, seen: np.ndarray) -> None:
        """Look for clusters among these clients, and use those that two judgements agree on."""
        state, fed = self.state, self.fed
        points = state.sketches - self._origin()
        found, progress = self.find_clusters(judged, points[judged])
        trainings = state.judging.trainings(fed.present)
        state.judging.round = fed.round
        if not state.judging.decide(judged, found, progress, state.assignment, self.options.tune_every, trainings):
            return
        directions = unit(points)
        members = [judged[found.assignment == k] for k in range(found.clusters)]
        middles = np.stack([directions[who].mean(axis=0) for who in members])
        proposed = np.full(fed.clients, NO_CLUSTER)
        proposed[seen] = (directions[seen] @ middles.T).argmax(axis=1)
        proposed[judged] = found.assignment
        state.assignment = match_labels(state.assignment, proposed, state.next_number)
        self._recentre()

    def find_clusters(self, clients: np.ndarray, points: np.ndarray) -> tuple[UsefulClusters, np.ndarray]:
        """Ask the clients whether splits help them; return clusters, and the losses before and after local training.

        `points` are the clients' sketches. A subclass with another rule overrides this.
        """
        tree = average_linkage(cosine_distances(points))
        beside = self.state.shared if self.residual else None
        losses, progress = held_out_losses(self.fed, clients, tree, beside)
        return useful_clusters(tree, losses, points, progress[:, 0], gain=self.options.gain), progress

    def _spread(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how far each cluster's clients are from its centre, and the distances between centres.

        The mean squared distance to a centre is the mean of ||w_i - w_0||^2 minus ||Omega_k - w_0||^2, so the clients'
        models are not needed.
        """
        state, parameters = self.state, self.fed.layout.parameters
        points = np.vstack([self._initial(), state.centres[:, :parameters]])
        distances = squared_distances(points)
        members = [state.assignment == k for k in state.clusters]
        spread = np.array([state.from_initial[who].mean() for who in members]) - distances[0, 1:]
        alone = np.array([who.sum() == 1 for who in members])
        intra, norm = np.where(alone, 0.0, np.maximum(spread, 0.0)), self.options.granularity_norm
        return in_norm(intra, norm), in_norm(distances[1:, 1:], norm)

    # -- what is tested and reported --------------------------------------------------------------------------

    def eval_models(self) -> EvalModels:
        """Test everyone with the personal model, as the paper does."""
        return self.personal_models()

    def also_tested(self) -> Mapping[str, EvalModels]:
        """Test the centres too."""
        return {**super().also_tested(), "centre": self.tested(self.centres())}

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Find the centre with the least loss for each newcomer, and test the newcomer with it.

        `assignment` stays as it is, because a client counts in no mean, and has no sketch, before it has taken part.
        """
        state = self.state
        if not len(state.clusters):
            return Assigned(self.eval_models(), np.full(len(clients), NO_CLUSTER))
        rows = self.losses(clients, state.centres).argmin(axis=1)
        if state.welcomed is None:
            state.welcomed = np.full(self.fed.clients, NO_CLUSTER)
        state.welcomed[clients] = state.clusters[rows]
        choice = self.centres().choice.copy()
        choice[clients] = rows
        return Assigned(self.tested(Models(state.centres, choice)), state.clusters[rows])

    def given_newcomers(self) -> Models:
        """Hand newcomers the centre of the cluster that they were given, as long as this cluster exists."""
        state, nobody = self.state, np.full(self.fed.clients, NO_CLUSTER)
        given = nobody if state.welcomed is None else state.welcomed
        there = np.isin(given, state.clusters)
        return Models(state.centres, np.where(there, np.searchsorted(state.clusters, given), -1))

    def cluster_statistics(self) -> Mapping[str, np.ndarray]:
        """Return the quantities of Algorithm 3, in the order of the cluster numbers."""
        intra, between = self._spread()
        others = max(len(intra) - 1, 1)
        inter = between.sum(axis=1) / others if len(intra) > 1 else np.full(1, np.nan)
        return {"intra": intra, "inter": inter, "granularity": granularity(intra, between)}

    def extras(self) -> Mapping[str, Any]:
        """Return K before and after tuning, the last judgement, and on request the similarity between clients."""
        extras: dict[str, Any] = {"clusters_before_tuning": self.state.clusters_before}
        if self.state.judging.round == self.fed.round:
            extras["judgement"] = self.state.judging.verdict
        extras["clusters_after_tuning"] = len(self.state.clusters)
        if self.options.report_similarity:
            name = "distance" if self.options.similarity == "l2" else "similarity"
            extras[name] = self._matrix.round(4).tolist()
        return extras

    def _between_clients(self) -> np.ndarray:
        """Return how similar all clients are, for `l2` how far apart; clients that never took part are at w_0."""
        state, fed = self.state, self.fed
        if self.options.similarity == "lrcos":
            sketches = state.sketches - self._origin()
            return cosine(sketches, sketches)
        seen = np.flatnonzero(state.assignment != NO_CLUSTER)
        fixed = np.stack([self._initial(), self._origin_point()])
        chunks = [seen[first : first + COMPARED] for first in range(0, len(seen), COMPARED)]
        columns = [distances(fed, seen, fixed), *[distances(fed, seen, fed.collect(chunk)) for chunk in chunks]]
        from_fixed, between = columns[0], np.hstack(columns[1:])
        points = np.zeros((len(seen) + 1, len(seen) + 1))  # the clients that were seen, and w_0 for the others
        points[:-1, :-1], points[-1, :-1], points[:-1, -1] = between, from_fixed[:, 0], from_fixed[:, 0]
        row = np.full(fed.clients, len(seen))
        row[seen] = np.arange(len(seen))
        apart = points[np.ix_(row, row)]
        if self.options.similarity == "l2":
            return np.sqrt(apart)
        from_origin = np.append(from_fixed[:, 1], squared_distances(fixed)[0, 1])[row]
        return cosine_by_distances(apart, from_origin, from_origin)

    def centres(self) -> Models:
        """Hand each client the centre of its cluster."""
        state = self.state
        rows = np.searchsorted(state.clusters, state.assignment)
        return Models(state.centres, np.where(state.assignment == NO_CLUSTER, -1, rows))


def project_models(clients: "list[Client]", low_rank: LowRankMap) -> tuple[np.ndarray, np.ndarray]:
    """Return M (w - w_0) and ||w - w_0||^2 of each client's parameters w, as numbers of 8 bytes: they are few."""
    size, initial = clients[0].layout.parameters, clients[0].initial
    sketches, from_initial = [], []
    for first in range(0, len(clients), COMPARED):
        vectors = [client.model()[:size] for client in clients[first : first + COMPARED]]
        sketches.append(project_all(low_rank, vectors, initial[:size]))
        from_initial += [float(np.square(v - initial[:size], dtype=np.float64).sum()) for v in vectors]
    return np.concatenate(sketches), np.array(from_initial)
