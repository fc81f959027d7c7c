"""Newcomers: who they are, what they are given, how they are tested, and that nobody counts them before they come."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from faults import actors, kill
from tables import assert_same

from rayfl.client.handed import Models, Personal
from rayfl.client.worker import Worker
from rayfl.config import Config, load_config
from rayfl.errors import InputError
from rayfl.federation import library
from rayfl.federation.serial import SerialFederation
from rayfl.input_tree import load_yaml
from rayfl.launch import resume, simulate
from rayfl.methods import METHODS
from rayfl.results import Run, load
from rayfl.simulation.presence import draw_newcomers
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import Server

SMALL = ["model.name=mlp", "partition.clients=12", "local.steps=3", "federation=serial"]
LATE = ["arrive.share=0.25", "arrive.round=3"]


def config(*overrides: str) -> Config:
    return load_config(None, [*SMALL, *overrides])


def run(folder: Path, name: str, *overrides: str) -> Run:
    return simulate(config(f"output.dir={folder}", f"name={name}", *overrides), Screen(quiet=True))


# -- who ---------------------------------------------------------------------------------------------------------


def drawn(truth: list[int] | None, total: int, seed: int = 0, **keys: object) -> list[int]:
    arrive = load_config({"arrive": keys}).arrive
    assert arrive is not None
    return draw_newcomers(arrive, total, None if truth is None else np.array(truth), seed).tolist()


def test_every_planted_cluster_gives_newcomers_by_its_size_and_keeps_members() -> None:
    truth = [0] * 8 + [1] * 4 + [2]
    for seed in range(20):
        late = drawn(truth, 13, seed, count=4)
        assert len(set(late)) == 4
        assert np.bincount(np.array(truth)[late], minlength=3).tolist() in ([3, 1, 0], [2, 2, 0])
    assert len({tuple(drawn(truth, 13, seed, count=4)) for seed in range(20)}) > 10
    assert drawn(truth, 13, 5, share=0.3) == drawn(truth, 13, 5, count=4)
    assert len(drawn(truth, 13, 0, count=10)) == 10
    assert len(drawn(None, 10, share=0.01)) == 1


def test_named_newcomers_may_be_a_whole_cluster() -> None:
    assert drawn([0, 0, 1, 1], 4, clients=[3, 2]) == [2, 3]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["arrive.count=9"], r"arrive\.count=9 makes 9 of 12.*one client of each of the 4 planted clusters"),
        (["arrive.share=0.9"], r"arrive\.share=0\.9 makes 11 of 12"),
        (["arrive.clients=[3, 12]"], r"names 12: clients have the numbers 0 to 11"),
        (["arrive.clients=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"], "names all clients"),
        (["arrive.clients=[3, 3]"], "names one twice"),
        (["arrive.round=5"], r"arrive\.share is missing"),
        (["arrive={share: 0.1, count: 2}"], "exclude each other"),
        (["arrive.count=2", "arrive.round=9", "rounds=8"], r"arrive\.round=9 is after the last round"),
        (["arrive.count=2", "arrive.round=1"], r"arrive\.round=1: .* from round 2 on"),
        (["arrive.count=2", "arrive.tune=[]"], r"arrive\.tune=\[\]"),
        (["arrive.count=8", "method.clusters=5"], r"method\.clusters=5 is more than the 4 clients"),
    ],
)
def test_faults_are_told_before_the_run(tmp_path: Path, words: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        run(tmp_path, "a", *words)
    assert not (tmp_path / "a").exists()


def test_one_way_to_say_who_displaces_the_other() -> None:
    assert (
        load_config({"arrive": {"share": 0.5}}, ["arrive.count=3"]).arrive
        == load_config(None, ["arrive.count=3"]).arrive
    )


# -- before they come --------------------------------------------------------------------------------------------


def test_nobody_counts_newcomers_before_they_come(tmp_path: Path) -> None:
    done = run(tmp_path, "a", *LATE, "method.name=ifca", "method.clusters=4", "rounds=4")
    late = set(done.newcomers["client"])
    assert len(late) == 3
    for number, rows in done.clients.groupby("round"):
        there = set(range(12)) - (late if number < 3 else set())
        assert set(rows["client"]) == there
        row = done.rounds.set_index("round").loc[number]
        assert row["accuracy"] == pytest.approx(np.average(rows["accuracy"], weights=rows["n_test"]))
        assert row["accuracy_mean"] == pytest.approx(rows["accuracy"].mean())
        assert row["clients_trained"] == len(there)
        assert done.clusters.query("round == @number")["size"].sum() == len(there)


def test_without_newcomers_a_run_has_no_table_of_them_and_it_reads_as_empty(tmp_path: Path) -> None:
    done = run(tmp_path, "a", "method.name=fedavg", "rounds=1")
    assert not Path(done.path, "newcomers").exists()
    assert done.newcomers.empty
    assert {"client", "tuned", "cluster", "true_cluster", "accuracy"} <= set(done.newcomers)


# -- when they come ----------------------------------------------------------------------------------------------


def test_a_newcomer_goes_to_the_model_with_the_least_loss_on_its_training_data(
    serial_server: Callable[..., Server],
) -> None:
    server = serial_server(*SMALL, *LATE, "method.name=ifca", "method.clusters=4", "rounds=3")
    for number in (1, 2):
        server.run_round(number)
    state, fed = server.method.state, server.fed
    late = fed.presence.arriving(3)
    assert (state.assignment[late] == -1).all()
    in_use = np.unique(state.assignment[fed.present])
    centres = state.centres[in_use]
    expected = in_use[library.losses(fed, late, centres).argmin(axis=1)]
    record = server.run_round(3)
    assert record.newcomers is not None
    rows = pd.DataFrame(record.newcomers).query("tuned == 0")
    assert rows["cluster"].tolist() == expected.tolist()
    assert rows["client"].tolist() == late.tolist()
    # IFCA's own rule in the same round sees the same models: what was sent for the one is not sent for the other.
    sent = fed.ledger.bytes_down / (4 * fed.layout.size)
    assert sent == 12 * 4


def test_fine_tuning_is_local_training_from_the_given_model(serial_server: Callable[..., Server]) -> None:
    """By hand: with FedAvg, five trainings of the newcomers from the global model, each from where the last ended."""
    server = serial_server(*SMALL, "arrive.clients=[2, 7]", "arrive.round=2", "method.name=fedavg", "rounds=2")
    server.run_round(1)
    fed, late = server.fed, np.array([2, 7])
    by_hand = serial_server(*SMALL, "method.name=fedavg", "rounds=2").fed
    by_hand.begin_round(2)
    found, start = {}, server.method.eval_models()
    found[0] = by_hand.evaluate(start)
    from rayfl.client.handed import Personal
    from rayfl.methods.method import FINE_TUNING

    for tuned in range(1, 6):
        by_hand.train(late, start if tuned == 1 else None, keep=True, slot="x", stream=FINE_TUNING + tuned)
        found[tuned] = by_hand.evaluate(Personal("x"))
    rows = server.run_round(2).newcomers
    assert rows is not None
    for tuned in (0, 1, 5):
        # Not equal bits: newcomers are tested alone here and with others there, and kernels may round differently.
        np.testing.assert_allclose(rows["loss"][rows["tuned"] == tuned], found[tuned]["loss"][late], rtol=1e-6)
    assert fed.has_model(late, "newcomer 0").tolist() == [False, False]


def test_two_models_that_are_added_are_tuned_each_with_the_other_as_it_was() -> None:
    """CAM: in the second round of fine-tuning, neither sees the other's step of the same round."""
    from rayfl.client.handed import Mixture, Models, Personal
    from rayfl.methods.method import FINE_TUNING
    from rayfl.simulation.preparation import prepare

    words = ["method.name=ifca", "method.addons=[cam]", "method.cam.warmup=1", "method.clusters=3", "rounds=3"]
    p = prepare(config(*words, "arrive.clients=[2, 7]", "arrive.round=after", "arrive.tune=[2]"))
    fed = SerialFederation(p.facts, Worker(p.config, p.dataset, p.partition))
    try:
        server = Server(p.config, fed, p.partition.true_cluster)
        rows = [server.run_round(number) for number in (1, 2, 3)][-1].newcomers
        tested, late = server.method.eval_models(), np.array([2, 7])
        assert isinstance(tested, Mixture)
        parts = [part for part in tested.parts if isinstance(part, Models)]
        for number in (0, 1):
            fed.train(
                late, parts[number], keep=True, partner=parts[1 - number], slot=f"{number}", stream=FINE_TUNING + 1
            )
        vectors = [fed.collect(late, slot=f"{number}", buffers=True) for number in (0, 1)]
        choice = np.full(12, -1)
        choice[late] = [0, 1]
        once = [Models(stack, choice) for stack in vectors]
        for number in (0, 1):
            fed.train(late, once[number], keep=True, partner=once[1 - number], slot=f"{number}", stream=FINE_TUNING + 2)
        expected = fed.evaluate(Mixture((Personal("0"), Personal("1")), "logits"), clients=late)
    finally:
        fed.close()
    assert rows is not None
    assert np.array_equal(rows["loss"], expected["loss"][late])


