"""Comparing runs: which values count, what is paired, and what is said about it."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from written_runs import START, write_run

import rayfl
from rayfl.analysis.comparison import Comparison, compare_runs
from rayfl.analysis.statistics import sign_flip_test
from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.launch import simulate
from rayfl.results import load_all
from rayfl.simulation.screen import Screen


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with three seeds each, of two rounds on the digits."""
    folder = tmp_path_factory.mktemp("study")
    words = ["federation=serial", "model.name=mlp", "partition.clients=8", "rounds=3", "local.steps=5"]
    for method in ("fedavg", "local", "ifca"):
        for seed in range(3):
            more = [f"method.name={method}", f"seed={seed}", f"name={method}-{seed}", f"output.dir={folder}"]
            simulate(load_config(None, [*words, *more]), Screen(quiet=True))
    return folder


def row(frame: pd.DataFrame, method: str, setting: str | None = None) -> pd.Series:
    found = frame[frame["method"] == method]
    found = found if setting is None else found[found["setting"] == setting]
    assert len(found) == 1, f"{method} {setting}: {frame[['setting', 'method']].values.tolist()}"
    return found.iloc[0]


def notes(frame: pd.DataFrame) -> str:
    return "\n".join(frame.attrs["notes"])


def seeds(folder: Path, values: dict[str, list[float]], **options: object) -> None:
    """Write runs of one round: a value per method and seed."""
    for method, found in values.items():
        for seed, value in enumerate(found):
            write_run(folder / f"{method}-{seed}", method, seed, [value], **options)  # type: ignore[arg-type]


# --- real runs ------------------------------------------------------------------------------------------------------


def test_a_comparison_of_real_runs_agrees_with_their_tables(study: Path) -> None:
    frame = rayfl.compare(study)
    assert frame["method"].tolist() == ["fedavg", "ifca", "local"]  # the baseline first
    assert set(frame["setting"]) == {"digits, transforms"} and frame["n"].tolist() == [3, 3, 3]
    runs = {(run.config.method.name, run.config.seed): run for run in load_all(study)}
    last = {key: run.rounds["accuracy"].iloc[-1] for key, run in runs.items()}
    ifca = row(frame, "ifca")
    ours, base = ([last[method, seed] for seed in range(3)] for method in ("ifca", "fedavg"))
    assert ifca["mean"] == pytest.approx(np.mean(ours)) and ifca["std"] == pytest.approx(np.std(ours, ddof=1))
    assert ifca["pairs"] == 3 and ifca["difference"] == pytest.approx(np.mean(np.subtract(ours, base)))
    assert ifca["p"] == sign_flip_test(np.subtract(ours, base))
    rounds = [runs["ifca", seed].rounds.iloc[-1] for seed in range(3)]
    for ours, theirs in (("worst10", "accuracy_worst10"), ("client_std", "accuracy_std"), ("ari", "ari")):
        assert ifca[ours] == pytest.approx(np.mean([r[theirs] for r in rounds])), ours
    assert ifca["misclustering"] == pytest.approx(np.mean([r["misclustering"] for r in rounds]))
    assert ifca["clusters"] == pytest.approx(np.mean([r["clusters"] for r in rounds]))


def test_the_share_of_clients_worse_off_is_counted_client_by_client(study: Path) -> None:
    frame = rayfl.compare(study)
    tables = {
        (run.config.method.name, run.config.seed): run.clients[run.clients["round"] == 3].set_index("client")[
            "accuracy"
        ]
        for run in load_all(study)
    }
    for method, other, column in (
        ("ifca", "fedavg", "worse_than_baseline"),
        ("ifca", "local", "worse_than_local"),
        ("fedavg", "local", "worse_than_local"),
    ):
        shares = [np.mean(tables[method, seed] < tables[other, seed]) for seed in range(3)]
        assert row(frame, method)[column] == pytest.approx(np.mean(shares)), (method, column)
        assert np.mean(shares) > 0
    assert math.isnan(row(frame, "local")["worse_than_local"])
    assert math.isnan(row(frame, "fedavg")["worse_than_baseline"])


def test_real_runs_with_the_same_seed_are_paired_and_three_seeds_allow_no_test(study: Path) -> None:
    frame = rayfl.compare(study)
    assert frame.attrs["notes"] == [
        "3 paired seeds cannot support a test at 5 %: the smallest p-value that 3 pairs can give is 0.25; with 6 or"
        " more paired seeds, methods that are not significantly worse than the best are marked"
    ]
    assert not frame["not_worse"].any() and frame["best"].sum() == 1


