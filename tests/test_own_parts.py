"""Parts of a composed partition that are classes in a user's own file: labels, quantity and concept, by import path."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import assert_same

from rayfl.config import load_config
from rayfl.data import Partition
from rayfl.errors import InputError
from rayfl.input_tree import load_yaml
from rayfl.launch import resume, simulate
from rayfl.results import Run
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen

SERIAL = ["federation=serial", "model.name=mlp", "method.name=fedavg", "rounds=2", "local.steps=2", "data.limit=400"]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "heterogeneity.md"

OwnCode = Callable[[str, str], None]

MINE = """
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel

from rayfl.data import PartitionKind
from rayfl.data.partition import Concept, Quantity


class OneClass(PartitionKind):
    class Options(BaseModel):
        others: float = 0.0

    def assign(self, dataset, pool, rng):
        client = dataset.labels[pool].astype(int) % self.config.clients
        stray = rng.random(len(pool)) < self.options.others
        return np.where(stray, rng.integers(self.config.clients, size=len(pool)), client)


@dataclass(frozen=True)
class FewLarge(Quantity):
    large: int = 1

    def sizes(self, clients, total, rng):
        sizes = np.full(clients, 10)
        sizes[rng.choice(clients, self.large, replace=False)] = 100
        return sizes


@dataclass(frozen=True)
class Turn(Concept):
    by_labels: int = 0

    def order(self, classes, rng):
        return (np.arange(classes) + self.by_labels) % classes


@dataclass(frozen=True)
class Shuffled(Concept):
    drawn = True

    def order(self, classes, rng):
        return rng.permutation(classes)
"""


@pytest.fixture
def mine(own_code: OwnCode) -> None:
    own_code("my_parts", MINE)


def words(partition: str, *more: str) -> list[str]:
    return [*SERIAL, f"partition={{kind: composed, clients: 10, {partition}}}", *more]


def made(partition: str, *more: str) -> Partition:
    return prepare(load_config(None, words(partition, *more))).partition


def dealt(partition: Partition) -> list[Any]:
    return [partition.train.tolist(), partition.n_train.tolist(), partition.test.tolist(), repr(partition.transforms)]


LABELS = "labels: {kind: 'my_parts:OneClass', others: 0.2}"
WISHED = "labels: {kind: 'my_wishes:Halves'}"
QUANTITY = "quantity: {kind: 'my_parts:FewLarge', large: 2}"
CONCEPT = "clusters: 3, concept: [{kind: 'my_parts:Shuffled'}]"
GIVEN = "concept: [{kind: 'my_parts:Turn', by_labels: [0, 1, 5]}]"


@pytest.mark.parametrize("part", [LABELS, QUANTITY, CONCEPT, GIVEN])
def test_a_part_of_ones_own_runs_in_this_process(mine: None, tmp_path: Path, part: str) -> None:
    run = simulate(load_config(None, words(part, f"output.dir={tmp_path}")), Screen(quiet=True))
    assert run.rounds["accuracy"].notna().all() and run.clients["client"].nunique() == 10
    assert load_config(run.config.to_tree()) == run.config


@pytest.mark.parametrize("part", [LABELS, QUANTITY, GIVEN])
def test_a_run_with_an_own_part_is_resumed_by_the_command_that_the_refusal_shows(
    mine: None, tmp_path: Path, part: str
) -> None:
    def run(name: str, rounds: int) -> Run:
        config = load_config(None, words(part, f"rounds={rounds}", f"output.dir={tmp_path}", f"name={name}"))
        return simulate(config, Screen(quiet=True))

    path = run("with space", 2).path
    with pytest.raises(InputError, match="names code to be imported") as error:
        resume(path, ["rounds=3"], Screen(quiet=True))
    command = shlex.split(error.value.lines[0].partition("name it too: ")[2])
    assert command[:3] == ["rayfl", "resume", path] and command[-1] == "rounds=3"
    assert_same(run("whole", 3), resume(path, command[3:], Screen(quiet=True)))


def test_own_labels_say_who_has_which_samples(mine: None) -> None:
    ready = prepare(load_config(None, words("labels: {kind: 'my_parts:OneClass'}")))
    counts = ready.partition.label_counts(ready.dataset, "all")
    assert np.array_equal(counts > 0, np.eye(10, dtype=bool)) and counts.sum() == 400


def test_own_labels_that_wish_for_classes_go_with_a_quantity(mine: None, own_code: OwnCode) -> None:
    own_code(
        "my_wishes",
        """