def test_fedgroup_gives_newcomers_a_cold_start_and_only_one(serial_server: Callable[..., Server]) -> None:
    server = serial_server(*SMALL, *LATE, "method.name=fedgroup", "rounds=3", "arrive.tune=[0]")
    for number in (1, 2):
        server.run_round(number)
    trainings: list[int] = []
    train = server.fed.train
    server.fed.train = lambda clients, *a, **k: trainings.append(len(clients)) or train(clients, *a, **k)  # type: ignore[method-assign,assignment,func-returns-value]
    server.run_round(3)
    assert trainings == [3, 12]


def test_fedac_counts_no_newcomer_that_has_not_taken_part(serial_server: Callable[..., Server]) -> None:
    server = serial_server(*SMALL, *LATE, "rounds=4", "participation.count=3")
    for number in (1, 2, 3):
        record = server.run_round(number)
    late = server.fed.presence.arriving(3)
    waiting = np.setdiff1d(late, server._cohort(3))
    assert len(waiting)
    assert record.newcomers is not None
    assert (record.newcomers["cluster"] >= 0).all()
    assert (server.method.state.assignment[waiting] == -1).all()


@pytest.mark.parametrize("method", ["fedac", "cgpfl", "fedsoft", "ditto"])
def test_a_newcomer_that_waits_for_its_first_cohort_is_tested_with_what_it_was_given(
    method: str, serial_server: Callable[..., Server]
) -> None:
    server = serial_server(
        *SMALL, *LATE, f"method.name={method}", "rounds=5", "participation.count=3", "arrive.tune=[0]"
    )
    for number in (1, 2, 3):
        record = server.run_round(number)
    fed, late = server.fed, server.fed.presence.arriving(3)
    waiting = np.setdiff1d(late, server._cohort(3))
    assert len(waiting) and record.newcomers is not None and record.clients is not None
    given = record.newcomers["cluster"][np.isin(late, waiting)]
    if method == "ditto":
        models = server.method._global()  # type: ignore[attr-defined]
    else:
        state, choice = server.method.state, np.full(12, -1)
        choice[waiting] = np.searchsorted(state.clusters, given) if method == "fedac" else given
        models = Models(state.centres, choice)
    expected, initial = fed.evaluate(models), fed.evaluate(Personal("nobody has this"))
    rows = np.flatnonzero(np.isin(record.clients["client"], waiting))
    # Not equal bits: clients are tested in other company here, and kernels may round differently.
    np.testing.assert_allclose(record.clients["loss"][rows], expected["loss"][waiting], rtol=1e-6)
    assert (np.abs(record.clients["loss"][rows] - initial["loss"][waiting]) > 1e-4).all()
    # Of those who were there from the start, who has not taken part is still tested with the initial model.
    idle = np.setdiff1d(fed.present, np.concatenate([late, *[server._cohort(number) for number in (1, 2, 3)]]))
    rows = np.flatnonzero(np.isin(record.clients["client"], idle))
    np.testing.assert_allclose(record.clients["loss"][rows], initial["loss"][idle], rtol=1e-6)


