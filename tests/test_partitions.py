"""Partitions: nothing lost, nothing twice, nobody empty, and the distributions that were asked for."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from rayfl.analysis.partition_figure import draw_partition
from rayfl.analysis.partition_table import partition_table
from rayfl.config import data_config, partition_config
from rayfl.config.partition import PartitionConfig
from rayfl.data import Dataset, Partition, Transform, make_partition
from rayfl.data.partition.counting import share_out
from rayfl.data.partition.dealing import Deal, Wish
from rayfl.data.sources import load_dataset
from rayfl.errors import InputError

KINDS: list[dict[str, Any]] = [
    {"kind": "iid"},
    {"kind": "dirichlet", "alpha": 0.01},
    {"kind": "dirichlet", "alpha": 1.0},
    {"kind": "classes", "classes": 2},
    {"kind": "cluster_dirichlet", "clusters": 3},
    {"kind": "cluster_classes", "clusters": 3, "classes_cluster": 3, "classes_client": 2},
    {"kind": "transforms", "transform": "rotation", "clusters": 3},
    {"kind": "transforms", "transform": "label_permutation", "clusters": 3},
    {"kind": "natural", "column": "owner"},
]
# Which samples go together is drawn afresh in every example, so hypothesis need not shrink far to be useful.
EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def config(**keys: Any) -> PartitionConfig:
    return partition_config(**keys)


def made_up(labels: np.ndarray, is_test: np.ndarray | None = None, owners: int = 12, side: int = 2) -> Dataset:
    """Images whose pixels do not matter."""
    n, classes = len(labels), int(labels.max()) + 1
    return Dataset(
        inputs=np.zeros((n, 1, side, side), np.uint8),
        labels=labels.astype(np.uint8),
        classes=classes,
        kind="image",
        is_test=np.zeros(n, bool) if is_test is None else is_test,
        shift=np.zeros(1, np.float32),
        scale=np.ones(1, np.float32),
        owner=np.arange(n) % owners,
        owner_names=tuple(f"owner {i}" for i in range(owners)),
    )


def balanced(per_class: int, classes: int = 10) -> Dataset:
    return made_up(np.tile(np.arange(classes), per_class))


def digits() -> Dataset:
    return load_dataset(data_config(source="digits"), seed=0)


def arrays(partition: Partition) -> list[np.ndarray]:
    return [partition.train, partition.train_offsets, partition.test, partition.test_offsets]


@st.composite
def possible_cases(draw: st.DrawFn) -> tuple[PartitionConfig, Dataset, int]:
    classes = draw(st.integers(4, 12))
    n = draw(st.integers(150, 900))
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    # Classes of very unlike sizes, as real data has them, each of them there.
    skew = rng.dirichlet(np.full(classes, draw(st.sampled_from([1.0, 100.0]))))
    labels = np.concatenate([np.tile(np.arange(classes), 6), rng.choice(classes, size=n, p=skew)])
    keys = dict(draw(st.sampled_from(KINDS)))
    keys["clients"] = draw(st.integers(3, 12 if keys["kind"] == "natural" else 30))
    if draw(st.booleans()):
        least = draw(st.integers(3, 8))
        keys["samples"] = [least, least + draw(st.integers(0, 20))]
    keys["test"] = draw(st.sampled_from([0.2, 0.5, 0.9, "official"]))
    return config(**keys), made_up(labels, rng.random(len(labels)) < 0.4), seed


def made(case: tuple[PartitionConfig, Dataset, int]) -> Partition:
    """The partition, if there is one: skewed classes may be too few for what is asked of them."""
    try:
        return make_partition(*case)
    except InputError as error:
        assert "\n" not in str(error) and "partition." in str(error) and "use " in str(error)
        assume(False)
        raise


@EXAMPLES
@given(possible_cases())
def test_nobody_gets_a_sample_twice_and_none_is_invented(case: tuple[PartitionConfig, Dataset, int]) -> None:
    partition = made(case)
    dealt = np.concatenate([partition.train, partition.test])
    assert len(np.unique(dealt)) == len(dealt)
    assert dealt.min() >= 0 and dealt.max() < len(case[1])
    assert partition.train_offsets[-1] == len(partition.train)
    assert partition.test_offsets[-1] == len(partition.test)


@EXAMPLES
@given(possible_cases())
def test_nobody_is_left_with_nothing_to_train_or_to_test(case: tuple[PartitionConfig, Dataset, int]) -> None:
    partition = made(case)
    assert partition.clients == case[0].clients
    assert partition.n_train.min() >= 1
    assert partition.n_test.min() >= 1


@EXAMPLES
@given(possible_cases())
def test_sizes_lie_in_the_range_asked_for_or_use_up_everything(
    case: tuple[PartitionConfig, Dataset, int],
) -> None:
    partition = made(case)
    sizes = partition.n_train + partition.n_test
    if case[0].samples is not None:
        assert sizes.min() >= case[0].samples[0]
        assert sizes.max() <= case[0].samples[1]
    elif case[0].kind in ("iid", "dirichlet", "cluster_dirichlet", "transforms"):
        assert sizes.sum() == len(case[1])


@EXAMPLES
@given(possible_cases())
def test_the_test_share_is_kept_and_stratified(case: tuple[PartitionConfig, Dataset, int]) -> None:
    partition, (settings_, dataset, _) = made(case), case
    if settings_.test == "official":
        assert not dataset.is_test[partition.train].any()
        assert dataset.is_test[partition.test].all()
        return
    sizes = partition.n_train + partition.n_test
    n_test = np.clip(np.rint(sizes * settings_.test), 1, sizes - 1)
    assert np.array_equal(partition.n_test, n_test)
    # Every class is split in the client's own proportion, but for rounding up or down.
    exact = partition.label_counts(dataset, "all") * (n_test / sizes)[:, None]
    assert (np.abs(partition.label_counts(dataset, "test") - exact) < 1).all()


@EXAMPLES
@given(possible_cases())
def test_the_same_seed_gives_the_same_bits(case: tuple[PartitionConfig, Dataset, int]) -> None:
    for one, other in zip(arrays(made(case)), arrays(make_partition(*case)), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@EXAMPLES
@given(possible_cases())
def test_clients_have_the_classes_of_their_kind_and_cluster(
    case: tuple[PartitionConfig, Dataset, int],
) -> None:
    partition, (settings_, dataset, _) = made(case), case
    has = partition.label_counts(dataset, "all") > 0
    if settings_.kind == "classes":
        assert (has.sum(1) == settings_.classes).all()
    if settings_.kind == "cluster_classes":
        assert partition.true_cluster is not None
        assert (has.sum(1) == settings_.classes_client).all()
        for k in range(3):
            assert has[partition.true_cluster == k].any(0).sum() <= 3


@pytest.mark.parametrize("keys", KINDS, ids=lambda keys: "-".join(map(str, keys.values())))
def test_another_seed_gives_another_partition(keys: dict[str, Any]) -> None:
    one, other = (make_partition(config(clients=10, **keys), balanced(40), seed) for seed in (0, 1))
    assert not np.array_equal(one.train, other.train)


@given(
    st.lists(st.lists(st.integers(0, 1000), min_size=4, max_size=4), min_size=1, max_size=6),
    st.integers(0, 500),
    st.integers(0, 100),
)
def test_shares_are_exact_values_rounded_down_or_up(weights: list[list[int]], total: int, seed: int) -> None:
    rows = np.array(weights)
    assume((rows.sum(1) > 0).all())
    shares = share_out(rows, np.full(len(rows), total), np.random.default_rng(seed))
    exact = rows * total / rows.sum(1, keepdims=True)
    assert (shares.sum(1) == total).all()
    assert (np.abs(shares - exact) < 1).all()
    assert (shares[rows == 0] == 0).all()


def test_shares_are_right_on_average() -> None:
    rng = np.random.default_rng(0)
    shares = share_out(np.tile([5, 3, 2], (20_000, 1)), np.ones(20_000, int), rng)
    assert shares.mean(0) == pytest.approx([0.5, 0.3, 0.2], abs=0.015)


def test_iid_clients_are_of_one_size_and_all_alike() -> None:
    dataset = balanced(1000)
    partition = make_partition(config(kind="iid", clients=10), dataset, 0)
    assert (partition.n_train + partition.n_test == 1000).all()
    assert partition.label_counts(dataset).min() > 50  # 80 are expected


def test_a_small_alpha_means_skew_and_a_large_one_nearly_none() -> None:
    dataset = balanced(1000)

    def largest_share(alpha: float, **more: Any) -> float:
        counts = make_partition(config(kind="dirichlet", clients=50, alpha=alpha, **more), dataset, 0)
        shares = counts.label_counts(dataset, "all")
        return float((shares.max(1) / shares.sum(1)).mean())

    for more in ({}, {"samples": [100, 150]}):
        assert largest_share(0.01, **more) > 0.75
        assert largest_share(0.1, **more) > 0.45
        assert largest_share(1000.0, **more) < 0.15


def test_dirichlet_clients_have_the_variance_of_a_dirichlet() -> None:
    # Dir(a, ..., a) over C classes has variance (1/C)(1 - 1/C) / (C a + 1) in each share.
    dataset = balanced(20_000)
    partition = make_partition(config(kind="dirichlet", clients=500, alpha=0.5, samples=[200, 200]), dataset, 3)
    shares = partition.label_counts(dataset, "all") / 200
    assert shares.var() == pytest.approx(0.1 * 0.9 / 6, rel=0.05)


def test_a_dirichlet_that_leaves_clients_with_nothing_is_repaired() -> None:
    dataset = balanced(20)
    partition = make_partition(config(kind="dirichlet", clients=90, alpha=0.001), dataset, 0)
    sizes = partition.n_train + partition.n_test
    assert sizes.min() == 2
    assert sizes.sum() == 200


def test_planted_label_clusters_are_alike_inside_and_unlike_outside() -> None:
    dataset = balanced(2000)
    keys = {"kind": "cluster_dirichlet", "clients": 40, "clusters": 4, "alpha_client": 100.0}
    for more in ({}, {"samples": [100, 200]}):
        partition = make_partition(config(**keys, **more), dataset, 1)
        shares = partition.label_counts(dataset, "all") + 0.0
        shares /= shares.sum(1, keepdims=True)
        distance = np.abs(shares[:, None] - shares[None]).sum(2)
        same = partition.true_cluster[:, None] == partition.true_cluster[None]
        assert distance[same].mean() < 0.3
        assert distance[~same].mean() > 1.0


def test_classes_are_used_equally_often() -> None:
    dataset = balanced(100)
    partition = make_partition(config(kind="classes", clients=25, classes=2), dataset, 0)
    assert ((partition.label_counts(dataset, "all") > 0).sum(0) == 5).all()
    assert partition.n_train.sum() + partition.n_test.sum() == 1000
    # And not always in the same pairs.
    pairs = {tuple(np.flatnonzero(row)) for row in partition.label_counts(dataset, "all")}
    assert len(pairs) > 5


def test_no_two_planted_clusters_have_the_same_classes() -> None:
    dataset = balanced(100)
    for seed in range(10):
        keys = {"clients": 40, "clusters": 20, "classes_cluster": 2, "classes_client": 2}
        partition = make_partition(config(kind="cluster_classes", **keys), dataset, seed)
        sets = {tuple(np.flatnonzero(row)) for row in partition.label_counts(dataset, "all")}
        assert len(sets) == 20


def test_scarce_classes_are_freed_by_exchange() -> None:
    # Nine clients want 20 samples each of their two classes. Dealt by proportion, the small class runs out
    # for those who need it, while others could do with less; only the exchange serves everybody.
    labels = np.repeat([0, 1, 2], [30, 60, 110])
    for seed in range(20):
        partition = make_partition(
            config(kind="classes", clients=9, classes=2, samples=[20, 20]), made_up(labels), seed
        )
        assert (partition.n_train + partition.n_test == 20).all()


@given(st.integers(0, 100_000))
def test_exchange_serves_as_many_as_any_dealing_could(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients, classes = rng.integers(2, 9), rng.integers(2, 7)
    allowed = rng.random((clients, classes)) < 0.4
    allowed[np.arange(clients), rng.integers(0, classes, clients)] = True
    sizes, pools = rng.integers(1, 12, clients), rng.integers(0, 20, classes)
    deal = Deal(config(kind="classes", samples=[2, 12]), pools, rng)
    deal.wish = Wish(allowed + 0.0, allowed)
    counts = deal.fill(sizes, np.zeros_like(sizes))
    assert (counts.sum(1) <= sizes).all() and (counts.sum(0) <= pools).all() and not counts[~allowed].any()

    # Source, clients, classes, sink: the maximum flow is the best there is.
    network = np.zeros((clients + classes + 2,) * 2, np.int32)
    network[0, 1 : clients + 1] = sizes
    network[1 : clients + 1, clients + 1 : -1] = allowed * 100
    network[clients + 1 : -1, -1] = pools
    best = maximum_flow(csr_matrix(network), 0, len(network) - 1).flow_value
    assert counts.sum() == best


@pytest.mark.parametrize("kind", ["cluster_dirichlet", "cluster_classes", "transforms"])
def test_clusters_have_the_sizes_asked_for(kind: str) -> None:
    asked = config(kind=kind, cluster_sizes=[1, 2, 7, 10], clients=20)
    partition = make_partition(asked, balanced(100), 0)
    assert np.bincount(partition.true_cluster).tolist() == [1, 2, 7, 10]
    even = make_partition(config(kind=kind, clusters=3, clients=20), balanced(100), 0)
    assert np.bincount(even.true_cluster).tolist() == [7, 7, 6]


def test_official_test_samples_follow_the_labels_trained_on() -> None:
    labels = np.tile(np.arange(10), 700)
    dataset = made_up(labels, np.arange(len(labels)) >= 6000)
    for more in ({}, {"samples": [70, 140]}):
        asked = config(kind="dirichlet", clients=20, alpha=0.5, test="official", **more)
        partition = make_partition(asked, dataset, 0)
        train, test = (partition.label_counts(dataset, split) + 0.0 for split in ("train", "test"))
        gap = np.abs(train / train.sum(1, keepdims=True) - test / test.sum(1, keepdims=True)).sum(1)
        assert (gap * partition.n_test).max() <= 11  # each of the ten classes off by no more than rounding
        assert partition.n_test.sum() / partition.n_train.sum() == pytest.approx(1 / 6, rel=0.02)


def test_rotation_clusters_are_quarter_turns_of_the_digits() -> None:
    dataset = digits()
    partition = make_partition(config(), dataset, 0)  # the default: digits, four turns
    assert [t.turns for t in partition.transforms] == [0, 1, 2, 3]
    for client in (0, 5, 10, 15):
        samples = partition.train_of(client)[:3]
        plain, _ = dataset.batch(samples)
        turned, _ = dataset.batch(samples, partition.transform_for(client))
        expected = np.rot90(plain.numpy(), client // 5, axes=(2, 3))
        assert np.array_equal(turned.numpy(), expected)


def test_inversion_inverts_the_second_cluster_only() -> None:
    partition = make_partition(config(kind="transforms", transform="inversion", clients=4), digits(), 0)
    assert partition.transforms == (Transform(), Transform(invert=True))
    assert partition.transform_of.tolist() == [0, 0, 1, 1]


def test_inputs_are_normalised_over_what_clients_see_inverted_or_not() -> None:
    partition = make_partition(config(kind="transforms", transform="inversion", clients=6), digits(), 0)
    dataset = partition.normalised(digits())
    seen = torch.cat(
        [dataset.batch(partition.train_of(c), partition.transform_for(c))[0].double().flatten() for c in range(6)]
    )
    assert float(seen.mean()) == pytest.approx(0, abs=0.02)  # over training samples, not over all
    assert float(seen.std()) == pytest.approx(1, abs=0.02)
    turned = make_partition(config(kind="transforms", clients=4), digits(), 0)
    plain = digits()
    assert turned.normalised(plain) is plain


def test_label_permutations_differ_and_are_counted_as_the_client_sees_them() -> None:
    dataset = balanced(50, classes=5)
    asked = config(kind="transforms", transform="label_permutation", clients=12, clusters=6)
    partition = make_partition(asked, dataset, 0)
    assert partition.transforms[0].labels == (0, 1, 2, 3, 4)
    assert len({t.labels for t in partition.transforms}) == 6
    for client in range(12):
        _, seen = dataset.batch(partition.train_of(client), partition.transform_for(client))
        assert np.array_equal(np.bincount(seen, minlength=5), partition.label_counts(dataset)[client])


def test_a_table_of_a_partition_has_the_labels_that_clients_see() -> None:
    dataset = made_up(np.array([0, 1, 2, 1]))
    partition = Partition(
        *(np.array([0, 3]), np.array([0, 1, 2])),
        *(np.array([2]), np.array([0, 0, 1])),
        *(np.zeros(0, int), np.array([0, 0, 0])),
        public=np.array([1]),
        true_cluster=np.array([1, 0]),
        transforms=(Transform(labels=(2, 0, 1)), Transform()),
        transform_of=np.array([1, 0]),
        client_names=("Anna", "Bert"),
    )
    rows = partition_table(partition, dataset).astype(object).where(lambda frame: frame.notna(), None)
    assert rows.to_numpy().tolist() == [
        [0, "Anna", 0, "train", 0, 1, 1],
        [1, "Bert", 2, "test", 1, 0, 0],
        [1, "Bert", 3, "train", 0, 0, 0],
        [None, None, 1, "public", 1, None, None],
    ]


def test_natural_clients_are_owners() -> None:
    dataset = balanced(60)
    partition = make_partition(config(kind="natural", column="owner"), dataset, 0)
    assert partition.clients == 12
    assert partition.client_names == tuple(f"owner {i}" for i in range(12))
    for client in range(12):
        samples = np.concatenate([partition.train_of(client), partition.test_of(client)])
        assert np.array_equal(np.sort(samples), np.flatnonzero(dataset.owner == client))
    some = make_partition(config(kind="natural", column="owner", clients=4, samples=[5, 9]), dataset, 0)
    assert (some.n_train + some.n_test).tolist() == [9] * 4
    owners = [set(dataset.owner[some.train_of(i)]) | set(dataset.owner[some.test_of(i)]) for i in range(4)]
    assert all(len(owner) == 1 for owner in owners)
    assert all(min(a) < min(b) for a, b in pairwise(owners))


IMPOSSIBLE = [
    (
        {"kind": "iid", "clients": 5000},
        "partition.clients=5000 cannot each get 2 of the 1797 samples: use at most 898 clients",
    ),
    (
        {"kind": "iid", "samples": [100, 200]},
        "partition.samples=[100, 200] for partition.clients=20 needs at least 2000 samples, there are 1797: "
        "use at most 17 clients or start the range at 89",
    ),
    ({"kind": "classes", "classes": 11}, "partition.classes=11 is more than the 10 classes of the data"),
    (
        {"kind": "classes", "classes": 5, "clients": 400},
        "partition.classes=5 for partition.clients=400 needs 200",
    ),
    ({"kind": "classes", "classes": 3, "samples": [2, 9]}, "partition.samples=[2, 9] is too few"),
    (
        {"kind": "classes", "classes": 1, "clients": 10, "samples": [180, 180]},
        "partition.samples=[180, 180] for partition.clients=10 needs at least 1800",
    ),
    (
        {"kind": "classes", "classes": 1, "clients": 9, "samples": [183, 183]},
        "partition.samples=[183, 183] cannot be met by partition.kind=classes: client",
    ),
    (
        {"kind": "cluster_classes", "classes_cluster": 10, "classes_client": 2},
        "partition.clusters=5: only 1 clusters can differ",
    ),
    ({"kind": "iid", "test": "official"}, "partition.test=official: this source has no"),
    ({"kind": "natural", "column": "writer"}, "partition.column=writer: this data was read without owners"),
]


@pytest.mark.parametrize(("keys", "message"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_what_cannot_be_met_is_told_with_numbers_and_the_cure(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as told:
        make_partition(config(**keys), digits(), 0)
    assert str(told.value).startswith(message)
    assert "\n" not in str(told.value)


def test_turning_needs_square_images_and_inverting_needs_images() -> None:
    wide = balanced(40)
    object.__setattr__(wide, "inputs", np.zeros((400, 1, 2, 3), np.uint8))
    with pytest.raises(InputError, match=r"partition.transform=rotation needs square images, these are 3 x 2"):
        make_partition(config(), wide, 0)
    object.__setattr__(wide, "kind", "vector")
    for transform in ("rotation", "inversion"):
        with pytest.raises(InputError, match=f"partition.transform={transform} needs images"):
            make_partition(config(transform=transform), wide, 0)


def test_owners_without_samples_in_both_splits_cannot_use_the_official_test() -> None:
    dataset = made_up(np.tile(np.arange(10), 60), np.arange(600) % 12 < 6)  # half of the owners are test owners
    with pytest.raises(InputError, match=r"only 0 of the 12 owners .* each of the source's two splits: use a share"):
        make_partition(config(kind="natural", column="owner", test="official"), dataset, 0)


def test_a_hundred_thousand_clients_take_seconds_and_two_flat_arrays() -> None:
    dataset = balanced(100_000)
    for keys in ({"kind": "dirichlet"}, {"kind": "cluster_classes", "samples": [4, 8]}):
        begin = time.perf_counter()
        partition = make_partition(config(clients=100_000, **keys), dataset, 0)
        assert time.perf_counter() - begin < 15
        assert partition.clients == 100_000
        assert partition.n_train.min() >= 1 and partition.n_test.min() >= 1
        assert sum(array.nbytes for array in arrays(partition)) < 6_000_000


@pytest.mark.parametrize(
    "keys",
    [{"kind": "cluster_classes"}, {"kind": "transforms"}, {"kind": "dirichlet", "clients": 800}],
    ids=lambda keys: keys["kind"],
)
def test_the_figure_shows_every_client(keys: dict[str, Any], tmp_path: Path) -> None:
    from PIL import Image

    dataset = digits()
    path = draw_partition(make_partition(config(**keys), dataset, 0), dataset, tmp_path / "who.png")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.shape[1] >= 1000
    # Something is drawn in every tenth of the plot's width.
    middle = pixels[pixels.shape[0] // 3 : -pixels.shape[0] // 6, pixels.shape[1] // 10 : -pixels.shape[1] // 6]
    assert all((part < 230).any() for part in np.array_split(middle, 10, axis=1))