import numpy as np

from rayfl.data.partition import ByLabels
from rayfl.data.partition.dealing import Wish


class Halves(ByLabels):
    def wish(self, clients, pools, rng):
        mine = np.arange(len(pools)) % 2 == np.arange(clients)[:, None] % 2
        return Wish(mine * pools / mine.sum(axis=0))
""",
    )
    ready = prepare(load_config(None, words(f"{WISHED}, quantity: {{kind: range, min: 20, max: 30}}")))
    counts = ready.partition.label_counts(ready.dataset, "all")
    assert ((counts.sum(axis=1) >= 20) & (counts.sum(axis=1) <= 30)).all()
    assert not counts[::2, 1::2].any() and not counts[1::2, ::2].any()


def test_an_own_quantity_says_how_many_and_goes_with_other_labels(mine: None) -> None:
    partition = made(f"{QUANTITY}, labels: {{kind: dirichlet, alpha: 5.0}}")
    assert sorted((partition.n_train + partition.n_test).tolist()) == [10] * 8 + [100] * 2


def test_an_own_concept_gives_each_cluster_its_labels(mine: None) -> None:
    partition = made(GIVEN)
    orders, clusters = partition.label_orders(10), partition.true_cluster
    assert orders is not None and clusters is not None and set(clusters.tolist()) == {0, 1, 2}
    assert np.array_equal(orders, (np.arange(10) + np.array([0, 1, 5])[clusters][:, None]) % 10)


@pytest.mark.parametrize("part", [LABELS, QUANTITY, CONCEPT])
def test_the_bits_of_an_own_part_follow_the_seed_of_the_partition(mine: None, part: str) -> None:
    seeds = [("partition.seed=7", "seed=1"), ("partition.seed=7", "seed=2"), ("partition.seed=8", "seed=1")]
    one, same, other = (dealt(made(part, *words)) for words in seeds)
    assert one == same != other


def test_an_own_part_changes_no_bit_of_the_others(mine: None) -> None:
    assert dealt(made(LABELS))[:3] == dealt(made(f"{LABELS}, {CONCEPT}"))[:3]
    sizes = [p.n_train + p.n_test for p in (made(QUANTITY), made(f"{QUANTITY}, {CONCEPT}"))]
    assert np.array_equal(*sizes)


# --- classes with wrong results

WRONG = """
from dataclasses import replace

import numpy as np

from rayfl.data import PartitionKind
from rayfl.data.partition import Concept, Quantity


class Short(PartitionKind):
    def assign(self, dataset, pool, rng):
        return np.zeros(3, int)


class Empty(PartitionKind):
    def assign(self, dataset, pool, rng):
        return rng.integers(1, 10, len(pool))


class Far(PartitionKind):
    def assign(self, dataset, pool, rng):
        return np.full(len(pool), 99)


class Fine(PartitionKind):
    def assign(self, dataset, pool, rng):
        return np.arange(len(pool)) % 10


class Twice(Fine):
    def deal(self, dataset, splits, streams):
        dealt = super().deal(dataset, splits, streams)
        train = dealt.train.copy()
        train[1] = train[0]
        return replace(dealt, train=train)


class Sizes(Quantity):
    def sizes(self, clients, total, rng):
        return np.full(clients, 10)[: -1]


class Nothing(Quantity):
    def sizes(self, clients, total, rng):
        return None


class Halves(Quantity):
    def sizes(self, clients, total, rng):
        return np.full(clients, 10.5)


class Poor(Quantity):
    def sizes(self, clients, total, rng):
        return np.array([10, 10, 0, 10, 10, 10, 10, 10, 10, 10])


class Many(Quantity):
    def sizes(self, clients, total, rng):
        return np.full(clients, total)


class LabelTwice(Concept):
    def order(self, classes, rng):
        return np.maximum(np.arange(classes), 1)


class FewLabels(Concept):
    def order(self, classes, rng):
        return np.arange(classes - 1)


