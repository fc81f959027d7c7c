"""What samples are used for: training, validation, test, or public. No sample is in two of them, whatever the kind."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_partitions import KINDS, config, digits, made_up

from rayfl.analysis.partition_figure import draw_partition
from rayfl.config import load_config
from rayfl.data import Dataset, Partition, make_partition
from rayfl.errors import InputError
from rayfl.methods.ditto import PERSONAL
from rayfl.results import Run
from rayfl.simulation.preparation import _needs, prepare
from rayfl.simulation.server import Server

Make = Callable[..., Server]

PLANTED: list[dict[str, Any]] = [
    {"kind": "transforms", "angles": [0, 180]},
    {"kind": "transforms", "angles": [0, 10, 200], "whole_per_cluster": True},
    {"kind": "transforms", "transform": "inversion", "whole_per_cluster": True},
    {"kind": "transforms", "transform": "label_permutation", "clusters": 3, "whole_per_cluster": True},
]
OF_A_KIND = pytest.mark.parametrize("keys", KINDS, ids=lambda keys: "-".join(map(str, keys.values())))


def split_three_ways(labels: np.ndarray, rng: np.random.Generator, **keys: Any) -> Dataset:
    """Made-up images with a validation and a test split."""
    draw = rng.random(len(labels))
    return replace(made_up(labels, draw < 0.3, **keys), is_validation=draw > 0.8)


def parts(partition: Partition) -> dict[str, np.ndarray]:
    return {name: getattr(partition, name) for name in ("train", "validation", "test", "public")}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Dataset, int]:
    classes, seed = draw(st.integers(4, 10)), draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    skew = rng.dirichlet(np.full(classes, draw(st.sampled_from([1.0, 100.0]))))
    labels = np.concatenate([np.tile(np.arange(classes), 8), rng.choice(classes, draw(st.integers(200, 800)), p=skew)])
    dataset = split_three_ways(labels, rng)
    if draw(st.booleans()):
        dataset = replace(dataset, is_validation=None)
    keys = dict(draw(st.sampled_from(KINDS + PLANTED)))
    keys["clients"] = draw(st.integers(3, 12 if keys["kind"] == "natural" else 30))
    if draw(st.booleans()):
        least = draw(st.integers(3, 8))
        keys["samples"] = [least, least + draw(st.integers(0, 20))]
    keys["test"] = draw(st.sampled_from([0.2, 0.9, "official"]))
    shares = [None, 0.0, 0.1, 0.7] + ["official"] * (dataset.is_validation is not None)
    keys["validation"] = draw(st.sampled_from(shares))
    keys["public"] = draw(st.sampled_from([None, "none", 0.1, 0.5] + ["test"] * (keys["test"] != "official")))
    return config(**keys), dataset, seed


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(cases())
def test_public_training_validation_and_test_samples_are_disjoint_and_nobody_is_empty(
    case: tuple[Any, Dataset, int],
) -> None:
    asked, dataset, _ = case
    try:
        partition = make_partition(*case)
    except InputError as error:
        assert "\n" not in str(error) and "partition." in str(error) and "use " in str(error)
        assume(False)
    used = {name: np.unique(samples) for name, samples in parts(partition).items()}
    everything = np.concatenate(list(used.values()))
    assert len(np.unique(everything)) == len(everything)  # nothing is in two of them
    assert everything.min() >= 0 and everything.max() < len(dataset)

    whole = getattr(asked, "whole_per_cluster", None)
    clusters = partition.true_cluster if whole else np.zeros(partition.clients, int)
    for cluster in range(clusters.max() + 1):  # a cluster, or all clients, hold every sample at most once
        members = np.flatnonzero(clusters == cluster)
        held = np.concatenate(
            [f(c) for c in members for f in (partition.train_of, partition.validation_of, partition.test_of)]
        )
        assert len(np.unique(held)) == len(held)

    assert partition.clients == asked.clients
    assert partition.n_train.min() >= 1 and partition.n_test.min() >= 1
    if isinstance(asked.validation, float):
        # A share is everyone's, to the sample, of what the client would else train on; 0 is none.
        most = partition.n_train + partition.n_validation
        share = np.clip(np.rint(most * asked.validation), 1, most - 1) if asked.validation else np.zeros_like(most)
        if not whole:
            assert np.array_equal(partition.n_validation, share)
    elif dataset.is_validation is not None:
        assert dataset.is_validation[partition.validation].all()
        assert not dataset.is_validation[partition.train].any() and not dataset.is_validation[partition.test].any()
    if asked.public == "test":
        assert np.array_equal(partition.public, np.flatnonzero(dataset.is_test))
    assert (len(partition.public) > 0) == (asked.public not in (None, "none"))
    if asked.test == "official":
        assert dataset.is_test[partition.test].all()
        assert not dataset.is_test[np.concatenate([partition.train, partition.validation, partition.public])].any()


# -- what nobody asks for changes nothing ----------------------------------------------------------------------------


def digest(partition: Partition) -> str:
    arrays = [partition.train, partition.train_offsets, partition.test, partition.test_offsets]
    return hashlib.blake2b(b"".join(a.tobytes() for a in arrays), digest_size=8).hexdigest()


# Kinds that are dealt by whole numbers alone, and so are the same on any machine.
BEFORE = {
    "iid": "4e681d82e9b85b5d",
    "classes": "cec0f93ce28e4e10",
    "cluster_classes": "d52a2cf95753b6ca",
    "transforms": "4e681d82e9b85b5d",
}


@pytest.mark.parametrize("kind", BEFORE)
def test_old_configs_deal_as_they_did_before_there_were_validation_and_public_samples(kind: str) -> None:
    partition = make_partition(config(kind=kind), digits(), 3)
    assert digest(partition) == BEFORE[kind]
    assert len(partition.validation) == len(partition.public) == 0
    assert partition.n_validation.tolist() == [0] * 20


@OF_A_KIND
@pytest.mark.parametrize("test", [0.2, "official"])
def test_a_share_for_validation_comes_from_training_and_leaves_the_rest_as_it_is(
    keys: dict[str, Any], test: float | str
) -> None:
    rng = np.random.default_rng(0)
    dataset = made_up(np.tile(np.arange(10), 120), rng.random(1200) < 0.3)
    plain, kept = (
        make_partition(config(clients=8, test=test, **keys, **more), dataset, 2) for more in ({}, {"validation": 0.25})
    )
    assert np.array_equal(kept.test, plain.test)
    for client in range(8):
        both = np.concatenate([kept.train_of(client), kept.validation_of(client)])
        assert np.array_equal(np.sort(both), plain.train_of(client))
    share = np.clip(np.rint(plain.n_train * 0.25), 1, plain.n_train - 1)  # who has one sample trains on it
    assert np.array_equal(kept.n_validation, share)
    # Each class of a client is cut in the same proportion, but for rounding up or down.
    exact = plain.label_counts(dataset) * (kept.n_validation / plain.n_train)[:, None]
    assert (np.abs(kept.label_counts(dataset, "validation") - exact) < 1).all()


@OF_A_KIND
def test_a_validation_split_of_the_source_is_dealt_as_such_and_with_0_for_training(keys: dict[str, Any]) -> None:
    labels = np.tile(np.arange(10), 120)
    dataset = split_three_ways(labels, np.random.default_rng(0))
    unset, official, none = (
        make_partition(config(clients=8, test="official", **keys, **more), dataset, 2)
        for more in ({}, {"validation": "official"}, {"validation": 0})
    )
    assert np.array_equal(unset.validation, official.validation) and np.array_equal(unset.train, official.train)
    assert dataset.is_validation is not None
    own = np.flatnonzero(dataset.is_validation)
    assert not np.isin(unset.train, own).any() and np.isin(none.train, own).any()
    without = replace(dataset, is_validation=None)
    before = make_partition(config(clients=8, test="official", **keys), without, 2)
    assert digest(none) == digest(before) and not len(none.validation)
    train, validation = (unset.label_counts(dataset, split) for split in ("train", "validation"))
    if "classes" in keys["kind"]:
        assert not validation[train == 0].any()  # of a class that a client does not train on it validates none
    elif keys["kind"] != "natural":
        # All of it is dealt, to everyone in proportion to what it trains on.
        assert np.array_equal(np.sort(unset.validation), own)
        exact = unset.n_train * (len(own) / unset.n_train.sum())
        assert np.abs(unset.n_validation - exact).max() <= 1


def test_of_a_validation_split_as_much_is_dealt_as_of_the_training_split() -> None:
    labels = np.tile(np.arange(10), 200)
    dataset = replace(made_up(labels, np.arange(2000) < 400), is_validation=np.arange(2000) >= 1600)
    asked = config(kind="iid", clients=10, test="official", samples=[80, 80])
    partition = make_partition(asked, dataset, 0)
    assert partition.n_train.sum() == 600 and partition.n_test.sum() == 200  # half of 1200 and of 400
    assert partition.n_validation.sum() == 200


def test_natural_clients_validate_on_samples_of_their_own() -> None:
    dataset = split_three_ways(np.tile(np.arange(10), 60), np.random.default_rng(1))
    assert dataset.owner is not None
    for more in ({}, {"validation": 0.3}, {"test": "official"}, {"public": 0.2}, {"public": "test"}):
        partition = make_partition(config(kind="natural", column="owner", **more), dataset, 0)
        for client in range(12):
            mine = np.concatenate([f(client) for f in (partition.train_of, partition.test_of, partition.validation_of)])
            assert set(dataset.owner[mine]) == {client}
    nobody = replace(dataset, is_validation=(dataset.owner == 3) & ~dataset.is_test)  # only one owner has some
    partition = make_partition(config(kind="natural", column="owner", test="official", clients=11), nobody, 0)
    assert not partition.n_validation.any()  # an owner of validation samples alone is no client


REFUSED = [
    ({"public": "test"}, "partition.public=test: this source has no training and test split of its own: use a share"),
    ({"validation": "official"}, "partition.validation=official: this source has no validation split of its own"),
    ({"public": 0.999, "clients": 20}, "partition.clients=20 cannot each get 2 of the 2 samples"),
    (
        {"kind": "transforms", "clients": 1600, "whole_per_cluster": True},
        "partition.whole_per_cluster: the 400 clients of a cluster cannot each get 1 of the 1438 training and 1 of the"
        " 359 test samples: use at most 359 clients per cluster",
    ),
    (
        {"kind": "transforms", "samples": [100, 200], "clients": 80, "whole_per_cluster": True},
        "partition.samples=[100, 200] for partition.clients=20 needs at least 2000 samples",
    ),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_splits_that_cannot_be_are_told_with_the_cure(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as told:
        make_partition(config(**{"kind": "iid", **keys}), digits(), 0)
    assert str(told.value).startswith(message)


# -- public samples ---------------------------------------------------------------------------------------------------


def npz_with_all_splits(folder: Path) -> str:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split, n in (("train", 240), ("val", 60), ("test", 100)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (n, 4, 4)).astype(np.uint8)
        arrays[f"{split}_labels"] = np.arange(n) % 4
    np.savez(folder / "all.npz", **arrays)
    return f"data={{source: npz, path: {folder / 'all.npz'}}}"


SMALL = ["federation=serial", "model.name=mlp", "partition.kind=iid", "partition.clients=6", "local.steps=2"]


def test_fedtsdp_gets_the_papers_split_by_itself_and_others_get_no_public_samples(tmp_path: Path) -> None:
    data = npz_with_all_splits(tmp_path)
    ready = prepare(load_config(None, [*SMALL, data, "method.name=fedtsdp", "partition.validation=0"]))
    test_split = np.flatnonzero(ready.dataset.is_test)
    assert np.array_equal(ready.facts.public, test_split)
    assert (ready.partition.n_train + ready.partition.n_test).sum() == 300  # the rest of the samples
    assert ready.partition.n_test.tolist() == [10] * 6  # a fifth
    assert ready.config.partition.public == "test"  # as the run's config says
    same = prepare(load_config(ready.config))
    assert same.fingerprints == ready.fingerprints
    plain = prepare(load_config(None, [*SMALL, data, "method.name=fedavg"]))
    assert len(plain.facts.public) == 0 and plain.config.partition.public is None
    asked = prepare(load_config(None, [*SMALL, data, "method.name=fedavg", "partition.public=test"]))
    assert np.array_equal(asked.facts.public, test_split)


def test_without_a_test_split_to_spare_fedtsdp_gets_a_tenth_of_the_other_samples(tmp_path: Path) -> None:
    data = npz_with_all_splits(tmp_path)
    official = prepare(load_config(None, [*SMALL, data, "method.name=fedtsdp", "partition.test=official"]))
    assert official.config.partition.public == 0.1 and len(official.facts.public) == 24  # of the training split
    assert official.partition.n_test.sum() == 100 and official.partition.n_validation.sum() == 60
    assert len(prepare(load_config(None, [*SMALL, "method.name=fedtsdp"])).facts.public) == 180  # of 1797 digits
    with pytest.raises(InputError, match=r"partition\.public=none: method\.name=fedtsdp needs public samples: use"):
        prepare(load_config(None, [*SMALL, "method.name=fedtsdp", "partition.public=none"]))


def test_one_split_cannot_be_public_and_for_testing() -> None:
    with pytest.raises(InputError, match=r"partition\.public=test and partition\.test=official .*use a share"):
        load_config(None, ["partition.public=test", "partition.test=official"])


# -- planted clusters --------------------------------------------------------------------------------------------------


def test_sr_fcas_cifar10_in_small_two_clusters_half_a_turn_apart_that_each_hold_all_samples() -> None:
    labels = np.tile(np.arange(10), 38)
    dataset = made_up(labels, np.arange(380) >= 320)
    asked = config(angles=[0, 180], whole_per_cluster=True, clients=32, test="official")
    partition = make_partition(asked, dataset, 0)
    assert [t.turns for t in partition.transforms] == [0, 2]
    assert partition.n_train.tolist() == [20] * 32  # 50,000 would be 3125 each
    for cluster in (0, 1):
        members = np.flatnonzero(partition.true_cluster == cluster)
        assert len(members) == 16
        for of, first, last in ((partition.train_of, 0, 320), (partition.test_of, 320, 380)):
            held = np.sort(np.concatenate([of(c) for c in members]))
            assert np.array_equal(held, np.arange(first, last))
    assert not np.array_equal(partition.train_of(0), partition.train_of(16))  # each cluster is dealt anew


def test_what_tests_one_cluster_trains_none() -> None:
    asked = config(whole_per_cluster=True, clients=8, test=0.25, validation=0.2)
    partition = make_partition(asked, digits(), 0)
    sets = [set(samples.tolist()) for samples in parts(partition).values()]
    assert [len(s) for s in sets] == [1078, 270, 449, 0]  # of 1797: a quarter, then a fifth of what is left
    assert len(set.union(*sets)) == 1797


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["partition.angles=[0, 90]", "partition.clusters=3"], ["2 angles", "partition.clusters=3", "one angle per"]),
        (["partition.angles=[0, 360]"], ["partition.angles=[0", "twice"]),
        (["partition.angles=[0, 400]"], ["partition.angles.1=400", "360"]),
        (["partition.angles=[]"], ["partition.angles=[]", "at least 1"]),
        (["partition.angles=[0, 1]", "partition.transform=inversion"], ["inversion", "transform=rotation"]),
        (["partition.kind=iid", "partition.angles=[0]"], ["partition.angles=[0]", "only by transforms"]),
        (["partition.kind=iid", "partition.whole_per_cluster=true"], ["whole_per_cluster", "only by transforms"]),
        (["partition.clusters=5"], ["partition.clusters=5", "partition.angles"]),
        (["partition.validation=1.0"], ["partition.validation=1.0", "below 1"]),
        (["partition.public=1.5"], ["partition.public=1.5", "'none' or 'test'"]),
        (["partition.public=0"], ["partition.public=0", "'none'"]),
    ],
)
def test_faults_of_the_new_keys_are_one_line_with_the_cure(overrides: list[str], names: list[str]) -> None:
    with pytest.raises(InputError) as told:
        load_config(None, overrides)
    assert len(told.value.lines) == 1
    for name in names:
        assert name in str(told.value)


def test_angles_say_how_many_clusters_there_are_and_go_round_the_circle() -> None:
    partition = make_partition(config(angles=[-1e-20, -90, 30, 215.5, 315], clients=10), digits(), 0)
    assert [(t.turns, t.degrees) for t in partition.transforms] == [(0, 0), (3, 0), (0, 30), (2, 35.5), (3, 45)]
    assert np.bincount(partition.true_cluster).tolist() == [2] * 5


def test_half_turns_need_no_square_images() -> None:
    wide = replace(made_up(np.tile(np.arange(4), 20)), inputs=np.zeros((80, 1, 2, 3), np.uint8))
    assert make_partition(config(angles=[0, 180], clients=4), wide, 0).clients == 4
    with pytest.raises(InputError, match=r"needs square images, these are 3 x 2: use partition.angles=\[0, 180\]"):
        make_partition(config(angles=[0, 30], clients=4), wide, 0)


def test_halved_pixels_are_the_same_for_inverted_clients() -> None:
    keys = ["federation=serial", "partition.transform=inversion", "partition.clients=4"]
    half = prepare(load_config(None, [*keys, "data.normalise=half"])).dataset
    assert half.shift.tolist() == [-1] and half.scale.tolist() == pytest.approx([2 / 255])
    standard = prepare(load_config(None, keys)).dataset
    assert standard.scale.tolist() != digits().scale.tolist()  # what clients see is partly inverted


# -- reported ----------------------------------------------------------------------------------------------------------

VALIDATED = ["partition.kind=transforms", "partition.angles=[0, 45, 180]", "partition.validation=0.25"]


def test_validation_figures_are_of_the_tested_models_on_turned_samples_weighted_by_size(serial_server: Make) -> None:
    keys = [*SMALL, *VALIDATED, "partition.samples=[30, 200]", "method.name=ditto", "evaluate.every=2", "rounds=3"]
    server = serial_server(*keys)
    assert not [key for key in server.run_round(1).extras if key.startswith("validation")]  # not tested in this round
    record = server.run_round(2)
    worker = server.fed._worker  # type: ignore[attr-defined]
    partition, rights, losses = worker.partition, 0, 0.0
    for client in range(6):
        inputs, labels = worker.dataset.batch(partition.validation_of(client), partition.transform_for(client))
        worker.model.load(worker.model_of(PERSONAL, client))
        with torch.no_grad():
            logits = worker.model.module.eval()(inputs)
        rights += int((logits.argmax(1) == labels).sum())
        losses += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    n = partition.n_validation.sum()
    assert record.extras["validation_accuracy"] == pytest.approx(rights / n)
    assert record.extras["validation_loss"] == pytest.approx(losses / n, rel=1e-4)
    assert 0 < record.extras["validation_macro_f1"] <= 1


def test_looking_at_validation_samples_changes_no_bit_of_the_test_results(serial_server: Make) -> None:
    watched, unwatched = (serial_server(*SMALL, *VALIDATED, "method.name=fedac") for _ in range(2))
    unwatched.fed.n_validation = np.zeros(6, np.int64)
    for number in (1, 2, 3):
        one, other = watched.run_round(number), unwatched.run_round(number)
        assert "validation_accuracy" in one.extras and "validation_accuracy" not in other.extras
        for name in ("accuracy", "loss", "macro_f1"):
            assert np.array_equal(one.clients[name], other.clients[name])


def test_clients_without_validation_samples_do_not_count(serial_server: Make) -> None:
    server = serial_server(*SMALL, *VALIDATED, "method.name=fedavg")
    server.run_round(1)
    tested = server.method.eval_models()
    scores = server.fed.evaluate(tested, "validation")
    sizes = server.fed.n_validation.copy()
    sizes[2] = 0
    server.fed.n_validation = sizes
    assert np.isnan(server.fed.evaluate(tested, "validation")["accuracy"][2])
    others = np.arange(6) != 2
    expected = np.average(scores["accuracy"][others], weights=sizes[others])
    assert server._validation(tested)["validation_accuracy"] == pytest.approx(expected)


def test_both_federations_report_the_same_validation_figures(
    simulate_quietly: Callable[..., Run], ray_session: None
) -> None:
    keys = [*SMALL, *VALIDATED, "method.name=ditto", "rounds=2", "ray.actors=2"]
    one, other = (simulate_quietly(*keys, f"federation={kind}", f"name={kind}") for kind in ("serial", "ray"))
    assert "validation_loss" in one.rounds.extras.iloc[-1]
    assert one.rounds.extras.tolist() == other.rounds.extras.tolist()
    assert one.config.partition.validation == 0.25


def test_checkpoints_and_memory_know_of_validation_and_public_samples() -> None:
    ready = prepare(load_config(None, [*SMALL, "partition.validation=0.2", "partition.public=0.1"]))
    partition = ready.partition
    moved = replace(partition, public=partition.public[1:])
    swapped = replace(partition, validation=partition.validation[::-1])
    prepared = [replace(ready, partition=p) for p in (partition, moved, swapped)]
    assert len({p.fingerprints.partition for p in prepared}) == len({p.dealt_fingerprint for p in prepared}) == 3
    arrays = [ready.dataset.inputs, ready.dataset.labels, *parts(partition).values()]
    assert _needs(ready.config, ready.dataset, partition, 10)[0].bytes == sum(a.nbytes for a in arrays)


def test_the_figure_and_the_table_show_validation_and_public_samples(tmp_path: Path, capsys: Any) -> None:
    from rayfl.cli import partition as command

    keys = ["partition.clients=6", "partition.angles=[0, 45, 180]", "partition.whole_per_cluster=true"]
    command([*keys, "partition.validation=0.2", "method.name=fedtsdp"], output=tmp_path / "who.png")
    out = capsys.readouterr().out
    assert "6 clients, 1617 of 1797 samples" in out and "validation" in out
    assert "public: 180 samples that only the server sees" in out
    plain = make_partition(config(), digits(), 0)
    assert draw_partition(plain, digits(), tmp_path / "plain.png").read_bytes() != (tmp_path / "who.png").read_bytes()