def test_the_last_three_evaluated_rounds_and_other_metrics(study: Path) -> None:
    run = load_all(study)[0]
    found = row(rayfl.compare([run], at="last3", metric="macro_f1"), "fedavg")
    assert found["mean"] == pytest.approx(run.rounds["macro_f1"].mean())  # it has three rounds
    loss = rayfl.compare(study, metric="loss")
    assert loss.loc[loss["best"], "mean"].item() == loss["mean"].min()
    cost = row(rayfl.compare(run, metric="models_down"), "fedavg")  # a key of extras
    assert cost["mean"] == run.extras["models_down"].iloc[-1]


# --- which rounds count ---------------------------------------------------------------------------------------------


def test_a_run_is_never_judged_by_its_best_test_round(tmp_path: Path) -> None:
    values = [0.9, 0.5, math.nan, 0.4, 0.3, math.nan]
    extras = [{"validation_accuracy": v} for v in (0.1, 0.8, None, 0.8, 0.2, None)]
    run = write_run(tmp_path / "a", values=values, extras=extras)
    found = {at: rayfl.compare(run, at=at)["mean"].item() for at in ("last", "last3", "best-validation")}  # type: ignore[arg-type]
    assert found == pytest.approx({"last": 0.3, "last3": 0.4, "best-validation": 0.5})  # of equal rounds the first


def test_the_best_validation_loss_is_the_smallest(tmp_path: Path) -> None:
    extras = [{"validation_loss": v} for v in (3.0, 1.0, 2.0)]
    run = write_run(tmp_path / "a", values=[0.9, 0.7, 0.5], metric="loss", extras=extras)
    assert rayfl.compare(run, metric="loss", at="best-validation")["mean"].item() == 0.7