@pytest.mark.parametrize("method", ["fedac", "ditto"])
def test_a_run_is_the_same_however_newcomers_are_fine_tuned(method: str, serial_server: Callable[..., Server]) -> None:
    words = [*SMALL, *LATE, f"method.name={method}", "rounds=5", "local.momentum=0.5", "participation.fraction=0.6"]
    words += ["local.keep_momentum=true"]
    servers = [serial_server(*words, f"arrive.tune={tune}") for tune in ("[0]", "[0, 1, 5]")]
    for number in range(1, 6):
        one, other = (server.run_round(number) for server in servers)
        for name in ("summary", "clients", "clusters"):
            left, right = getattr(one, name) or {}, getattr(other, name) or {}
            for key in left:
                if not key.startswith("seconds"):
                    np.testing.assert_array_equal(left[key], right[key], err_msg=f"{key} in round {number}")
    one, other = (server.fed.state() for server in servers)
    assert one.kept.keys() == other.kept.keys()
    assert all(np.array_equal(one.kept[slot], other.kept[slot]) for slot in one.kept)


# -- after training ----------------------------------------------------------------------------------------------


def test_those_who_come_after_training_are_only_tested(tmp_path: Path) -> None:
    words = ["method.name=fesem", "method.clusters=4", "rounds=3", "arrive.count=3"]
    done, earlier = run(tmp_path, "a", *words), run(tmp_path, "b", *words, "arrive.round=3")
    late = set(done.newcomers["client"])
    assert late == set(earlier.newcomers["client"])  # the partition's seed decides
    assert set(done.newcomers["round"]) == {3}
    assert not late & set(done.clients["client"])
    assert done.rounds["clients_trained"].tolist() == [9, 9, 9]
    last = done.extras.loc[3]
    for tuned in (0, 1, 5):
        rows = done.newcomers.query("tuned == @tuned")
        assert last[f"newcomers_accuracy_{tuned}"] == pytest.approx(
            np.average(rows["accuracy"], weights=rows["n_test"])
        )
    model = 4 * sum(p.numel() for p in done.model(cluster=int(done.newcomers["cluster"].iloc[0])).parameters())
    clusters = int(done.rounds["clusters"].iloc[-1])
    assert (last["newcomers"], last["newcomers_bytes_down"]) == (3, 3 * clusters * model)


