"""What a researcher writes in the first week, in files outside the package (tests/extending): it runs everywhere."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from faults import actors, kill
from tables import assert_same, recoveries

from rayfl.config import load_config
from rayfl.federation import Each, everyone, library
from rayfl.launch import simulate
from rayfl.results import Run
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import RoundRecord, Server

EXERCISES = Path(__file__).parent / "extending"
SMALL = ["partition.clients=8", "data.limit=400", "local.steps=3", "local.lr=0.1", "rounds=4"]
METHODS = ["scaffold:Scaffold", "fedbn:FedBN", "fedrep:FedRep", "feddyn:FedDyn", "pacfl:PACFL", "by_labels:ByLabels"]

Make = Callable[..., Server]


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXERCISES))


def words_of(method: str, bn_module: str) -> list[str]:
    network = [f"model.name={bn_module}"] if method.startswith("fedbn") else []
    return [*SMALL, f"method.name={method}", "participation.fraction=0.75", *network]


class Killer(Screen):
    """Kills a client actor once a round is done."""

    def __init__(self, after: int) -> None:
        super().__init__(quiet=True)
        self._after = after

    def show_round(self, record: RoundRecord) -> None:
        super().show_round(record)
        if record.number == self._after:
            threading.Thread(target=kill, args=(actors("ClientActor")[0],)).start()


#: The other exercises, by the words of a run that uses them; TABLE is a file with numbers to predict, LOG one to write.
SMALLEST = ["method.name=fedavg", "local.steps=3", "rounds=4", "model.name=mlp"]
OTHERS = {
    "a focal loss, an own partition and a logging callback": [
        *SMALLEST,
        *("task=focal:Focal", "partition.kind=own_partition:Shards", "partition.clients=8", "data.limit=400"),
        "callbacks=[{name: log_lines:LogLines, file: LOG}]",
    ],
    "AUROC on an own data source": [
        *SMALLEST,
        *("task=auroc:WithAuroc", "data.source=own_source:moons", "data.client=town", "partition.kind=natural"),
    ],
    "a regression on tabular data": [
        *SMALLEST,
        *("task=median_error:WithMedian", "data.source=parquet", "data.path=TABLE", "data.label=y"),
        *("partition.kind=natural", "partition.column=who"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("what", OTHERS)
def test_a_loss_a_metric_a_source_a_partition_and_a_callback_do_so_too(
    what: str, ray_session: None, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=x @ [1.0, -2.0, 0.5], who=np.arange(240) % 6)
    frame.to_parquet(tmp_path / "table.parquet")

    def words(log: str) -> list[str]:
        given = [
            w.replace("TABLE", f"{tmp_path}/table.parquet").replace("LOG", str(tmp_path / log)) for w in OTHERS[what]
        ]
        return [*given, f"output.dir={tmp_path}/runs"]

    serial = simulate(load_config(None, [*words("serial.log"), "federation=serial"]), Screen(quiet=True))
    on_ray = [*words("ray.log"), "ray.actors=2", "output.checkpoint_every=1"]
    disturbed = simulate(load_config(None, on_ray), Killer(after=2))
    assert_same(serial, disturbed)
    assert recoveries(disturbed)
    if "callback" in what:
        logs = [(tmp_path / name).read_text().splitlines()[1:] for name in ("serial.log", "ray.log")]
        assert logs[0] == logs[1] and len(logs[0]) == 4, logs


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_ones_own_gives_the_same_tables_on_two_actors_of_which_one_is_killed(
    method: str, ray_session: None, bn_module: str, tmp_path: Path
) -> None:
    words = words_of(method, bn_module)
    serial = simulate(load_config(None, [*words, "federation=serial", f"output.dir={tmp_path}"]), Screen(quiet=True))
    on_ray = [*words, f"output.dir={tmp_path}", "ray.actors=2", "output.checkpoint_every=1"]
    assert_same(serial, simulate(load_config(None, on_ray), Killer(after=2)))


FORGETFUL = """
from rayfl.federation import everyone
from rayfl.methods.method import Method


class Forgetful(Method):
    def start(self):
        self.state = {"model": self.fed.initial}
        self.sums, self.constant = self.fed.initial * 0, self.fed.initial + 1

    def round(self, cohort):
        self.fed.train(cohort, start=self.eval_models())
        self.state = {"model": self.fed.mean(cohort)}
        self.sums += self.state["model"]
        self.before = cohort

    def eval_models(self):
        return everyone(self.state["model"], self.fed.clients)