def test_without_a_validation_split_best_validation_says_what_to_do(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    with pytest.raises(InputError, match=r"has no validation_accuracy; run it again.*partition\.validation=0\.1"):
        rayfl.compare(run, at="best-validation")


def test_fewer_than_three_evaluated_rounds_are_noted(tmp_path: Path) -> None:
    frame = rayfl.compare(write_run(tmp_path / "a", values=[0.2, 0.4]), at="last3")
    assert frame["mean"].item() == pytest.approx(0.3) and "fewer than three evaluated rounds" in notes(frame)


# --- rows and columns -----------------------------------------------------------------------------------------------


def labels(folder: Path, *runs: tuple[str, list[str]]) -> set[tuple[str, str]]:
    """Return the rows and columns of runs with these methods and overrides."""
    for number, (method, overrides) in enumerate(runs):
        write_run(folder / f"run{number}", method, overrides=overrides)
    frame = rayfl.compare(folder)
    return set(zip(frame["method"], frame["setting"], strict=True))


def test_rows_show_addons_and_the_options_that_differ(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        ("fedac", ["method.clusters=4", "method.lam=0.1"]),
        ("fedac", ["method.clusters=10", "method.lam=0.1"]),
        ("ifca", ["method.addons=[cam]", "method.cam.warmup=3"]),
        ("ifca", ["method.clusters=4"]),
        ("fesem", ["method.addons=[cam]", "method.cam.warmup=2"]),
        ("fesem", ["method.addons=[cam]", "method.cam.warmup=3"]),
    )
    rows = {"fedac clusters=4", "fedac clusters=10", "ifca+cam", "ifca", "fesem+cam warmup=2", "fesem+cam warmup=3"}
    assert {method for method, _ in found} == rows


def test_columns_show_what_differs_within_a_data_set_and_a_kind(tmp_path: Path) -> None:
    mnist = ["data.source=mnist", "partition.kind=iid", "model.name=mlp", "rounds=1"]
    found = labels(
        tmp_path,
        ("fedavg", ["partition.kind=dirichlet", "partition.alpha=0.1"]),
        ("fedavg", ["partition.kind=dirichlet", "partition.alpha=0.5"]),
        ("fedavg", mnist),
        ("fedavg", ["partition.kind=classes", "model.name=mlp"]),
        ("fedavg", ["partition.kind=classes", "model.name=digits_cnn"]),
    )
    assert {setting for _, setting in found} == {
        "digits, dirichlet, alpha=0.1",
        "digits, dirichlet, alpha=0.5",
        "mnist, iid",
        "digits, classes, model=mlp",
        "digits, classes, model=digits_cnn",
    }


def test_keys_that_change_no_result_make_no_column(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        ("fedavg", ["federation=serial", "training=loop", "evaluate.every=2", "output.models=none"]),
        ("ifca", ["ray.actors=2", "training=vectorised", "cpu_capability=AVX2", "name=x"]),
    )
    assert found == {("fedavg", "digits, transforms"), ("ifca", "digits, transforms")}


def test_what_is_tuned_for_each_method_is_noted_and_what_is_swept_is_a_column(tmp_path: Path) -> None:
    write_run(tmp_path / "tuned" / "a", "fedavg", overrides=["local.lr=0.1"])
    write_run(tmp_path / "tuned" / "b", "ifca", overrides=["local.lr=0.05"])
    tuned = rayfl.compare(tmp_path / "tuned")
    assert set(tuned["setting"]) == {"digits, transforms"}
    assert "local.lr is not the same for all methods in digits, transforms: 0.1 (fedavg), 0.05 (ifca)" in notes(tuned)
    for lr in (0.1, 0.05):
        write_run(tmp_path / "swept" / f"a{lr}", "fedavg", overrides=[f"local.lr={lr}"])
    swept = rayfl.compare(tmp_path / "swept")
    assert set(swept["setting"]) == {"digits, transforms, lr=0.1", "digits, transforms, lr=0.05"}
    assert "not the same" not in notes(swept)


def test_seeds_make_no_column(tmp_path: Path) -> None:
    for number, overrides in enumerate(([], ["partition.seed=4"], ["partition.seed=5"])):
        write_run(tmp_path / str(number), values=[number / 10], overrides=overrides)
    frame = rayfl.compare(tmp_path)
    assert frame["n"].tolist() == [3] and frame["mean"].item() == pytest.approx(0.1)


# --- pairs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "said"), [("data", "other data"), ("partition", "another partition"), ("model", "another initial model")]
)
def test_runs_that_did_not_begin_alike_are_not_paired_and_told(tmp_path: Path, part: str, said: str) -> None:
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [0.5])
        prints = START if seed == 0 else START._replace(**{part: "other"})
        write_run(tmp_path / f"b{seed}", "ifca", seed, [0.6 + seed / 10], prints=prints)
    frame = rayfl.compare(tmp_path)
    ifca = row(frame, "ifca")
    assert ifca["n"] == 3 and ifca["pairs"] == 1 and ifca["difference"] == pytest.approx(0.1)
    assert f"digits, transforms: ifca had {said} than fedavg with seeds 1, 2, so these runs are not paired" in notes(
        frame
    )