def test_a_newcomer_can_be_asked_for_its_model_afterwards(tmp_path: Path) -> None:
    import torch

    done = run(tmp_path, "a", "method.name=ifca", "method.clusters=4", "rounds=3", "arrive.clients=[5]")
    cluster = int(done.newcomers["cluster"].iloc[0])
    of_client, of_cluster = done.model(client=5).state_dict(), done.model(cluster=cluster).state_dict()
    assert all(torch.equal(of_client[name], of_cluster[name]) for name in of_client)


CHECKOUT = Path(__file__).parents[1]


def test_the_experiment_with_unseen_clients_runs(tmp_path: Path) -> None:
    file = CHECKOUT / "experiments" / "heterogeneity" / "pacfl_unseen_clients.yaml"
    words = ["rounds=2", "federation=serial", f"output.dir={tmp_path}"]
    done = simulate(load_config(file, words), Screen(quiet=True))
    assert (done.newcomers["client"].nunique(), set(done.newcomers["tuned"])) == (8, {0, 1, 5})
    assert done.clients["client"].nunique() == 32


def test_the_documentation_shows_configs_that_can_be_read_and_names_every_method() -> None:
    text = (CHECKOUT / "docs" / "absence.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        load_config(load_yaml(block, "a block"))
    table = (CHECKOUT / "docs" / "methods.md").read_text().partition("## Newcomers")[2].partition("\n## ")[0]
    named = {
        name for row in table.splitlines() if row.startswith("|") for name in row.split("|")[1].strip().split(", ")
    }
    assert named >= set(METHODS)


# -- nothing is lost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("when", "stopped"), [("3", 3), ("3", 4), ("after", 2)])
def test_a_resumed_run_has_every_newcomer_once(tmp_path: Path, when: str, stopped: int) -> None:
    words = ["arrive.count=3", f"arrive.round={when}", "participation.dropout=0.2", "participation.fraction=0.7"]
    words += ["method.name=cgpfl", "arrive.tune=[0, 1]", "local.steps=1"]
    whole = run(tmp_path, "a", *words, "rounds=5")
    part = run(tmp_path, "b", *words, f"rounds={stopped}")
    assert_same(whole, resume(part.path, ["rounds=5"], Screen(quiet=True)))
    assert len(load(part.path).newcomers) == 6


class Saboteur(Screen):
    """Kills an actor after some rounds."""

    def __init__(self, rounds: set[int]) -> None:
        super().__init__(quiet=True)
        self._deadly = rounds

    def show_round(self, record: object) -> None:
        if (number := getattr(record, "number", 0)) in self._deadly:
            self._deadly.discard(number)
            kill(actors("ClientActor")[0])


def test_an_actor_that_is_killed_when_newcomers_come_leaves_no_trace(ray_session: None, tmp_path: Path) -> None:
    """Before the round in which they come, and after it, so that the round is run again."""
    words = [*LATE, "rounds=5", "participation.fraction=0.7", "participation.dropout=0.2"]
    undisturbed = run(tmp_path, "a", *words)
    on_ray = ["federation=ray", "ray.actors=2", "output.checkpoint_every=2", f"output.dir={tmp_path}", "name=b"]
    disturbed = simulate(config(*words, *on_ray), Saboteur({2, 3}))
    assert len(undisturbed.newcomers) == 9
    assert_same(undisturbed, disturbed)
    assert disturbed.extras["recoveries"].dropna().map(len).sum() == 2