"""


def test_a_method_that_remembers_outside_its_state_is_told_that_this_is_not_saved(
    own_code: Callable[[str, str], None], bn_module: str, tmp_path: Path
) -> None:
    own_code("forgetful", FORGETFUL)
    told: list[str] = []

    class Listening(Screen):
        def warn(self, text: str) -> None:
            told.append(text)

    def run(method: str) -> list[str]:
        told.clear()
        folder = f"output.dir={tmp_path / method.partition(':')[0]}"
        words = [*words_of(method, bn_module), "federation=serial", "rounds=2", folder]
        simulate(load_config(None, words), Listening(quiet=True))
        return [text for text in told if "in a round" in text]

    (warning,) = run("forgetful:Forgetful")
    assert "changes self.sums and self.before in a round. Checkpoints save only self.state" in warning
    assert not any(run(method) for method in METHODS)


@pytest.mark.parametrize("file", sorted(EXERCISES.glob("*.py")), ids=lambda path: path.stem)
def test_every_exercise_is_short_and_the_docs_say_how_short(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 40, len(lines)
    assert f"`{file.name}` ({len(lines)})" in (EXERCISES.parents[1] / "docs" / "extending.md").read_text()


# -- what the methods do ---------------------------------------------------------------------------------------------


def test_scaffolds_controls_add_up_and_change_the_training(serial_server: Make) -> None:
    """With everybody in each round, c is the mean of all c_i; and c_i is the mean gradient of the client's steps."""
    server = serial_server(*SMALL, "method.name=scaffold:Scaffold")
    server.run_round(1)
    fed, state = server.fed, server.method.state
    everybody, size = np.arange(8), server.fed.layout.parameters
    controls = fed.map(everybody, lambda client: client.kept("control"))
    np.testing.assert_allclose(state.control, controls.mean(axis=0), rtol=1e-4, atol=1e-6)
    moved = (fed.initial - state.model)[:size] / (3 * 0.1)
    np.testing.assert_allclose(state.control[:size], moved, rtol=1e-3, atol=1e-5)
    plain = serial_server(*SMALL, "method.name=fedavg", "partition.samples=[40, 40]")
    corrected = serial_server(*SMALL, "method.name=scaffold:Scaffold", "partition.samples=[40, 40]")
    for number in (1, 2):
        theirs, ours = plain.run_round(number), corrected.run_round(number)
        assert (theirs.summary["loss"] == ours.summary["loss"]) == (number == 1)


def test_fedbn_leaves_normalisation_layers_with_the_clients(serial_server: Make, bn_module: str) -> None:
    server = serial_server(*words_of("fedbn:FedBN", bn_module), "participation.fraction=1.0")
    server.run_round(1), server.run_round(2)
    fed = server.fed
    models = fed.collect(np.arange(8), buffers=True)
    for name, where, norm in zip(fed.layout.names, fed.layout.slices, fed.layout.norm, strict=True):
        assert norm == name.startswith("1."), name
        if norm:
            assert not server.method.state[where].any()  # it was never sent
            assert len(np.unique(models[:, where], axis=0)) == 8


def test_fedrep_trains_the_head_first_and_then_the_backbone(serial_server: Make) -> None:
    server = serial_server(*SMALL, "method.name=fedrep:FedRep")
    fed, head = server.fed, server.fed.layout.head
    fed.begin_round(1)
    fed.train(np.arange(8), start=server.method.shared(), keep=True, part="head")
    after_head = fed.collect(np.arange(8), buffers=True)
    again = serial_server(*SMALL, "method.name=fedrep:FedRep")
    again.run_round(1)
    models = again.fed.collect(np.arange(8), buffers=True)
    assert np.array_equal(models[:, head], after_head[:, head])
    assert (models[:, : head.start] != fed.initial[: head.start]).any(axis=1).all()


def test_pacfl_and_label_histograms_find_what_was_planted(serial_server: Make) -> None:
    rotated = serial_server("partition.clients=12", "local.steps=1", "method.name=pacfl:PACFL")
    assert rotated.run_round(1).summary["ari"] == 1
    planted = ["partition.kind=cluster_classes", "partition.clusters=3", "partition.classes_cluster=3"]
    planted += ["partition.classes_client=3", "partition.clients=12", "local.steps=1"]
    by_labels = serial_server(*planted, "method.name=by_labels:ByLabels", "method.clusters=3")
    assert by_labels.run_round(1).summary["ari"] > 0.7