def test_the_note_names_the_keys_that_explain_another_partition(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg")
    write_run(
        tmp_path / "b", "fedtsdp", overrides=["partition.public=0.1"], prints=START._replace(partition="less of it")
    )
    frame = rayfl.compare(tmp_path)
    assert set(frame["setting"]) == {"digits, transforms"}
    assert "fedtsdp had another partition (partition.public=0.1 instead of none) than fedavg with seed 0" in notes(
        frame
    )
    assert row(frame, "fedtsdp")["pairs"] == 0 and math.isnan(row(frame, "fedtsdp")["difference"])


def test_runs_of_before_fingerprints_are_paired_by_their_configs_and_that_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", prints=None)
    write_run(tmp_path / "b", "ifca", overrides=["partition.public=0.1"], prints=None)
    write_run(tmp_path / "c", "fesem")
    frame = rayfl.compare(tmp_path)
    assert (row(frame, "fesem")["pairs"], row(frame, "ifca")["pairs"]) == (1, 0)
    assert f"no fingerprints were recorded in {tmp_path / 'a'}, {tmp_path / 'b'}: whether they had" in notes(frame)
    assert "ifca had another start (partition.public=0.1 instead of none) than fedavg with seed 0" in notes(frame)


def test_without_a_baseline_the_odd_one_out_is_told(tmp_path: Path) -> None:
    for method in ("ifca", "fesem", "local"):
        prints = START._replace(model="other") if method == "ifca" else START
        write_run(tmp_path / method, method, prints=prints)
    frame = rayfl.compare(tmp_path)
    assert "ifca had another initial model than fesem" in notes(frame)
    assert frame["pairs"].tolist() == [0, 0, 0] and frame["difference"].isna().all()


def test_only_the_same_partition_seed_is_paired(tmp_path: Path) -> None:
    for number in range(2):
        write_run(tmp_path / f"a{number}", "fedavg", 0, [0.5], overrides=[f"partition.seed={number}"])
        write_run(tmp_path / f"b{number}", "ifca", 0, [0.6], overrides=[f"partition.seed={number + 1}"])
    frame = rayfl.compare(tmp_path)
    assert row(frame, "ifca")["pairs"] == 1
    assert "means are over different seeds (fedavg: seeds 0, 0 (partition 1); ifca: seeds 0 (partition 1)" in notes(
        frame
    )


# --- the best, and tests --------------------------------------------------------------------------------------------


SIX = {
    "fedavg": [0.50, 0.52, 0.54, 0.56, 0.58, 0.60],
    "ifca": [0.60, 0.62, 0.64, 0.66, 0.68, 0.70],
    "fesem": [0.61, 0.61, 0.65, 0.65, 0.69, 0.6899],
}


def test_the_best_is_marked_and_those_that_a_test_does_not_find_worse(tmp_path: Path) -> None:
    seeds(tmp_path, SIX)
    frame = rayfl.compare(tmp_path)
    assert frame.loc[frame["best"], "method"].tolist() == ["ifca"]
    assert frame.loc[frame["not_worse"], "method"].tolist() == ["fesem"]
    assert row(frame, "fedavg")["p_best"] == 2 / 64 and row(frame, "fesem")["p_best"] > 0.5
    assert notes(frame) == ""
    gain = row(frame, "ifca")
    assert (gain["difference"], gain["low"], gain["high"]) == pytest.approx((0.1, 0.1, 0.1))


def test_with_five_seeds_nobody_is_marked_and_that_is_said(tmp_path: Path) -> None:
    seeds(tmp_path, {method: values[:5] for method, values in SIX.items()})
    frame = rayfl.compare(tmp_path)
    assert not frame["not_worse"].any()
    assert "5 paired seeds cannot support a test at 5 %" in notes(frame) and "is 0.0625;" in notes(frame)


def test_of_losses_the_smallest_is_best_and_clients_with_more_are_worse_off(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", values=[1.0], metric="loss", clients=[[1.0, 1.0, 1.0, 1.0]])
    write_run(tmp_path / "b", "ifca", values=[0.8], metric="loss", clients=[[0.5, 0.5, 0.5, 1.7]])
    frame = rayfl.compare(tmp_path, metric="loss")
    ifca = row(frame, "ifca")
    assert ifca["best"] and ifca["worse_than_baseline"] == 0.25 and ifca["worst10"] == 1.7


def test_the_worst_tenth_and_the_spread_over_clients_by_hand(tmp_path: Path) -> None:
    clients = [np.arange(20) / 20, np.arange(20)[::-1] / 40]
    write_run(tmp_path / "a", values=[0.5, 0.5], clients=clients)  # type: ignore[arg-type]
    last = rayfl.compare(tmp_path)
    assert last["worst10"].item() == pytest.approx((0 + 1) / 2 / 40)
    both = rayfl.compare(tmp_path, at="last3")  # a mean over rounds of the worst in each
    assert both["worst10"].item() == pytest.approx(((0 + 1) / 2 / 40 + (0 + 1) / 2 / 20) / 2)
    assert both["client_std"].item() == pytest.approx((clients[0].std() + clients[1].std()) / 2)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ifca", "baseline=ifca names several rows: use one of 'ifca clusters=4', 'ifca clusters=10'"),
        ("fedavgg", r"baseline=fedavgg is not among the methods \(did you mean 'fedavg'\?\)"),
    ],
)
def test_a_bad_baseline_is_one_line(tmp_path: Path, asked: str, said: str) -> None:
    labels(tmp_path, ("ifca", ["method.clusters=4"]), ("ifca", ["method.clusters=10"]), ("fedavg", []))
    with pytest.raises(InputError, match=said):
        rayfl.compare(tmp_path, baseline=asked)
    assert row(rayfl.compare(tmp_path, baseline="ifca clusters=4"), "fedavg")["pairs"] == 1


# --- cost to a target -----------------------------------------------------------------------------------------------


