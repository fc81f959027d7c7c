"""local.keep_momentum: each client's momentum continues from round to round, on any worker."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tables import assert_same
from torch import nn

from rayfl.client.loop import train_alone
from rayfl.client.training_job import TrainingJob
from rayfl.client.vectorised import train_together
from rayfl.client.worker import Worker
from rayfl.config import LocalConfig, load_config
from rayfl.errors import InputError
from rayfl.federation import everyone
from rayfl.federation.facts import Facts
from rayfl.federation.interface import Federation
from rayfl.federation.serial import SerialFederation
from rayfl.models import FlatModel
from rayfl.results import Run, Storage
from rayfl.simulation import preparation
from rayfl.simulation.checkpoints import Checkpoints
from rayfl.simulation.preparation import Prepared, prepare
from rayfl.simulation.server import RoundRecord, Server

KEPT = ["local.momentum=0.9", "local.keep_momentum=true"]
SMALL = ["data.limit=480", "partition.clients=12", "local.steps=2", "federation=serial", "rounds=6"]
Make = Callable[..., Server]


class Logits(nn.Module):
    """Its logits are its two weights, whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.ones(len(inputs), 1, dtype=inputs.dtype))


@pytest.mark.parametrize("together", [False, True])
def test_two_rounds_worked_out_by_hand(together: bool) -> None:
    """From weights (0, 0) a sample of class 0 has the gradient (-1/2, 1/2). Rate 0.1, momentum 0.9, one step a round.

    Round 1: velocity (-0.5, 0.5), weights (0.05, -0.05). Round 2, from (0, 0) again: velocity 0.9 * -0.5 - 0.5 = -0.95,
    weights (0.095, -0.095). From rest they would be (0.05, -0.05) again.
    """
    model, local = FlatModel(Logits()), LocalConfig(steps=1, batch_size=1, momentum=0.9)
    batches = [(torch.zeros(1, 1), torch.tensor([0]))]
    velocity = torch.zeros(2)

    def trained(velocity: torch.Tensor | None) -> list[float]:
        job = TrainingJob(torch.zeros(2), batches, seed=0, velocity=velocity)
        if together:
            return train_together(model, [job], local, 0.1)[0].tolist()
        return train_alone(model, job, local, 0.1).tolist()

    assert trained(velocity) == pytest.approx([0.05, -0.05])
    assert velocity.tolist() == pytest.approx([-0.5, 0.5])
    assert trained(velocity) == pytest.approx([0.095, -0.095])
    assert velocity.tolist() == pytest.approx([-0.95, 0.95])
    assert trained(None) == pytest.approx([0.05, -0.05])
    assert velocity.tolist() == pytest.approx([-0.95, 0.95])


def test_rounds_with_kept_momentum_are_those_of_one_optimiser_of_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    rounds = [[(torch.randn(8, 6, generator=generator), torch.arange(8) % 3) for _ in range(3)] for _ in range(2)]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model = FlatModel(module)
    start, velocity = model.copy(), torch.zeros(model.layout.parameters)
    local = LocalConfig(steps=3, momentum=0.9, weight_decay=0.01)
    for batches in rounds:
        trained = train_alone(model, TrainingJob(start, batches, 0, velocity=velocity), local, 0.1).clone()
    model.load(start)
    reference = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    optimiser = torch.optim.SGD(reference.parameters(), 0.1, 0.9, weight_decay=0.01)
    for batches in rounds:
        torch.nn.utils.vector_to_parameters(start.clone(), reference.parameters())  # which keeps views of it
        for inputs, labels in batches:
            optimiser.zero_grad()
            nn.functional.cross_entropy(reference(inputs), labels).backward()
            optimiser.step()
    expected = torch.nn.utils.parameters_to_vector(reference.parameters()).detach()
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)