def test_a_metric_of_ones_own_is_a_column(simulate_quietly: Callable[..., Run]) -> None:
    run = simulate_quietly(*SMALL, "federation=serial", "method.name=fedavg", "rounds=2", "task=auroc:WithAuroc")
    assert run.clients["auroc"].between(0, 1).all()
    assert run.rounds["auroc"].notna().all() and run.rounds["auroc_mean"].notna().all()


def test_a_focal_loss_is_what_clients_are_trained_with(simulate_quietly: Callable[..., Run]) -> None:
    words = [*SMALL, "federation=serial", "method.name=fedavg", "rounds=2"]
    focal, plain = simulate_quietly(*words, "task=focal:Focal"), simulate_quietly(*words)
    assert focal.rounds["loss"].iloc[0] < plain.rounds["loss"].iloc[0]


@pytest.mark.parametrize("training", ["loop", "vectorised"])
def test_a_regression_on_tabular_data_learns(training: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    who = np.arange(600) % 6
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=x @ [1.0, -2.0, 0.5] + 3, who=who)
    frame.to_parquet(tmp_path / "table.parquet")
    words = [
        "data.source=parquet",
        f"data.path={tmp_path}/table.parquet",
        "data.label=y",
        "task=median_error:WithMedian",
    ]
    words += [
        "partition.kind=natural",
        "partition.column=who",
        "model.name=mlp",
        "method.name=ifca",
        "method.clusters=2",
    ]
    words += ["federation=serial", "rounds=8", "local.steps=20", "local.lr=0.05", f"training={training}"]
    screen = Screen()
    run = simulate(load_config(None, [f"output.dir={tmp_path}/runs", *words]), screen)
    shown = capsys.readouterr()
    assert "round 8/8  mse " in shown.err and "accuracy" not in shown.err + shown.out
    assert "mse, weighted by test size" in shown.out
    last = run.rounds.iloc[-1]
    assert last["r2"] > 0.9
    assert last["mse"] == pytest.approx(last["loss"], rel=1e-5)
    assert 0 < last["median_error"] < 1
    assert run.rounds["accuracy"].isna().all()
    raw = frame[["a", "b", "c"]].to_numpy(np.float32)
    predicted = run.predict(raw, cluster=int(run.clients["cluster"].iloc[-1]))
    assert np.corrcoef(predicted, frame["y"])[0, 1] > 0.9


def test_methods_that_need_classes_refuse_a_regression(simulate_quietly: Callable[..., Run], tmp_path: Path) -> None:
    from rayfl.errors import InputError

    pd.DataFrame({"a": np.arange(60.0), "y": np.arange(60.0)}).to_parquet(tmp_path / "t.parquet")
    words = ["data.source=parquet", f"data.path={tmp_path}/t.parquet", "data.label=y", "task=regression"]
    words += ["partition.kind=iid", "partition.clients=3", "model.name=mlp", "federation=serial"]
    with pytest.raises(InputError, match=r"method\.name=fedtsdp compares class probabilities"):
        simulate_quietly(*words, "method.name=fedtsdp")


# -- fed.map ---------------------------------------------------------------------------------------------------------


def test_a_function_sees_one_client_and_its_rows_of_what_is_handed_over(serial_server: Make) -> None:
    server = serial_server(*SMALL, "method.name=fedavg")
    fed = server.fed
    fed.begin_round(3)
    table = np.arange(6.0).reshape(3, 2)

    def look(client, whole, own):  # type: ignore[no-untyped-def]
        inputs, labels = client.samples()
        assert inputs.shape[0] == labels.shape[0] == fed.n_train[client.number]
        assert client.label_counts().sum() == len(labels)
        assert whole.shape == (3, 2)
        return np.array([client.number, client.round, own[0]]), client.rng.integers(1000)

    clients = np.array([5, 1, 2])
    numbers, drawn = fed.map(clients, look, table, Each(table, np.arange(8) % 3))
    assert numbers.tolist() == [[5, 3, 4], [1, 3, 2], [2, 3, 4]]
    again = fed.map(clients[::-1], look, table, Each(table, np.arange(8) % 3))[1]
    assert again.tolist() == drawn[::-1].tolist()  # random numbers are the client's, and not of the order
    other = fed.map(clients, look, table, Each(table, np.arange(8) % 3), stream=1)[1]
    assert other.tolist() != drawn.tolist()


