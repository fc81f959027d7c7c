"""Composed partitions: parts that combine, none of which changes what another one draws."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rayfl.config import partition_config
from rayfl.data import Dataset, Partition, make_partition
from rayfl.data.partition.parts.features import Noise, Rotation
from rayfl.errors import InputError

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def made_up(labels: np.ndarray, is_test: np.ndarray | None = None, kind: str = "image") -> Dataset:
    n = len(labels)
    rng = np.random.default_rng(3)
    inputs = rng.integers(0, 256, (n, 1, 4, 4)).astype(np.uint8) if kind == "image" else rng.normal(size=(n, 6))
    return Dataset(
        inputs=inputs if kind == "image" else inputs.astype(np.float32),
        labels=labels.astype(np.uint8),
        classes=int(labels.max()) + 1,
        kind="image" if kind == "image" else "vector",
        is_test=np.zeros(n, bool) if is_test is None else is_test,
        shift=np.zeros(1 if kind == "image" else 6, np.float32),
        scale=np.ones(1 if kind == "image" else 6, np.float32),
        owner=np.arange(n) % 15,
        owner_names=tuple(f"owner {i:02}" for i in range(15)),
    )


def balanced(per_class: int = 60, classes: int = 10, **keys: Any) -> Dataset:
    return made_up(np.tile(np.arange(classes), per_class), **keys)


def composed(dataset: Dataset | None = None, seed: int = 0, **keys: Any) -> Partition:
    return make_partition(partition_config(kind="composed", **keys), dataset or balanced(), seed)


def everything(partition: Partition) -> list[Any]:
    arrays = [partition.train, partition.train_offsets, partition.test, partition.test_offsets, partition.validation]
    arrays += [partition.public, *[a for a in (partition.true_cluster, partition.transform_of) if a is not None]]
    for change in partition.changes:
        arrays += [np.array(change.round), change.clients, change.true_cluster, change.transform_of]
    return [*[(a.dtype, a.tobytes()) for a in arrays], repr(partition.transforms), partition.client_names]


def who(partition: Partition) -> list[bytes]:
    arrays = (partition.train, partition.train_offsets, partition.test, partition.test_offsets, partition.validation)
    return [array.tobytes() for array in arrays]


LABELS: list[dict[str, Any] | None] = [
    None,
    {"kind": "iid"},
    {"kind": "dirichlet", "alpha": 0.1},
    {"kind": "dirichlet", "alpha": 1.0, "over": "classes"},
    {"kind": "dirichlet", "alpha": 1.0, "over": "clients"},
    {"kind": "classes", "classes": 2},
    {"kind": "cluster_dirichlet"},
    {"kind": "cluster_classes"},
]
QUANTITIES: list[dict[str, Any] | None] = [
    None,
    {"kind": "range", "min": 5, "max": 12},
    {"kind": "lognormal", "sigma": 0.8},
    {"kind": "lognormal", "sigma": 1.5, "mean": 9, "least": 4},
    {"kind": "power_law", "exponent": 1.2},
    {"kind": "sizes"},
]
PLANTED: list[dict[str, Any]] = [
    {"kind": "rotation", "angle": [0, 15, 90]},
    {"kind": "blur", "sigma": [0, 1, 2]},
    {"kind": "contrast", "factor": [1, 0.5, 2]},
    {"kind": "permutation"},
]
NUISANCE: list[dict[str, Any]] = [
    {"kind": "noise", "std": [0, 20], "by": "client"},
    {"kind": "brightness", "shift": [-40, 40], "by": "client", "share": 0.5},
    {"kind": "inversion", "share": 0.3},
    {"kind": "rotation", "angle": 180, "clusters": [1]},
]
CONCEPTS: list[dict[str, Any]] = [
    {"kind": "swap", "pairs": [[], [[0, 1]], [[2, 3]]]},
    {"kind": "swap", "random": 1, "by": "client"},
    {"kind": "permutation", "labels": 3},
]


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], Dataset, int]:
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    classes = draw(st.integers(4, 10))
    labels = np.concatenate([np.tile(np.arange(classes), 8), rng.integers(0, classes, draw(st.integers(150, 500)))])
    keys: dict[str, Any] = {
        "clients": draw(st.integers(6, 25)),
        "clusters": 3,
        "labels": draw(st.sampled_from(LABELS)),
        "quantity": draw(st.sampled_from(QUANTITIES)),
        "features": [draw(st.sampled_from(PLANTED)), *draw(st.lists(st.sampled_from(NUISANCE), max_size=2))],
        "concept": draw(st.lists(st.sampled_from(CONCEPTS), max_size=2)),
        "test": draw(st.sampled_from([0.2, 0.5, "official"])),
        "validation": draw(st.sampled_from([None, 0.2])),
        "public": draw(st.sampled_from([None, 0.1])),
    }
    if keys["quantity"] == {"kind": "sizes"}:
        keys["quantity"] = {"kind": "sizes", "sizes": rng.integers(4, 9, keys["clients"]).tolist()}
    if not (keys["labels"] or {"kind": ""})["kind"].startswith("cluster_") and draw(st.booleans()):
        keys["drift"] = [{"round": 3, "until": 9, "share": 0.5}, {"every": 4, "times": 3, "to": "random"}]
    return {k: v for k, v in keys.items() if v is not None}, made_up(labels, rng.random(len(labels)) < 0.3), seed


def made(case: tuple[dict[str, Any], Dataset, int]) -> Partition:
    keys, dataset, seed = case
    try:
        return composed(dataset, seed, **keys)
    except InputError as error:
        assert "\n" not in str(error) and "partition." in str(error)
        assume(False)
        raise


@EXAMPLES
@given(cases())
def test_no_sample_is_held_twice_nobody_is_empty_and_splits_are_disjoint(
    case: tuple[dict[str, Any], Dataset, int],
) -> None:
    partition, (keys, dataset, _) = made(case), case
    dealt = np.concatenate([partition.train, partition.test, partition.validation, partition.public])
    assert len(np.unique(dealt)) == len(dealt)
    assert dealt.min() >= 0 and dealt.max() < len(dataset)
    assert partition.clients == keys["clients"]
    assert partition.n_train.min() >= 1 and partition.n_test.min() >= 1
    if keys["test"] == "official":
        assert dataset.is_test[partition.test].all() and not dataset.is_test[partition.train].any()


@EXAMPLES
@given(cases())
def test_sizes_and_labels_are_as_asked_within_rounding(case: tuple[dict[str, Any], Dataset, int]) -> None:
    partition, (keys, dataset, _) = made(case), case
    sizes = partition.n_train + partition.n_test + partition.n_validation
    quantity, labels = keys.get("quantity"), keys.get("labels") or {"kind": "iid"}
    everybody_has_any = labels["kind"] in ("iid", "dirichlet", "cluster_dirichlet")
    has_validation_split = "validation" in keys and keys["test"] == "official"
    if quantity is None and everybody_has_any:
        assert sizes.sum() + len(partition.public) == len(dataset)
    elif quantity is not None and quantity["kind"] == "sizes" and not has_validation_split:
        assert sizes.tolist() == quantity["sizes"]
    elif quantity is not None and quantity["kind"] == "range" and everybody_has_any:
        assert quantity["min"] <= sizes.min() and sizes.max() <= quantity["max"]
    elif quantity is not None and quantity.get("mean") and everybody_has_any:
        assert sizes.sum() == round(quantity["mean"] * keys["clients"])
    if labels["kind"] == "classes":
        owned = replace(partition, transforms=(), transform_of=None).label_counts(dataset, "all") > 0
        assert owned.sum(1).max() <= labels["classes"]


@EXAMPLES
@given(cases())
def test_the_same_seed_gives_the_same_bytes(case: tuple[dict[str, Any], Dataset, int]) -> None:
    assert everything(made(case)) == everything(made(case))


@EXAMPLES
@given(cases(), st.sampled_from(NUISANCE), st.booleans())
def test_adding_a_part_changes_no_bit_of_the_others(
    case: tuple[dict[str, Any], Dataset, int], added: dict[str, Any], first: bool
) -> None:
    before, (keys, dataset, seed) = made(case), case
    kinds = [part["kind"] for part in keys["features"]]
    more = [added, *keys["features"]] if first and added["kind"] not in kinds else [*keys["features"], added]
    after = composed(dataset, seed, **{**keys, "features": more})
    assert who(before) == who(after)
    assert np.array_equal(before.true_cluster, after.true_cluster)  # type: ignore[arg-type]
    assert [c.clients.tolist() for c in before.changes] == [c.clients.tolist() for c in after.changes]
    for client in range(before.clients):
        for number in (0, 5, 12):
            old, new = before.transform_for(client, number), after.transform_for(client, number)
            assert old is not None and new is not None
            rest = list(new.steps)
            for step in old.steps:
                rest.remove(step)
            assert len(rest) <= 1
            assert old.labels == new.labels


def test_labels_alone_deal_as_the_kind_of_that_name_does() -> None:
    for labels in ({"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.3}, {"kind": "classes", "classes": 3}):
        kind = make_partition(partition_config(clients=12, **labels), balanced(), 4)
        assert who(composed(seed=4, clients=12, labels=labels)) == who(kind)
    planted = composed(seed=4, clients=12, clusters=3, labels={"kind": "cluster_classes"})
    kind = make_partition(partition_config(kind="cluster_classes", clients=12, clusters=3), balanced(), 4)
    assert who(planted) == who(kind)
    assert np.array_equal(planted.true_cluster, kind.true_cluster)  # type: ignore[arg-type]


def test_a_dirichlet_over_classes_has_the_variance_of_one_and_equal_sizes() -> None:
    data = balanced(3000)
    partition = composed(data, clients=300, labels={"kind": "dirichlet", "alpha": 1.0, "over": "classes"})
    sizes = partition.n_train + partition.n_test
    assert sizes.max() - sizes.min() <= 1
    shares = partition.label_counts(data, "all") / sizes[:, None]
    assert shares.var() == pytest.approx(0.1 * 0.9 / 11, rel=0.2)  # of Dirichlet(1, ..., 1) over 10 classes


def test_planted_values_are_those_of_the_cluster_and_clients_draw_their_own() -> None:
    partition = composed(
        clients=8,
        cluster_sizes=[2, 6],
        features=[{"kind": "rotation", "angle": [0, 45]}, {"kind": "noise", "std": [5, 9], "by": "client"}],
    )
    assert partition.true_cluster is not None and partition.true_cluster.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    deviations = set()
    for client in range(8):
        *turned, noise = partition.transform_for(client).steps  # type: ignore[union-attr]
        assert turned == ([] if client < 2 else [Rotation(45.0)])
        assert isinstance(noise, Noise) and 5 <= noise.std <= 9
        deviations.add(noise.std)
    assert len(deviations) == 8


@pytest.mark.parametrize("share", [0.2, 0.5, 0.29])
def test_a_share_is_a_share_of_every_cluster(share: float) -> None:
    partition = composed(
        balanced(200),
        clients=100,
        clusters=2,
        features=[{"kind": "rotation", "angle": [0, 90]}, {"kind": "inversion", "share": share}],
    )
    inverted = np.array([partition.transform_for(client).inverts for client in range(100)])  # type: ignore[union-attr]
    assert inverted.sum() == round(share * 100)
    assert abs(inverted[:50].sum() - inverted[50:].sum()) <= 1


def test_concepts_in_a_row_are_applied_one_after_the_other() -> None:
    data = balanced()
    parts = [{"kind": "swap", "pairs": [[0, 1]]}, {"kind": "swap", "pairs": [[1, 2]]}]
    partition = composed(data, clients=4, concept=parts)
    assert partition.true_cluster is None
    assert partition.transforms[0].labels == (2, 0, 1, 3, 4, 5, 6, 7, 8, 9)
    _, labels = data.batch(partition.train_of(0), partition.transform_for(0))
    assert np.array_equal(np.bincount(labels, minlength=10), partition.label_counts(data)[0])


def test_drawn_orders_differ_between_clusters_and_leave_the_first_as_it_is() -> None:
    partition = composed(clients=6, clusters=6, concept={"kind": "swap", "random": 1})
    orders = [partition.transform_for(client).labels for client in range(6)]  # type: ignore[union-attr]
    assert orders[0] is None
    assert len(set(orders)) == 6
    with pytest.raises(InputError, match=r"partition.concept.0: 3 labels have too few orders .* use fewer clusters"):
        composed(balanced(classes=3), clients=6, clusters=6, concept={"kind": "swap", "random": 1})


def test_owners_are_clients_and_planted_clusters_are_spread_over_them() -> None:
    data = balanced()
    partition = composed(
        data, natural={"columns": ["owner"]}, clusters=3, features={"kind": "rotation", "angle": [0, 90, 180]}
    )
    assert partition.client_names == data.owner_names
    assert partition.true_cluster is not None
    assert np.bincount(partition.true_cluster).tolist() == [5, 5, 5]
    assert (np.diff(partition.true_cluster) < 0).any()
    few = composed(data, natural={"columns": "owner"}, quantity={"kind": "range", "min": 5, "max": 8})
    assert (few.n_train + few.n_test).max() == 8
    assert partition_config(kind="composed", natural={"columns": ["play", "role"]}).owner_column == "play+role"


def test_vectors_may_be_noisy_or_permuted() -> None:
    data = balanced(kind="vector")
    partition = composed(data, clients=4, clusters=2, features=[{"kind": "permutation"}, {"kind": "noise", "std": 0.1}])
    samples = partition.train_of(3)
    seen = data.seen(samples, partition.transform_for(3))
    assert seen.dtype == np.float32
    assert np.abs(np.sort(seen) - np.sort(data.inputs[samples])).max() < 0.6
    assert not np.allclose(seen, data.inputs[samples], atol=0.6)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"clusters": 2}, r"nothing sets cluster 1 apart from cluster 0: give a part"),
    ({"features": {"kind": "rotation", "angle": [0, 90, 0]}}, r"nothing sets cluster 2 apart from cluster 0"),
    ({"features": {"kind": "rotation", "angle": [90, -270]}}, r"nothing sets cluster 1 apart from cluster 0"),
    ({"features": {"kind": "saturation", "factor": 0}}, r"partition.features.0: saturation needs the three channels"),
    ({"features": {"kind": "channels", "order": [0, 1]}}, r"must name each of the 1 channels"),
    ({"concept": {"kind": "swap", "pairs": [[0, 10]]}}, r"pairs name label 10, and labels go from 0 to 9"),
    ({"concept": {"kind": "permutation", "labels": 11}}, r"labels=11 is more than the 10 classes"),
    ({"labels": {"kind": "classes", "classes": 11}}, r"partition.labels.classes=11 is more than the 10 classes"),
    (
        {"quantity": {"kind": "lognormal", "mean": 100}},
        r"partition.quantity.mean=100 for 20 clients needs 2000 samples",
    ),
    ({"quantity": {"kind": "lognormal", "least": 50}}, r"partition.quantity.least=50 for 20 clients needs 1000"),
    ({"quantity": {"kind": "range", "min": 90, "max": 99}}, r"partition.quantity.min=90 for 20 clients needs 1800"),
    ({"quantity": {"kind": "sizes", "sizes": [500, 500]}}, r"add up to 1000, and there are 600"),
    (
        {"labels": {"kind": "classes", "classes": 4}, "quantity": {"kind": "sizes", "sizes": [3, 9]}},
        r"partition.quantity gives client 0 3 samples: a client of this partition needs at least 4",
    ),
    (
        {"labels": {"kind": "classes", "classes": 1}, "quantity": {"kind": "sizes", "sizes": [100, 70]}},
        r"partition.quantity cannot be met by partition.kind=classes",
    ),
    (
        {"labels": {"kind": "cluster_classes"}, "clusters": 2, "drift": {"round": 3}},
        r"partition.drift: clusters of partition.labels.kind=cluster_classes differ in the samples",
    ),
    ({"features": {"kind": "no.such:thing"}}, r"partition.features.0.kind=no.such:thing: cannot import"),
    ({"natural": {}, "labels": {"kind": "iid"}}, r"both say who has which samples"),
]


@pytest.mark.parametrize(("keys", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_what_cannot_be_is_told_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as told:
        composed(**keys)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", ["rotation", "blur", "contrast", "brightness", "inversion"])
def test_what_is_for_images_is_refused_for_vectors(kind: str) -> None:
    values = {"rotation": {"angle": 30}, "blur": {"sigma": 1}, "contrast": {"factor": 2}, "brightness": {"shift": 9}}
    with pytest.raises(InputError, match=f"partition.features.0: {kind} needs images, and this source has vector"):
        composed(balanced(kind="vector"), features={"kind": kind, **values.get(kind, {})})


def test_clients_drift_suddenly_gradually_and_there_and_back() -> None:
    def clusters(*events: dict[str, Any]) -> np.ndarray:
        partition = composed(
            balanced(200), clients=40, clusters=2, features={"kind": "inversion", "clusters": [1]}, drift=list(events)
        )
        for number in range(20):
            truth = partition.true_cluster_at(number)
            assert truth is not None
            inverted = [partition.transform_for(client, number).inverts for client in range(40)]  # type: ignore[union-attr]
            assert np.array_equal(truth == 1, inverted)
        return np.stack([partition.true_cluster_at(number) for number in range(20)])  # type: ignore[misc]

    sudden = clusters({"round": 7, "share": 0.5})
    changed = (sudden != sudden[0]).sum(axis=1)
    assert changed.tolist() == [0] * 7 + [20] * 13
    gradual = clusters({"round": 5, "until": 14})
    changed = (gradual != gradual[0]).sum(axis=1)
    assert changed[4] == 0 and changed[14] == 40
    assert (np.diff(changed) >= 0).all() and len(set(changed.tolist())) > 5
    recurring = clusters({"every": 4, "share": 0.25})
    changed = (recurring != recurring[0]).sum(axis=1)
    assert changed.tolist() == [0] * 4 + [10] * 4 + [0] * 4 + [10] * 4 + [0] * 4
    staggered = clusters({"round": 3, "clusters": [0]}, {"round": 9, "clusters": [1]})
    assert staggered[5].tolist() == [1] * 40
    assert staggered[12].tolist() == [1] * 20 + [0] * 20


def test_a_clients_own_nuisance_stays_when_it_drifts() -> None:
    partition = composed(
        clients=6,
        features=[{"kind": "rotation", "angle": [0, 90, 180]}, {"kind": "noise", "std": [1, 9], "by": "client"}],
        drift={"round": 2, "to": [2, 0, 1]},
    )
    for client in range(6):
        before, after = partition.transform_for(client, 1), partition.transform_for(client, 2)
        assert before is not None and after is not None
        assert before.steps[-1] == after.steps[-1]
        assert before.steps[:-1] != after.steps[:-1]
    assert partition.true_cluster_at(2).tolist() == [2, 2, 0, 0, 1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "part",
    [
        {"kind": "contrast", "factor": [1, 0.5]},
        {"kind": "brightness", "shift": [0, 60]},
        {"kind": "noise", "std": [0, 40]},
        {"kind": "blur", "sigma": [0, 1]},
    ],
    ids=lambda part: part["kind"],
)
def test_features_act_on_raw_pixels_and_normalising_has_the_numbers_of_the_source(part: dict[str, Any]) -> None:
    plain = replace(balanced(), shift=np.array([-1.5], np.float32), scale=np.array([0.0125], np.float32))
    partition = composed(plain, clients=4, features=[part])
    dataset = partition.normalised(plain)
    assert dataset is plain
    samples, transform = partition.train_of(3), partition.transform_for(3)
    assert transform is not None and transform.steps
    seen = transform.apply(plain.inputs[samples], samples)
    assert not np.array_equal(seen, plain.inputs[samples])
    expected = seen.astype(np.float32) * np.float32(0.0125) + np.float32(-1.5)
    assert np.array_equal(dataset.batch(samples, transform)[0].numpy(), expected)