def test_the_vectorised_trainer_keeps_the_momentum_that_the_loop_keeps() -> None:
    """In double precision; clients with other numbers of steps, more of them than there are rows, batch norm."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    model, local = FlatModel(module, dtype=torch.float64), LocalConfig(steps=3, batch_size=4, momentum=0.9)
    generator = torch.Generator().manual_seed(1)

    def clients() -> list[TrainingJob]:
        generator.manual_seed(1)
        found = []
        for client in range(11):
            steps = [torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(1 + client % 3)]
            velocity = torch.randn(model.layout.parameters, generator=generator, dtype=torch.float64)
            batches = [(inputs, torch.arange(4) % 3) for inputs in steps]
            found.append(TrainingJob(model.copy(), batches, client, velocity=None if client == 4 else velocity))
        return found

    together = clients()
    vectors = train_together(model, together, local, 0.1)
    start = model.copy()
    for job, by_group, vector in zip(clients(), together, vectors, strict=True):
        model.load(start)
        torch.testing.assert_close(vector, train_alone(model, job, local, 0.1).clone(), rtol=1e-8, atol=1e-9)
        if job.velocity is not None:
            torch.testing.assert_close(by_group.velocity, job.velocity, rtol=1e-8, atol=1e-9)


# -- whose momentum, and which ---------------------------------------------------------------------------------------


def moved(fed: Federation, clients: np.ndarray, **how: Any) -> np.ndarray:
    """How far one step on all of their data takes clients from the initial model, as multiples of the first time."""
    fed.train(clients, start=everyone(fed.initial, fed.clients), **how)
    return fed.collect(clients, slot=how.get("slot", "model")) - fed.initial[: fed.layout.parameters]


@pytest.mark.parametrize("training", ["loop", "vectorised"])
def test_a_momentum_belongs_to_a_client_a_slot_and_a_stream(serial_server: Make, training: str) -> None:
    """One step on all data from the same model is the same gradient g each time: g, 1.9 g, 2.71 g with momentum 0.9."""
    words = ["local.steps=1", "local.batch_size=1000", f"training={training}", "method.name=fedavg", *KEPT]
    fed = serial_server(*SMALL, *words).fed
    everybody, some = np.arange(12), np.array([2, 7])
    fed.begin_round(1)
    once = moved(fed, everybody)

    def close(found: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)

    fed.begin_round(2)
    close(moved(fed, some), 1.9 * once[some])
    fed.begin_round(3)
    close(moved(fed, some, slot="global"), once[some])  # the momentum of another slot starts at zero
    close(moved(fed, some, stream=1), once[some])  # so does another federation of an ensemble
    close(moved(fed, some, from_rest=True), once[some])
    twice_and_thrice = np.where(np.isin(everybody, some), 2.71, 1.9)[:, None]
    close(moved(fed, everybody), twice_and_thrice * once)  # the momentum of absent clients has not changed
    fed.begin_round(4)
    close(moved(fed, some, slot="global", keep=True), 1.9 * once[some])


def test_without_the_option_every_round_begins_from_rest(serial_server: Make) -> None:
    fed = serial_server(*SMALL, "local.momentum=0.9", "local.steps=1", "local.batch_size=1000").fed
    fed.begin_round(1)
    first = moved(fed, np.arange(12))
    fed.begin_round(2)
    np.testing.assert_allclose(moved(fed, np.arange(12)), first, rtol=1e-3, atol=1e-6)
    assert set(fed.state().kept) == set()


def test_fine_tuning_begins_from_rest(serial_server: Make) -> None:
    """After one round, which begins from rest either way, both fine-tune the same model in the same way."""
    tuned = []
    for words in (KEPT, KEPT[:1]):
        server = serial_server(*SMALL, "method.name=fedavg", *words)
        server.run_round(1)
        server.method.fine_tune()
        tuned.append(server.fed.collect(np.arange(12), slot="fine-tuned 0"))
    assert np.array_equal(*tuned)


def test_momentum_is_no_traffic(serial_server: Make) -> None:
    sent = []
    for words in (KEPT, KEPT[:1]):
        server = serial_server(*SMALL, "method.name=ifca", "method.addons=[cam]", "method.cam.warmup=1", *words)
        records = [server.run_round(number).summary for number in (1, 2, 3)]
        sent.append([(r["bytes_up"], r["bytes_down"]) for r in records])
    assert sent[0] == sent[1]


def test_nothing_to_keep_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"local\.keep_momentum=True: local\.momentum=0\.0 leaves nothing to keep; set"
    ):
        load_config(None, ["local.keep_momentum=true"])


def test_the_memory_for_momenta_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*SMALL, "model={name: mlp, options: {hidden: 8000}}", "method.name=fedavg", "local.momentum=0.9"]
    told = r"MB for models and momenta of 12 clients"
    monkeypatch.setattr(preparation, "memory_here", lambda: 0)
    with pytest.raises(InputError, match=r"memory, and there are .* for models of 12 clients"):
        prepare(load_config(None, words))
    with pytest.raises(InputError, match=told):
        prepare(load_config(None, [*words, "local.keep_momentum=true"]))


# -- the same bits everywhere ----------------------------------------------------------------------------------------

CASES = {
    "fedavg": ["method.name=fedavg"],
    "fedavg_ensemble": ["method.name=fedavg_ensemble", "method.clusters=2"],
    "ditto": ["method.name=ditto"],
    "fedac": ["method.name=fedac", "method.tune_from=1", "method.tune_every=1", "training=loop"],
    "ifca + cam": ["method.name=ifca", "method.clusters=2", "method.addons=[cam]", "method.cam.warmup=1"],
}


class TwoWorkers(Federation):
    """Two workers in this process, between which clients move."""

    def __init__(self, facts: Facts, workers: list[Worker]) -> None:
        super().__init__(facts, workers=2)
        self._reached = workers
        self.moves = 0

    def _share(self, arrays: Any) -> Any:
        return arrays

    def _ask(self, operation: str, shares: Mapping[int, tuple[Any, ...]], shared: Any = None) -> dict[int, Any]:
        self.moves += operation == "give"
        return {at: getattr(self._reached[at], operation)(shared, *arguments) for at, arguments in shares.items()}


def prepared(case: str, *overrides: str) -> Prepared:
    words = [*SMALL, *KEPT, *CASES[case], "participation.fraction=0.5", "partition.samples=[10, 40]"]
    return prepare(load_config(None, [*words, *overrides]))


def worker(p: Prepared) -> Worker:
    return Worker(p.config, p.dataset, p.partition)


@pytest.fixture
def alone() -> Iterator[Callable[[Prepared], Server]]:
    opened = []

    def make(p: Prepared) -> Server:
        opened.append(SerialFederation(p.facts, worker(p)))
        return Server(p.config, opened[-1], p.partition.true_cluster)

    yield make
    for fed in opened:
        fed.close()


def losses(record: RoundRecord) -> np.ndarray:
    return record.clients["loss"]


@pytest.mark.parametrize("case", CASES)
def test_a_client_takes_its_momentum_along_when_it_moves(case: str, alone: Callable[[Prepared], Server]) -> None:
    p = prepared(case)
    one = alone(p)
    fed = TwoWorkers(p.facts, [worker(p), worker(p)])
    two = Server(p.config, fed, p.partition.true_cluster)
    for number in range(1, 7):
        np.testing.assert_array_equal(losses(one.run_round(number)), losses(two.run_round(number)))
    assert fed.moves > 0
    kept = one.fed.state().kept
    assert any(name.startswith("momentum of") for name in kept)
    for name, clients in kept.items():
        assert np.array_equal(fed.state().kept[name], clients)


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_goes_on_from_a_checkpoint_goes_on_with_the_momenta(
    case: str, tmp_path: Path, alone: Callable[[Prepared], Server]
) -> None:
    p = prepared(case, f"output.dir={tmp_path}", "output.checkpoint_every=1")
    first, second = alone(p), alone(p)
    storage = Storage(str(tmp_path))
    checkpoints = Checkpoints(storage, p.config, p)
    for number in (1, 2, 3):
        first.run_round(number)
        checkpoints.write(first)
    found = Checkpoints(storage, p.config, p)
    assert found.find() == 3
    found.bring_back(second)
    for number in (4, 5, 6):
        np.testing.assert_array_equal(losses(first.run_round(number)), losses(second.run_round(number)))


def test_momenta_in_files_are_those_in_memory(alone: Callable[[Prepared], Server]) -> None:
    in_memory, in_files = alone(prepared("ditto")), alone(prepared("ditto", "state.memory_mb=0"))
    for number in (1, 2, 3, 4):
        np.testing.assert_array_equal(losses(in_memory.run_round(number)), losses(in_files.run_round(number)))


def test_two_actors_give_the_tables_of_one_process(simulate_quietly: Callable[..., Run], ray_session: None) -> None:
    common = [word for word in SMALL if not word.startswith("federation")]
    common += [*KEPT, *CASES["ifca + cam"], "participation.fraction=0.5"]
    without = simulate_quietly(*common, "local.keep_momentum=false", "federation=serial")
    reference = simulate_quietly(*common, "federation=serial")
    assert_same(reference, simulate_quietly(*common, "ray.actors=2"))
    assert not reference.rounds["loss"].equals(without.rounds["loss"])
