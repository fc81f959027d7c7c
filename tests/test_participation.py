"""Who takes part in a round: chances by samples, traces of who is available, and clients that are lost on the way."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tables import assert_same

from rayfl.config import Config, load_config
from rayfl.errors import InputError
from rayfl.federation.ledger import Ledger
from rayfl.federation.presence import Presence, Trace
from rayfl.launch import resume, simulate
from rayfl.randomness import Purpose, generator
from rayfl.results import Run
from rayfl.simulation.cohorts import draw_cohort, survives
from rayfl.simulation.presence import cohort_sizes, presence_of, read_trace
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import Server

SMALL = ["model.name=mlp", "partition.clients=12", "local.steps=2", "federation=serial"]


def config(*overrides: str) -> Config:
    return load_config(None, [*SMALL, *overrides])


def run(folder: Path, name: str, *overrides: str) -> Run:
    return simulate(config(f"output.dir={folder}", f"name={name}", *overrides), Screen(quiet=True))


# -- by size -----------------------------------------------------------------------------------------------------


def test_without_a_pattern_cohorts_are_drawn_as_ever() -> None:
    everyone = Presence.of_all(12)
    for number in range(1, 20):
        expected = np.sort(generator(3, Purpose.COHORT, number).choice(12, 5, replace=False))
        found = draw_cohort(config("seed=3", "participation.count=5"), everyone, np.arange(1, 13), number)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("size", "chances"),
    [
        (1, [1 / 6, 2 / 6, 3 / 6]),
        # The second of two is drawn from those left: 1/6 + 2/6 * 1/4 + 3/6 * 1/3, and so on.
        (2, [5 / 12, 11 / 15, 17 / 20]),
        (3, [1, 1, 1]),
    ],
)
def test_by_size_a_client_with_thrice_the_samples_has_thrice_the_chance(size: int, chances: list[float]) -> None:
    by_size = config("participation.kind=by_size", f"participation.count={size}")
    draws = 4000
    cohorts = [draw_cohort(by_size, Presence.of_all(3), np.array([10, 20, 30]), n) for n in range(1, draws + 1)]
    assert all(len(set(cohort.tolist())) == size for cohort in cohorts)
    shares = np.bincount(np.concatenate(cohorts), minlength=3) / draws
    assert shares == pytest.approx(chances, abs=4 * 0.5 / np.sqrt(draws))


# -- traces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_trace_says_who_is_available_and_begins_again_after_its_last_round(tmp_path: Path, suffix: str) -> None:
    rows = pd.DataFrame({"client": [5, 1, 7, 7, 2, 1], "round": [1, 1, 2, 2, 3, 3], "note": "x"})
    file = tmp_path / f"trace.{suffix}"
    rows.to_csv(file, index=False) if suffix == "csv" else rows.to_parquet(file)
    trace = read_trace(str(file), 12)
    assert [trace.available(n).tolist() for n in range(1, 6)] == [[1, 5], [7], [1, 2], [1, 5], [7]]
    presence = Presence(np.zeros(12, np.int64), trace)
    on = config("participation.kind=trace", f"participation.path={file}", "participation.count=2")
    assert [draw_cohort(on, presence, np.ones(12), n).tolist() for n in (1, 2, 4)] == [[1, 5], [7], [1, 5]]
    assert cohort_sizes(on, presence) == (1, 2)


def test_the_cohort_is_a_share_of_all_clients_if_so_many_are_available() -> None:
    trace = Trace(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), np.array([0, 7, 10]))
    half = config("participation.fraction=0.5", "participation.kind=trace", "participation.path=x.csv")
    presence = Presence(np.zeros(12, np.int64), trace)
    sizes = [len(draw_cohort(half, presence, np.ones(12), number)) for number in (1, 2)]
    assert sizes == [6, 3]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "does not exist"),
        ("round,who\n1,3\n", "has no column 'client'"),
        ("client\n3\n", "has no column 'round'"),
        ("round,client\n", "has no rows"),
        ("round,client\n1,3\n1,12\n", "names client 12: there are 12 clients"),
        ("round,client\n1,-1\n", "column 'client' holds -1"),
        ("round,client\n0,1\n", "column 'round' holds 0, and is counted from 1"),
        ("round,client\n1,3\n1.5,4\n", "column 'round' must hold whole numbers"),
        ("round,client\n1,3\n4,3\n", "nobody is available in round 2"),
    ],
)
def test_faults_of_a_trace_are_told_before_the_run(tmp_path: Path, text: str | None, told: str) -> None:
    file = tmp_path / "trace.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=told):
        run(tmp_path, "a", "participation.kind=trace", f"participation.path={file}")
    assert not (tmp_path / "a").exists()


def test_a_round_in_which_only_newcomers_are_available_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("round,client\n1,1\n2,1\n3,0\n")
    words = ["participation.kind=trace", f"participation.path={tmp_path / 'trace.csv'}", "arrive.clients=[0]"]
    with pytest.raises(InputError, match="nobody of those who are there then is available in round 3"):
        presence_of(config(*words, "arrive.round=4"), 12, None)
    presence_of(config(*words, "arrive.round=3"), 12, None)
    presence_of(config(*words, "rounds=2"), 12, None)


def test_a_method_that_needs_two_clients_is_told_of_a_round_with_one(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("round,client\n1,1\n1,2\n2,1\n")
    with pytest.raises(InputError, match="cohort of 1: fedac compares"):
        run(tmp_path, "a", "participation.kind=trace", f"participation.path={tmp_path / 'trace.csv'}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["participation.kind=trace"], r"participation\.path is missing"),
        (["participation.path=a.csv"], r"is not used by participation\.kind=uniform"),
        (["participation.kind=by_sise"], r"did you mean 'by_size'"),
        (["participation.dropout=1.0"], r"participation\.dropout=1"),
    ],
)
def test_faults_of_the_keys_are_told(words: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        config(*words)


# -- clients that are lost ---------------------------------------------------------------------------------------


def test_a_client_is_lost_with_the_given_probability_whoever_else_takes_part() -> None:
    lossy, everyone, some = config("participation.dropout=0.3"), np.arange(12), np.array([2, 3, 7])
    stay = np.array([survives(lossy, everyone, 12, number, least=1) for number in range(1, 2001)])
    assert stay.mean(axis=0) == pytest.approx(np.full(12, 0.7), abs=0.05)
    for number in range(1, 50):
        of_some = survives(lossy, some, 12, number, least=0)
        assert np.array_equal(of_some, stay[number - 1][some])


def test_as_many_stay_as_the_method_needs_those_with_the_smallest_draws() -> None:
    cohort = np.array([1, 4, 5, 9])
    for number in range(1, 30):
        draws = generator(0, Purpose.LOST_UPDATES, number).random(12)[cohort]
        stay = survives(config("participation.dropout=0.999"), cohort, 12, number, least=2)
        assert set(np.flatnonzero(stay)) == set(np.argsort(draws)[:2])
    assert survives(config(), cohort, 12, 1, least=2).all()  # nobody is lost by default


def test_who_is_lost_received_what_the_others_did_and_sent_nothing() -> None:
    """Three of five get through; each receives a model of 40 bytes, sends it back and trains on 10 samples."""
    ledger = Ledger(np.full(5, 10), np.array([30, 10]))
    through = np.array([0, 1, 4])
    ledger.down(np.arange(10, dtype=np.float32), through, np.array([True, True]))
    ledger.up(through, 120)
    ledger.computed(through, np.full(3, 10), 3)
    ledger.lost(np.array([2, 3]))
    assert (ledger.bytes_down, ledger.bytes_up) == (200, 120)
    assert ledger.in_fedavg_units() == pytest.approx(
        {"models_down": 1.0, "models_up": 0.6, "storage": 1.0, "computation": 1.0}
    )


def test_a_lost_client_keeps_its_model_as_it_was(serial_server: Callable[..., Server]) -> None:
    server = serial_server(*SMALL, "method.name=local", "participation.dropout=0.4", "rounds=3")
    clients = np.arange(12)
    first = server.run_round(1)
    assert set(first.extras) >= {"dropped"}
    before = {c: s.models["model"] for c, s in server.kept_states(clients).items()}
    second = server.run_round(2)
    after = {c: s.models["model"] for c, s in server.kept_states(clients).items()}
    trained = second.clients["client"][second.clients["trained"]]
    assert second.extras["dropped"] == 12 - len(trained) > 0
    assert second.summary["clients_trained"] == len(trained)
    for client in before:
        assert np.array_equal(before[client], after[client]) == (client not in trained)


def test_fedac_goes_on_with_the_two_clients_that_it_needs_and_judges_in_time(
    serial_server: Callable[..., Server],
) -> None:
    """Nearly all are lost in each round: the cohorts have 2 clients or a few more."""
    words = ["participation.dropout=0.8", "method.tune_from=1", "method.tune_every=1", "rounds=30"]
    server = serial_server(*SMALL, *words, "evaluate.every=30")
    tuned = []
    for number in range(1, 31):
        record = server.run_round(number)
        assert record.summary["clients_trained"] >= 2
        if "judgement" in record.extras:
            tuned.append(number)
    assert len(tuned) >= 4  # about every sixth round is due: 12 clients, about 2 in each
    assert max(np.diff(tuned)) <= 8, tuned


# -- whole runs --------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [(number, client) for number in (1, 2, 3) for client in range(12) if (client + number) % 3]
    pd.DataFrame(rows, columns=["round", "client"]).to_parquet(tmp_path / "trace.parquet")
    return str(tmp_path / "trace.parquet")


def test_a_run_with_a_trace_and_losses_goes_on_to_the_same_bits(tmp_path: Path, trace: str) -> None:
    words = ["participation.kind=trace", f"participation.path={trace}", "participation.dropout=0.3"]
    words += ["method.name=fedper", "participation.fraction=0.5"]
    whole = run(tmp_path, "a", *words, "rounds=6")
    part = run(tmp_path, "b", *words, "rounds=4")
    moved = tmp_path / "moved.parquet"
    Path(trace).rename(moved)
    assert_same(whole, resume(part.path, ["rounds=6", f"participation.path={moved}"], Screen(quiet=True)))
    trained = whole.clients[whole.clients["trained"]]
    assert ((trained["client"] + (trained["round"] - 1) % 3 + 1) % 3 > 0).all()
    assert whole.extras["dropped"].sum() > 0


def test_a_run_does_not_go_on_with_another_trace(tmp_path: Path, trace: str) -> None:
    words = ["participation.kind=trace", f"participation.path={trace}", "method.name=fedavg"]
    part = run(tmp_path, "a", *words, "rounds=3")
    pd.DataFrame({"round": [1], "client": [3]}).to_parquet(trace)
    with pytest.raises(InputError, match="the data are not those that"):
        resume(part.path, ["rounds=5"], Screen(quiet=True))