class NoLabels(Concept):
    def order(self, classes, rng):
        return None


class HalfLabels(Concept):
    def order(self, classes, rng):
        return np.arange(classes) + 0.5
"""


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("labels: {kind: 'wrong:Short'}", "partition.labels.kind=wrong:Short: assign gives an array of int64"),
        ("labels: {kind: 'wrong:Empty'}", "partition.labels.kind=wrong:Empty gives client 0 0 samples: each of the 10"),
        ("labels: {kind: 'wrong:Far'}", "partition.labels.kind=wrong:Far: assign gives a sample to client 99"),
        ("labels: {kind: 'wrong:Twice'}", " 2 times: deal each sample once at most"),
        ("labels: {kind: 'wrong:Fine', x: 2}", "partition.labels.x=2: there is no key 'x'"),
        ("labels: {kind: 'wrong:Poor'}", "partition.labels.kind=wrong:Poor is not a subclass of"),
        ("labels: {kind: 'wrong:Fin'}", "module 'wrong' has no class 'Fin' (did you mean 'Fine'?)"),
        ("labels: {kind: 'wrong:Fine'}, quantity: {kind: 'wrong:Halves'}", "partition.quantity does not go with"),
        ("quantity: {kind: 'wrong:Sizes'}", "kind=wrong:Sizes: sizes gives an array of int64 of shape (9,)"),
        ("quantity: {kind: 'wrong:Nothing'}", "partition.quantity.kind=wrong:Nothing: sizes gives an array of object"),
        ("quantity: {kind: 'wrong:Halves'}", "a whole number of samples for each of the 10 clients"),
        ("quantity: {kind: 'wrong:Poor'}", "partition.quantity.kind=wrong:Poor gives client 2 0 samples: each"),
        ("quantity: {kind: 'wrong:Many'}", "partition.quantity gives 4000 samples in all, and there are 400"),
        ("quantity: {kind: 'wrong:Poor', x: 2}", "partition.quantity.x: wrong:Poor has no such option; it has none"),
        ("concept: [{kind: 'wrong:LabelTwice'}]", "partition.concept.0 gives the labels [1, 1, 2, 3, 4,"),
        ("concept: [{kind: 'wrong:FewLabels'}]", "partition.concept.0: order gives an array of int64 of shape (9,)"),
        ("concept: [{kind: 'wrong:NoLabels'}]", "it must give the new label of each of the 10 classes"),
        ("concept: [{kind: 'wrong:HalfLabels'}]", "partition.concept.0: order gives an array of float64"),
    ],
)  # fmt: skip
def test_a_class_with_wrong_results_is_told_in_one_line_before_the_run(
    own_code: OwnCode, tmp_path: Path, part: str, told: str
) -> None:
    own_code("wrong", WRONG)
    with pytest.raises(InputError) as error:
        simulate(load_config(None, words(part, f"output.dir={tmp_path / 'runs'}")), Screen(quiet=True))
    (line,) = error.value.lines
    assert told in line
    assert not (tmp_path / "runs").exists()


def test_the_example_of_the_page_runs(own_code: OwnCode, tmp_path: Path) -> None:
    section = PAGE.read_text().split("## Parts of your own\n")[1].split("\n## ")[0]
    code, config = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "yaml"))
    assert len(code) == len(config) == 1 and len(code[0].splitlines()) < 40
    own_code("my_parts", code[0])
    tree = load_yaml(config[0], "the example")
    run = simulate(load_config(tree, [*SERIAL, f"output.dir={tmp_path}"]), Screen(quiet=True))
    partition = prepare(run.config).partition
    sizes = partition.n_train + partition.n_test
    assert sizes.max() > 3 * sizes.min() and run.clients["true_cluster"].nunique() == 3
    orders = partition.label_orders(10)
    labels = prepare(load_config(None, words("labels: {kind: 'my_parts:ByClass'}")))
    odd = labels.partition.label_counts(labels.dataset, "all")[5:]
    assert odd[:, 1::2].sum() == odd.sum() > 0
    assert orders is not None and {tuple(row) for row in orders} == {tuple(np.roll(range(10), -k)) for k in (0, 1, 5)}