def test_what_a_function_sends_and_gets_is_counted_by_hand(serial_server: Make) -> None:
    fed = serial_server(*SMALL, "method.name=fedavg").fed
    fed.begin_round(1)
    clients, size = np.arange(4), fed.layout.size
    fed.map(clients, lambda client, model, numbers: np.zeros(3), fed.initial, np.zeros(5))
    assert fed.ledger.bytes_down == 4 * (4 * size + 5 * 8)
    assert fed.ledger.bytes_up == 4 * 3 * 8
    fed.map(clients, lambda client, model: None, fed.initial)  # a model travels once in a round
    assert fed.ledger.bytes_down == 4 * (4 * size + 5 * 8)
    fed.train(clients, start=everyone(fed.initial, 8))
    assert fed.ledger.bytes_down == 4 * (4 * size + 5 * 8)
    before = fed.ledger.bytes_up
    fed.map(clients, lambda client: client.model()[:2], at_server=True)
    assert fed.ledger.bytes_up - before == 4 * 4 * size  # the models, and not what the server computes of them


def test_losses_outputs_and_gradients_are_those_of_the_network(serial_server: Make) -> None:
    fed = serial_server(*SMALL, "method.name=fedavg").fed
    fed.begin_round(1)
    stack = fed.initial_models(3)

    def compare(client, stack):  # type: ignore[no-untyped-def]
        inputs, labels = client.samples()
        logits = torch.from_numpy(client.outputs(stack, inputs))
        expected = [torch.nn.functional.cross_entropy(each, labels, reduction="none") for each in logits]
        np.testing.assert_allclose(client.losses(stack), torch.stack(expected), rtol=1e-5, atol=1e-6)
        vector, step = stack[0].copy(), 1e-2
        gradient = client.gradient(vector)
        where = np.abs(gradient).argsort()[-3:]
        for at in where:
            ahead, behind = vector.copy(), vector.copy()
            ahead[at] += step
            behind[at] -= step
            slope = (client.losses(ahead[None]).mean() - client.losses(behind[None]).mean()) / (2 * step)
            assert gradient[at] == pytest.approx(slope, rel=0.05)
        return client.losses(stack).mean(axis=1)

    found = fed.map(np.arange(8), compare, stack)
    np.testing.assert_array_equal(found, library.losses(fed, np.arange(8), stack))


def test_what_is_kept_goes_into_checkpoints(serial_server: Make) -> None:
    server = serial_server(*SMALL, "method.name=fedavg")
    fed = server.fed
    fed.begin_round(1)
    fed.map(np.array([2, 5]), lambda client: client.keep("note", client.initial * client.number))
    assert fed.changed_since(0).tolist() == [2, 5]
    snapshot, states = server.snapshot(), server.kept_states(np.array([2, 5]))
    other = serial_server(*SMALL, "method.name=fedavg")
    other.restore(snapshot)
    other.adopt(states)
    kept = other.fed.map(np.array([5, 2]), lambda client: client.kept("note"))
    assert np.array_equal(kept, [fed.initial * 5, fed.initial * 2])
    assert other.fed.map(np.array([1]), lambda client: client.kept("note")) is None


def test_errors_in_a_function_name_the_client_and_the_function(serial_server: Make) -> None:
    from rayfl.errors import ClientError

    fed = serial_server(*SMALL, "method.name=fedavg").fed
    fed.begin_round(2)

    def broken(client):  # type: ignore[no-untyped-def]
        return 1 / (client.number - 3)

    with pytest.raises(ClientError, match=r"client 3 failed in round 2, in .*broken:\n(.|\n)*ZeroDivisionError"):
        fed.map(np.arange(8), broken)
    with pytest.raises(ValueError, match=r"gave arrays of different shapes"):
        fed.map(np.arange(8), lambda client: np.zeros(client.number))
    with pytest.raises(ClientError, match=r"cannot be kept: it must be as long as a model"):
        fed.map(np.arange(8), lambda client: client.keep("x", np.zeros(3)))
    assert fed.map(np.arange(0), broken) is None
