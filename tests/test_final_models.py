"""Saved models: they answer as they did when the run tested them, on raw samples, wherever the run was made."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tables import assert_same
from torch import nn

from rayfl.client.stacked import stacked_logits
from rayfl.config import ModelConfig, load_config
from rayfl.data import Dataset, Partition, make_partition
from rayfl.data.sources import load_dataset
from rayfl.errors import InputError
from rayfl.launch import resume, simulate
from rayfl.models import build_model
from rayfl.results import Run, load
from rayfl.results.model_files import Inputs
from rayfl.results.saved_models import RawSamples
from rayfl.simulation.opening import opened_here
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen

SMALL = ["federation=serial", "data.limit=240", "partition.clients=6", "local.steps=2", "rounds=2"]
QUIET = Screen(quiet=True)
OwnCode = Callable[[str, str], None]


def made(folder: Path | str, *words: str) -> Run:
    return simulate(load_config(None, [*SMALL, f"output.dir={folder}", *words]), QUIET)


def data_of(run: Run) -> tuple[Dataset, Partition]:
    """Return a run's samples as they are in the source, and which client has which."""
    dataset = load_dataset(run.config.data, run.config.seed)
    return dataset, make_partition(run.config.partition, dataset, run.config.seed)


def samples_of(data: tuple[Dataset, Partition], client: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's test samples as they are in the source, and the labels that it knows them by."""
    dataset, partition = data
    where, transform = partition.test_of(client), partition.transform_for(client)
    labels = dataset.labels[where].astype(np.int64)
    if transform is not None and transform.labels is not None:
        labels = np.array(transform.labels)[labels]
    return dataset.inputs[where], labels


def assert_answers_as_tested(run: Run) -> None:
    """Compare every client's accuracy and loss with the last rows of the table."""
    data, rows = data_of(run), run.clients[run.clients["round"] == len(run.rounds)].set_index("client")
    for client in range(6):
        samples, labels = samples_of(data, client)
        chances = run.predict(samples, client=client, probabilities=True)
        np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
        assert np.mean(chances.argmax(axis=1) == labels) == rows["accuracy"][client], client
        loss = -np.log(chances[np.arange(len(labels)), labels].astype(np.float64)).mean()
        assert loss == pytest.approx(rows["loss"][client], rel=1e-4), client
    assert run.predict(samples, client=5).tolist() == chances.argmax(axis=1).tolist()


METHODS = {
    "fedavg": ["method.name=fedavg"],
    "ifca": ["method.name=ifca", "method.clusters=3"],
    "fedper, whose clients share some layers": ["method.name=fedper"],
    "ditto, whose clients have models of their own": ["method.name=ditto"],
    "cam, which adds logits": ["method.name=ifca", "method.clusters=3", "method.addons=[cam]"],
    "cam over models of the clients' own": ["method.name=cgpfl", "method.clusters=2", "method.addons=[cam]"],
    "an ensemble, which averages probabilities": ["method.name=fedavg_ensemble", "method.clusters=3"],
    "fedac": ["method.name=fedac"],
    "fedtsdp": ["method.name=fedtsdp"],
}


@pytest.mark.parametrize("what", METHODS)
def test_every_clients_model_answers_as_it_did_in_the_last_test(what: str, tmp_path: Path) -> None:
    """Half of the clients take part in a round, so that some have no model of their own, and some no cluster."""
    assert_answers_as_tested(made(tmp_path, *METHODS[what], "participation.fraction=0.5", "output.models=all"))


@pytest.mark.parametrize("transform", ["rotation", "inversion", "label_permutation"])
def test_what_sets_a_planted_cluster_apart_is_part_of_its_clients_models(transform: str, tmp_path: Path) -> None:
    run = made(tmp_path, "method.name=ifca", "method.clusters=2", f"partition.transform={transform}")
    assert_answers_as_tested(run)
    dataset, partition = data_of(run)
    samples = dataset.inputs[:7]
    client = 5
    if transform == "rotation":
        client = next(c for c in range(6) if partition.transform_for(c).turns % 4 == 1)
    seen = {"rotation": np.rot90(samples, 1, (2, 3)), "inversion": 255 - samples, "label_permutation": samples}
    same = run.model(client=client, transformed=True)(seen[transform].copy())
    torch.testing.assert_close(run.model(client=client)(samples), same, rtol=0, atol=0)


def test_networks_with_batch_norm_and_with_the_channels_last(tmp_path: Path, bn_module: str) -> None:
    normed = made(tmp_path, "method.name=fedavg", f"model.name={bn_module}", "name=a")
    with pytest.raises(
        InputError, match=r"names code to be imported, model\.name=with_norm:Net: if you trust it, pass"
    ):
        normed.model()
    with pytest.raises(InputError, match=r"model='mlp': the run was made with model\.name=with_norm:Net"):
        normed.model(model="mlp")
    samples = data_of(normed)[0].inputs[:5]
    trusted, named = normed.model(trust=True)(samples), normed.model(model=bn_module)(samples)
    net = vars(sys.modules["with_norm"])["Net"](10)
    for found in (named, normed.model(model=net)(samples)):
        assert torch.equal(trusted, found)
    assert not torch.equal(net[0].weight, normed.model(model=net).networks[0][0].weight)  # it was copied
    with pytest.raises(InputError, match=r"does not hold models of this run's network \(tensors"):
        normed.model(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert_answers_as_tested(made(tmp_path, "method.name=ditto", "training=loop", "output.models=all", "name=b"))


# -- whose they are ----------------------------------------------------------------------------------------------


def test_a_cluster_has_the_model_of_its_clients_and_new_clients_find_theirs(tmp_path: Path) -> None:
    run = made(tmp_path, "method.name=ifca", "method.clusters=3", "rounds=8", "local.lr=0.2", "local.steps=5")
    data = data_of(run)
    clusters = run.clients[run.clients["round"] == 8].set_index("client")["cluster"]
    right = 0
    for client in range(6):
        # A new client has its samples as it sees them, and is not asked how they came about.
        samples, labels = samples_of(data, client)
        turned = np.rot90(samples, data[1].transform_for(client).turns, (2, 3)).copy()
        cluster = int(clusters[client])
        own = run.model(client=client)(samples)
        torch.testing.assert_close(run.model(cluster=cluster)(turned), own, rtol=0, atol=0)
        losses = {}
        for k in sorted(set(clusters)):
            chances = run.predict(turned, cluster=int(k), probabilities=True)[np.arange(len(labels)), labels]
            losses[int(k)] = -np.log(chances.astype(np.float64)).mean()
        assert run.assign(turned, labels) == min(losses, key=lambda k: losses[k])
        right += run.assign(turned, labels) == cluster
    assert right >= 4
    with pytest.raises(InputError, match=r"there is no model of cluster 9 in .*: there are"):
        run.model(cluster=9)
    with pytest.raises(InputError, match=r"no one model for all clients in .*; use model\(cluster=\.\.\.\) for"):
        run.model()
    with pytest.raises(InputError, match="client=6: the run has clients 0 to 5"):
        run.model(client=6)
    with pytest.raises(InputError, match="exclude each other"):
        run.model(client=1, cluster=1)
    with pytest.raises(InputError, match="give one class per sample, 0 to 9"):
        run.assign(turned, labels[:-1])


def test_by_default_only_what_clients_share_is_saved(tmp_path: Path) -> None:
    ditto = made(tmp_path, "method.name=ditto", "name=a")
    with pytest.raises(InputError, match=r"client 3 was not saved: it is the client's own, .*output\.models=all"):
        ditto.model(client=3)
    fedavg = made(tmp_path, "method.name=fedavg", "name=b")
    for name, tensor in ditto.model().state_dict().items():  # Ditto's global model is FedAvg's
        assert tensor.equal(fedavg.model().state_dict()[name])
    fedper = made(tmp_path, "method.name=fedper", "name=c").model()
    initial = build_model(ModelConfig(), (1, 8, 8), 10)
    assert torch.equal(fedper.networks[0].head.weight, initial.head.weight)  # nobody else's head
    assert not torch.equal(fedper.networks[0].conv1.weight, initial.conv1.weight)
    local = made(tmp_path, "method.name=local", "name=d")
    with pytest.raises(
        InputError, match=r"no one model for all .*; use with output\.models=all, model\(client=\.\.\.\)"
    ):
        local.model()
    none = made(tmp_path, "method.name=local", "output.models=none", "name=e")
    assert not (Path(none.path) / "models").exists()
    with pytest.raises(InputError, match=r"has no models: it was run with output\.models=none"):
        none.model(client=1)


def test_clusters_of_clients_with_models_of_their_own_have_their_centres(tmp_path: Path) -> None:
    """With CAM, each added to the global model, and not the global model alone."""
    words = ["method.name=cgpfl", "method.clusters=2", "method.addons=[cam]"]
    run = made(tmp_path, *words)
    prepared = prepare(load_config(None, [*SMALL, *words]))
    with opened_here(prepared.config, lambda: prepared, QUIET) as (server, _):
        server.run_round(1), server.run_round(2)
        state = server.method.state
    samples, _ = prepared.dataset.batch(np.arange(9))
    flat = prepared.facts.recipe.build()
    shared = stacked_logits(flat, torch.tensor(state.shared)[None], samples)[0]
    for cluster in np.unique(state.assignment).tolist():
        expected = shared + stacked_logits(flat, torch.tensor(state.centres[cluster])[None], samples)[0]
        torch.testing.assert_close(run.model(cluster=cluster)(prepared.dataset.inputs[:9]), expected)
    torch.testing.assert_close(run.model()(prepared.dataset.inputs[:9]), shared)


def test_the_files_are_plain_safetensors_that_the_network_itself_can_load(tmp_path: Path) -> None:
    """Without rayfl: row 1 of every tensor is the global model, after the initial one."""
    run = made(tmp_path, "method.name=fedavg", "training=loop")
    tensors = load_file(Path(run.path) / "models" / "shared-000002.safetensors")
    module = build_model(ModelConfig(), (1, 8, 8), 10)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, torch.tensor(tensors[name][0])), name
    module.load_state_dict({name: torch.tensor(tensors[name][1]) for name in module.state_dict()})
    samples = data_of(run)[0].inputs[:9]
    inputs = samples * tensors["rayfl/scale"][:, None, None] + tensors["rayfl/shift"][:, None, None]
    torch.testing.assert_close(module(torch.tensor(inputs)), run.model()(samples))
    moved = run.model().to("meta").to_empty(device="cpu")  # as to a GPU and back, but for the numbers
    moved.load_state_dict(run.model().state_dict())
    assert torch.equal(moved(samples), run.model()(samples))


def test_a_saved_model_can_be_trained_on(tmp_path: Path) -> None:
    run = made(tmp_path, "method.name=fedavg")
    model, (samples, labels) = run.model(), samples_of(data_of(run), 0)
    before = model(samples)
    loss = nn.functional.cross_entropy(model.networks[0](model.prepare(samples)), torch.tensor(labels))
    loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert not torch.equal(model(samples), before)


# -- when they are written ---------------------------------------------------------------------------------------


def test_more_rounds_rewrite_them_and_a_complete_run_keeps_them(tmp_path: Path) -> None:
    run = made(tmp_path, "method.name=ditto", "output.models=all", "name=a")
    folder = Path(run.path) / "models"
    before = {p: p.read_bytes() for p in folder.iterdir()}
    resume(run.path, [], QUIET)
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    longer = resume(run.path, ["rounds=3"], QUIET)
    names = {p.name for p in folder.iterdir()}
    assert names == {"index.json", "shared-000003.safetensors", "personal-000003-00000.safetensors"}
    assert_answers_as_tested(longer)


def test_models_saved_on_the_way_change_no_number_of_the_run(tmp_path: Path) -> None:
    """Above all not what is counted as sent: looking is not sending."""
    words = ["method.name=ditto", "rounds=4", "participation.fraction=0.5"]
    saving = "callbacks=[{name: save_models, every: 2, models: all}]"
    run = made(tmp_path, *words, saving, "name=a")
    assert_same(made(tmp_path, *words, "name=b"), run)
    early = made(tmp_path, *words, "rounds=2", "output.models=all", "name=c")
    samples = data_of(run)[0].inputs[:20]
    for client in range(6):
        assert torch.equal(run.model(client=client, round=2)(samples), early.model(client=client)(samples))
    with pytest.raises(InputError, match="no models of round 3; those of these rounds were saved: 2"):
        run.model(round=3)


@pytest.mark.parametrize("method", ["local", "fedper"])
def test_fine_tuning_comes_after_what_is_saved(method: str, tmp_path: Path) -> None:
    run = made(tmp_path, f"method.name={method}", "method.finetune=true", "output.models=all")
    assert "finetuned_accuracy" in run.extras
    assert_answers_as_tested(run)


def test_models_of_a_run_on_ray_and_on_a_uri_are_those_of_a_run_here(ray_session: None, tmp_path: Path) -> None:
    words = ["method.name=fedac", "output.models=all", "name=final-models"]
    here = made(tmp_path, *words)
    there = made("memory://final-models", *words, "federation=ray", "ray.actors=2")
    samples = data_of(here)[0].inputs[:20]
    for client in range(6):
        assert torch.equal(here.model(client=client)(samples), load(there.path).model(client=client)(samples))


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(made(tmp_path_factory.mktemp("saved"), "method.name=ditto", "output.models=all").path)


@pytest.mark.parametrize(
    "samples",
    [np.zeros((3, 8, 8), np.uint8), np.zeros((3, 1, 8, 8)), np.zeros((1, 9, 8), np.uint8), "text"],
    ids=["without channels", "floats", "another size", "no numbers"],
)
def test_samples_that_are_not_raw_are_refused(saved: Path, samples: Any) -> None:
    with pytest.raises(InputError, match=r"samples are .*: give uint8 pixels of shape \(n, 1, 8, 8\), as they are in"):
        load(saved).predict(samples)


def test_raw_text_and_numbers_become_what_the_network_sees() -> None:
    nothing = np.zeros(0, np.float32)
    text = RawSamples(Inputs(kind="text", shape=[3], classes=5, vocabulary=5, transforms=[]), nothing, nothing)
    assert text([[0, 1, 2], [2, 3, 4]]).tolist() == [[0, 1, 2], [2, 3, 4]]
    with pytest.raises(InputError, match="character codes go from 0 to 5, the run knows 0 to 4"):
        text([[0, 1, 5]])
    shift, scale = np.float32([1, -1]), np.float32([2, 0.5])
    numbers = RawSamples(Inputs(kind="vector", shape=[2], classes=3, vocabulary=None, transforms=[]), shift, scale)
    assert numbers([[3, 4]]).tolist() == [[7.0, 1.0]]


def damaged(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        "a file elsewhere": tree | {"shared": "../config.yaml"},
        "another version": tree | {"rayfl_models": 2},
        "a row that is not there": tree | {"everyone": {"rows": [7], "combine": "logits"}},
        "another way to combine": tree | {"everyone": {"rows": [0], "combine": "max"}},
        "a file that is gone": tree | {"shared": "shared-000009.safetensors"},
        "other inputs": tree | {"inputs": tree["inputs"] | {"shape": [1, 4, 4]}},
    }


@pytest.mark.parametrize("what", damaged({"inputs": {}}))
def test_a_damaged_index_is_refused_in_one_line(what: str, saved: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    index = copy / "models" / "index.json"
    index.write_text(json.dumps(damaged(json.loads(index.read_text()))[what]))
    with pytest.raises(InputError, match=r"restore it, or run again$"):
        load(copy).model()


def test_files_that_are_damaged_or_were_never_written_are_refused(saved: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    for file in (copy / "models").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(InputError, match=r"shared-000002\.safetensors cannot be read"):
        load(copy).model()
    shutil.rmtree(copy / "models")
    with pytest.raises(InputError, match=r"models is not there: the run is not finished \(see Run\.finished\), or was"):
        load(copy).model()
