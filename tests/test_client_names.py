"""Clients that the data name are shown by their names."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import rayfl
from rayfl.data import Data
from rayfl.errors import ClientError, InputError

TOWNS = ["Ulm", "Köln", "Bonn"]
KEYS: dict[str, Any] = {
    "federation": "serial",
    "rounds": 1,
    "local": {"steps": 1},
    "model": {"name": "mlp"},
    "method": {"name": "local"},
    "partition": {"kind": "natural"},
    "quiet": True,
}


def table() -> Data:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "label": np.arange(60) % 2, "town": TOWNS * 20})
    return Data(frame, client="town")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("runs")
    return rayfl.run(data=table(), output={"dir": str(folder), "models": "all"}, **KEYS)


def test_a_run_knows_its_clients_by_name(run: Any) -> None:
    loaded = rayfl.load(run.path)
    assert loaded.client_names == {0: "Bonn", 1: "Köln", 2: "Ulm"}
    assert loaded.clients.client.map(loaded.client_names).tolist() == ["Bonn", "Köln", "Ulm"]
    assert "Köln" in (Path(run.path) / "client_names.json").read_text(encoding="utf-8")


def test_a_model_is_found_by_the_name_of_its_client(run: Any) -> None:
    samples = np.array([[0.5], [1.0]])
    assert torch.equal(run.model(client="Ulm")(samples), run.model(client=2)(samples))
    assert not torch.equal(run.model(client="Ulm")(samples), run.model(client="Bonn")(samples))
    with pytest.raises(
        InputError, match=r"no client has this name \(did you mean 'Ulm'\?\); there are Bonn, Köln, Ulm"
    ):
        run.model(client="Ulmm")


def test_a_failure_names_the_client(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.head = nn.Linear(1, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise RuntimeError("the cat ate it")
            return self.head(x)

    with pytest.raises(ClientError, match=r"^client 0 \(Bonn\) failed in round 1:"):
        rayfl.run(data=table(), output={"dir": str(tmp_path)}, **{**KEYS, "model": Fails, "training": "loop"})


def test_clients_without_names_have_none(tmp_path: Path) -> None:
    keys = {**KEYS, "partition": {"kind": "iid", "clients": 3}}
    run = rayfl.run(data=table(), output={"dir": str(tmp_path)}, **keys)
    assert run.client_names == {} and not (Path(run.path) / "client_names.json").exists()
    with pytest.raises(InputError, match="no client has this name; they have numbers"):
        run.model(client="Ulm")


@pytest.mark.parametrize("text", ["[1, 2]", "{}", "[", "[" * 10**5])
def test_damaged_names_are_refused(run: Any, tmp_path: Path, text: str) -> None:
    import shutil

    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / "client_names.json").write_text(text)
    with pytest.raises(InputError, match=r"client_names.json is damaged"):
        _ = rayfl.load(copy).client_names