def test_the_cost_to_a_target_is_that_up_to_the_first_round_that_reaches_it(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, values=[0.1, 0.8, 0.95, 0.5])
    write_run(tmp_path / "b", seed=1, values=[0.1, 0.2, 0.3, 0.4])
    found = row(rayfl.compare(tmp_path, target=0.8), "fedavg")
    assert (found["reached"], found["rounds_to_target"]) == (1, 2)
    assert found["mb_to_target"] == pytest.approx(6.0) and found["seconds_to_target"] == pytest.approx(1.0)
    assert "reached" not in rayfl.compare(tmp_path)
    with pytest.raises(InputError, match=r"target=80: accuracy is at most 1; for 80 % write 0\.8$"):
        rayfl.compare(tmp_path, target=80)
    none = row(rayfl.compare(tmp_path, target=0.99), "fedavg")
    assert none["reached"] == 0 and math.isnan(none["rounds_to_target"])


def test_a_loss_reaches_its_target_from_above(tmp_path: Path) -> None:
    write_run(tmp_path / "a", values=[2.0, 1.0, 0.4], metric="loss")
    assert rayfl.compare(tmp_path, metric="loss", target=1.0)["rounds_to_target"].item() == 2


# --- runs that are left out -----------------------------------------------------------------------------------------


def test_unfinished_runs_are_left_out_and_noted_unless_partial(tmp_path: Path) -> None:
    write_run(tmp_path / "done", "fedavg", values=[0.5, 0.6])
    write_run(tmp_path / "half", "ifca", values=[0.7], rounds=2)
    frame = rayfl.compare(tmp_path)
    assert frame["method"].tolist() == ["fedavg"]
    assert f"left out: {tmp_path / 'half'} has not finished (1 of 2 rounds)" in notes(frame)
    partial = rayfl.compare(tmp_path, partial=True)
    assert row(partial, "ifca")["mean"] == 0.7
    assert f"not finished: {tmp_path / 'half'} has 1 of 2 rounds, and is compared by these" in notes(partial)
    with pytest.raises(InputError, match="none of the runs has finished"):
        rayfl.compare(tmp_path / "half")


def test_a_run_made_twice_counts_once(tmp_path: Path) -> None:
    for name, value in (("a", 0.5), ("b", 0.6)):
        write_run(tmp_path / name, values=[value])
    frame = rayfl.compare(tmp_path)
    assert frame["n"].item() == 1 and frame["mean"].item() == 0.5
    assert f"left out: {tmp_path / 'b'} has the config and the seed of {tmp_path / 'a'}" in notes(frame)
    twice = rayfl.compare([tmp_path / "a", tmp_path / "a"])
    assert twice["n"].item() == 1 and notes(twice) == ""


def test_a_run_without_the_metric_is_left_out_and_an_unknown_metric_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", extras=[{"validation_accuracy": 0.4}])
    write_run(tmp_path / "b", "ifca")
    frame = rayfl.compare(tmp_path, metric="validation_accuracy")
    assert frame["method"].tolist() == ["fedavg"] and "has no validation_accuracy" in notes(frame)
    with pytest.raises(InputError, match=r"metric=acuracy: no run has it \(did you mean 'accuracy'\?\); there are"):
        rayfl.compare(tmp_path, metric="acuracy")


def test_a_folder_without_runs_and_a_bad_at_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run: give run folders"):
        rayfl.compare(tmp_path)
    with pytest.raises(InputError, match="at=best is not allowed: use one of last, last3, best-validation"):
        rayfl.compare(write_run(tmp_path / "a"), at="best")  # type: ignore[arg-type]


def test_a_comparison_has_a_row_per_run_that_was_used(tmp_path: Path) -> None:
    seeds(tmp_path, {"fedavg": [0.1, 0.2], "ifca": [0.3, 0.4]})
    found: Comparison = compare_runs(load_all(tmp_path))
    assert found.runs["value"].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert found.runs["seed"].tolist() == [0, 1, 0, 1]


def test_a_damaged_table_is_named_in_one_line(tmp_path: Path) -> None:
    seeds(tmp_path, {"fedavg": [0.5], "ifca": [0.6]})
    (table,) = (tmp_path / "ifca-0" / "rounds").glob("*.parquet")
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(InputError, match=r"ifca-0/rounds/part-00000\.parquet is damaged \(.*\): restore it") as error:
        rayfl.compare(tmp_path)
    assert len(error.value.lines) == 1
