"""The commands as a user types them: what they print, their exit codes, and what they leave behind."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forks import finished
from pydantic import BaseModel

import rayfl
from rayfl import cli
from rayfl.config import DATA, PARTITIONS, ArriveConfig, Config
from rayfl.methods import METHODS
from rayfl.methods.options import ADDONS, ClusteredOptions

Typed = tuple[int, str, str]


@pytest.fixture
def rayfl_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Typed]:
    """Type `rayfl ...` in an empty folder; return the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path / "nothing_here"))

    def typed(*words: str) -> Typed:
        monkeypatch.setattr(sys, "argv", ["rayfl", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return typed


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    contents = {"train_images": images, "train_labels": np.arange(60) % 3} | arrays
    np.savez(path, **contents)


def files_of_bad_input(folder: Path) -> None:
    (folder / "broken.yaml").write_text("rounds: [1\n")
    (folder / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    write_npz(folder / "small.npz")
    np.savez(folder / "keys.npz", pictures=np.zeros(3))
    write_npz(folder / "wide.npz", train_images=np.zeros((60, 8, 6), np.uint8))
    pd.DataFrame({"a": [1.0, 2.0], "kind": [0, 1]}).to_parquet(folder / "table.parquet")
    pd.DataFrame({"a": [1.0, None], "label": [0, 1]}).to_parquet(folder / "holes.parquet")
    (folder / "empty_images").mkdir()
    (folder / "a_file").write_text("in the way")
    (folder / "taken" / "mine").mkdir(parents=True)


BAD = {
    "an unknown key": (["rouds=3"], r"did you mean 'rounds'"),
    "a wrong type": (["rounds=many"], r"rounds='many'"),
    "a word that is no override": (["rounds=3", "serial"], r"'serial' is not an override"),
    "a key written as an option": (["--rounds", "3"], r"no option --rounds: .* without dashes, rounds=3$"),
    "a config file that is not first": (["rounds=3", "mine.yaml"], r"'mine\.yaml' .* a config file is the first word"),
    "a config file that is not there": (["none.yaml"], r"none\.yaml cannot be read"),
    "YAML that is none": (["broken.yaml"], r"not valid YAML"),
    "an unknown method": (["method.name=fedavgg"], r"did you mean 'fedavg'"),
    "an option of another method": (
        ["method.name=fedavg", "method.mu=1"],
        r"no key 'mu'; allowed with method\.name=fedavg: ",
    ),
    "a method's option out of range": (["method.mu=-1"], r"method\.mu=-1"),
    "a method that cannot be imported": (["method.name=not.there:X"], r"cannot import not\.there.*current folder"),
    "a file instead of a module": (["method.name=mine.py:X"], r"leave out \.py: mine:X$"),
    "a class that is no method": (["method.name=pathlib:Path"], r"not a subclass"),
    "a method that needs more clients": (["participation.count=1"], r"cohort of 1.*2 or more"),
    "an unknown model": (["model.name=digit_cnn"], r"did you mean 'digits_cnn'"),
    "a model too large for the images": (["model.name=thesis_cifar10"], r"thesis_cifar10.*8x8"),
    "a head that is not there": (["model.head=top"], r"model\.head='top'"),
    "data that is not there": (["data.source=npz", "data.path=gone.npz"], r"gone\.npz"),
    "a torn file": (["data.source=npz", "data.path=torn.npz"], r"torn\.npz"),
    "a file with other keys": (["data.source=npz", "data.path=keys.npz"], r"train_images"),
    "a table without labels": (["data.source=parquet", "data.path=table.parquet"], r"data\.label"),
    "a table with holes": (["data.source=parquet", "data.path=holes.parquet"], r"holes\.parquet"),
    "a folder without images": (["data.source=image_folder", "data.path=empty_images"], r"empty_images"),
    "more clients than samples": (["partition.clients=5000"], r"partition\.clients=5000"),
    "turning what is not square": (["data.source=npz", "data.path=wide.npz"], r"rotation"),
    "more classes than there are": (["partition={kind: classes, classes: 11}"], r"partition\.classes=11"),
    "a test split that is not there": (["partition.test=official"], r"partition\.test"),
    "owners that are not known": (["partition={kind: natural, column: writer}"], r"partition\.column"),
    "an output folder that is a file": (["output.dir=a_file"], r"a_file"),
    "a run that is there already": (["output.dir=taken", "name=mine"], r"never overwritten"),
    "more actors than fit": (["ray.actors=99"], r"ray\.actors=99.*use ray\.actors=4"),
    "GPUs that cannot be cut so": (["ray.gpus_per_actor=4"], r"no client actor fits.*4 GPUs"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing_behind(
    rayfl_typed: Callable[..., Typed], tmp_path: Path, ray_session: None, what: str
) -> None:
    files_of_bad_input(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words, told = BAD[what]
    code, out, err = rayfl_typed("run", *words)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2, err
    assert len(errors) == 1, err
    assert re.search(told, errors[0]), errors[0]
    assert "Traceback" not in err
    assert not out
    assert sorted(tmp_path.rglob("*")) == before


def files_of_hostile_input(folder: Path) -> None:
    def table(name: str, **columns: list) -> None:
        pq.write_table(pa.table(columns), folder / name)

    labels = [0, 1, 0, 1]
    table("nested.parquet", a=[[[1.0, 2.0]]] * 4, label=labels)
    table("words.parquet", a=[["x"]] * 4, label=labels)
    table("huge.parquet", a=[1e300] * 4, label=labels)
    table("lists.parquet", a=[1.0] * 4, label=[[0], [1], [0], [1]])
    table("labels.parquet", a=[1.0] * 4, label=[2**62, 1, 0, 1])
    (folder / "fails.py").write_text("1 / 0\n")
    (folder / "broken_code.py").write_text("def (\n")
    (folder / "exits.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "abstract.py").write_text("from rayfl.methods.method import Method\nclass Mine(Method):\n    pass\n")
    (folder / "exiting.py").write_text(
        "import sys\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        sys.exit(0)\n"
    )
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9))
    merges = "a0: &a0 {x: 1}\n"
    merges += "".join(f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 10)}]}}\n" for i in range(9))
    for name, text in {
        "twice": "rounds: 1\nseed: 1\nrounds: 2\n",
        "bomb": bomb,
        "merges": merges,
        "endless": "model: {options: &a {x: *a}}\n",
        "deep": "model: " + "[" * 5000 + "]" * 5000,
        "digits": "seed: " + "9" * 5000,
        "hex": "seed: 0x" + "f" * 50_000,
        "long": "name: " + "x" * 2_000_000,
        "list_key": "? [1, 2]\n: 3\n",
        "set": "rounds: !!set {a, b}\n",
        "binary": "name: !!binary aGk=\n",
        "date": "rounds: 2020-13-45\n",
        "not_unicode": 'name: "\\ud800"\n',
    }.items():
        (folder / f"{name}.yaml").write_text(text)


BIG = str(10**18)
HOSTILE = {
    "a seed beyond int64": ([f"seed={2**63}"], r"seed=9223372036854775808 is too large"),
    "a seed of thousands of digits": (["seed=" + "9" * 5000], r"seed=.*no int of at most 400 digits"),
    "a list for the partition": (["partition.kind=[iid]"], r"partition\.kind=\['iid'\] is not allowed"),
    "a list for the transform": (["partition.transform=[a]"], r"partition\.transform=\['a'\] is not allowed"),
    "a mapping for the method": (["method.name={a: b}"], r"method\.name=.*valid string"),
    "a list among the add-ons": (["method.addons=[[cam]]"], r"method\.addons.*allowed: cam"),
    "an infinite alpha": (["partition={kind: dirichlet, alpha: .inf}"], r"partition\.alpha=inf is not a finite"),
    "an alpha beyond floats": (
        ["partition={kind: dirichlet, alpha: 1e-320}"],
        r"partition\.alpha=1e-320.*0\.000000001",
    ),
    "an infinite learning rate": (["local.lr=1e999"], r"local\.lr=inf is not a finite"),
    "an infinite pull": (["method.mu=.inf"], r"method\.mu=inf is not a finite"),
    "a decay beyond float32": (["local.weight_decay=1e300"], r"weight_decay=1e\+300.*up to 1e\+30"),
    "very many rounds": ([f"rounds={BIG}"], r"rounds=1000000000000000000.*1000000000"),
    "very many steps": ([f"local.steps={BIG}"], r"local\.steps=.*1000000000"),
    "very many epochs": ([f"local.epochs={BIG}"], r"local\.epochs=.*1000000000"),
    "a very large batch": ([f"local.batch_size={BIG}"], r"local\.batch_size=.*1000000000"),
    "very many clients": (["partition={kind: iid, clients: 1000000000}"], r"use at most 898 clients"),
    "more clients than integers": ([f"partition={{kind: iid, clients: {10**30}}}"], r"partition\.clients=.*2\*\*63"),
    "clusters of very many clients": ([f"partition.cluster_sizes=[{BIG}, 1]"], r"partition\.cluster_sizes\.0="),
    "no cluster sizes": (["partition.cluster_sizes=[]"], r"partition\.cluster_sizes=\[\].*at least 1"),
    "samples beyond integers": ([f"partition.samples=[2, {2**63}]"], r"partition\.samples\.1="),
    "very many samples": ([f"partition.samples=[2, {BIG}]"], r"partition\.samples\.1=.*1000000000"),
    "very many models": (["method={name: ifca, clusters: 1000000}"], r"method\.clusters=1000000.*10000"),
    "very many federations": (["method={name: fedavg_ensemble, clusters: 1000000}"], r"method\.clusters=.*10000"),
    "very many components": ([f"method.components={10**30}"], r"method\.components=.*2\*\*63"),
    "a very wide network": ([f"model.options.channels={BIG}"], r"model\.options\.channels=.*at most 1000000"),
    "a very small share of a CPU": (["ray.cpus_per_actor=1e-320"], r"ray\.cpus_per_actor=.*steps of 0\.0001"),
    "a resource without a name": (["ray.resources={'': 1.0}"], r"ray\.resources=.*names"),
    "!!float of a word": (["local.lr=!!float x"], r"local\.lr=.*'x' is no float"),
    "!!int of a word": (["rounds=!!int x"], r"rounds=.*'x' is no int"),
    "minutes and seconds": (["rounds=1:30"], r"rounds='1:30'.*integer"),
    "an integer that may be octal": (["seed=010"], r"seed='010'.*integer"),
    "thousands of brackets": (["name=" + "[" * 5000], r"name=.*nested more than 32 deep"),
    "thousands of braces": (["model.options=" + "{a: " * 2000 + "1" + "}" * 2000], r"nested more than 32 deep"),
    "thousands of dots": (["model.options." + "a." * 3000 + "b=1"], r"nested more than 32 deep"),
    "a key twice": (["twice.yaml"], r"twice\.yaml is not valid YAML at line 3.*'rounds' is there twice"),
    "aliases that multiply": (["bomb.yaml"], r"bomb\.yaml.*more than 200,000 values"),
    "merges that multiply": (["merges.yaml"], r"merges\.yaml.*more than 200,000 values"),
    "an alias in itself": (["endless.yaml"], r"endless\.yaml.*points to a value that contains it"),
    "deep YAML": (["deep.yaml"], r"deep\.yaml.*nested more than 32 deep"),
    "thousands of digits": (["digits.yaml"], r"digits\.yaml.*at most 400 digits"),
    "thousands of hex digits": (["hex.yaml"], r"hex\.yaml.*at most 400 digits"),
    "megabytes of YAML": (["long.yaml"], r"long\.yaml.*at most 1,048,576"),
    "a key that is a list": (["list_key.yaml"], r"list_key\.yaml.*a key must be text"),
    "a YAML set": (["set.yaml"], r"set\.yaml.*tag:yaml\.org,2002:set"),
    "YAML's binary data": (["binary.yaml"], r"binary\.yaml.*tag:yaml\.org,2002:binary"),
    "a date for a number": (["date.yaml"], r"rounds='2020-13-45'.*integer"),
    "text that is not Unicode": (["not_unicode.yaml"], r"name='\\ud800' is not valid Unicode"),
    "a method that is a colon": (["method.name=':'"], r"method\.name=':' is not an import path"),
    "a method from a dot": (["method.name='.:a'"], r"method\.name='\.:a' is not an import path"),
    "a method without a name": (["method.name='json:'"], r"method\.name='json:' is not an import path"),
    "a method whose module fails": (["method.name=fails:X"], r"importing 'fails' fails: ZeroDivisionError"),
    "a method whose module is no Python": (
        ["method.name=broken_code:X"],
        r"importing 'broken_code' fails: SyntaxError",
    ),
    "a method whose module exits": (["method.name=exits:X"], r"importing 'exits' fails: SystemExit"),
    "an abstract method": (["method.name=abstract:Mine"], r"abstract:Mine is abstract.*eval_models, round"),
    "a model that is a colon": (["model.name=':'"], r"model\.name=':' is not an import path"),
    "a model whose module exits": (["model.name=exits:X"], r"importing 'exits' fails: SystemExit"),
    "a model that exits": (["model.name=exiting:Net"], r"exiting:Net.*cannot be built: SystemExit"),
    "lists in lists": (["data={source: parquet, path: nested.parquet}"], r"column 'a' holds list.*flatten"),
    "lists of words": (["data={source: parquet, path: words.parquet}"], r"column 'a' holds list.*numbers"),
    "features beyond float32": (
        ["data={source: parquet, path: huge.parquet}"],
        r"huge\.parquet.*infinite features.*3\.4e38",
    ),
    "labels that are lists": (["data={source: parquet, path: lists.parquet}"], r"column 'label' holds list"),
    "a label of 2**62": (["data={source: parquet, path: labels.parquet}"], r"label 4611686018427387904 is not"),
    "NUL in the data's path": (['data={source: npz, path: "a\\0b"}'], r"data\.path='a\\x00b' holds a NUL"),
    "NUL in the data's root": (['data={source: mnist, root: "a\\0b"}'], r"data\.root=.*NUL"),
    "NUL in the output": (['output.dir="a\\0b"'], r"output\.dir=.*NUL"),
    "a path that is too long": (["data={source: npz, path: " + "a" * 3000 + "}"], r"data\.path=.*name too long"),
    "a name that is too long": (["name=" + "a" * 300], r"name=.*at most 200 characters"),
    "the home of nobody": (["output.dir=~nobody_at_all/runs"], r"~nobody_at_all/runs.*no home folder"),
    "an output on the web": (["output.dir=http://localhost:1/x"], r"http://localhost:1/x cannot be written to"),
    "an output of an unknown kind": (["output.dir=foo://x"], r"foo://x cannot be opened"),
    "an output in no bucket": (["output.dir=s3://"], r"s3:// names no folder"),
    "an output on another host": (["output.dir=file://host/x"], r"file://host/x names another host"),
    "an empty output": (["output.dir=''"], r"output\.dir=''.*at least 1 character"),
    "a folder for client models that is missing": (["state.dir=gone"], r"state\.dir=gone cannot be written to"),
    "a folder for client models that is a file": (
        ["state.dir=twice.yaml"],
        r"state\.dir=twice\.yaml cannot be written to",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.timeout(20)
def test_hostile_input_is_one_short_line_and_exit_code_2_and_leaves_nothing_behind(
    rayfl_typed: Callable[..., Typed], tmp_path: Path, what: str
) -> None:
    files_of_hostile_input(tmp_path)
    before = sorted(tmp_path.rglob("*.*"))
    words, told = HOSTILE[what]
    files = [word for word in words if word.endswith(".yaml") and "=" not in word]
    code, out, err = rayfl_typed("run", *files, "federation=serial", *[word for word in words if word not in files])
    assert code == 2, err
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert re.search(told, line), line
    assert len(line) < 4000
    assert not out
    assert [path for path in sorted(tmp_path.rglob("*.*")) if "__pycache__" not in str(path)] == before


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("gone/figure.png", r"-o gone/figure\.png: there is no folder gone"),
        ("figure.foo", r"-o figure\.foo: figures end in one of .*\.png.*, tables in \.parquet or \.csv$"),
        ("figure", r"-o figure: figures end in"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_told_before_the_data_are_read(
    rayfl_typed: Callable[..., Typed], tmp_path: Path, file: str, told: str
) -> None:
    code, out, err = rayfl_typed("partition", "-o", file)
    assert code == 2
    (line,) = err.splitlines()
    assert re.match(f"error: {told}", line), line
    assert not out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["", "gone", "a\0b", "~nobody_at_all/run", "http://localhost:1/x", "foo://x", "s3://"])
def test_a_folder_that_cannot_be_resumed_is_one_line(rayfl_typed: Callable[..., Typed], path: str) -> None:
    code, _, err = rayfl_typed("resume", path)
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("error: ")


def test_an_address_where_no_ray_is_gives_one_line(tmp_path: Path) -> None:
    """In a separate process: this one is connected to a Ray, which would be used."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    done = finished(["-m", "rayfl.cli", "run", "ray.address=127.0.0.1:1"], 200, cwd=tmp_path, env=environment)
    assert done.returncode == 2, done.stderr
    assert "error: ray.address=127.0.0.1:1: no Ray cluster answers there" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_run_prints_progress_a_table_and_on_its_last_line_the_folder(
    rayfl_typed: Callable[..., Typed], tmp_path: Path, ray_session: None
) -> None:
    code, out, err = rayfl_typed("run", "rounds=3", "local.steps=1", "ray.actors=1", "seed=4")
    assert code == 0, err
    assert re.search(r"round 3/3  accuracy 0\.\d+  K \d \([\d,]+\)  ARI -?\d\.\d+  \d+\.\d+ s/round", err)
    assert "after 3 rounds" in out
    run = rayfl.load(out.splitlines()[-1])
    assert run.config.seed == 4
    assert run.config.method.options["tuning"] == "utility"  # the resolved config has the defaults too
    assert len(run.rounds) == 3
    assert len(pd.read_parquet(Path(run.path) / "clients")) == 3 * 20


def test_a_run_that_fails_after_its_start_exits_with_1(rayfl_typed: Callable[..., Typed], tmp_path: Path) -> None:
    code, _, err = rayfl_typed("run", "federation=serial", "local.lr=1e6", "method.name=fedavg")
    assert code == 1
    assert re.search(r"error: .*lower local\.lr", err)


EXITS = {
    "the import of a method": ("method.name=leaving:M", "sys.exit(0)", r"it calls sys\.exit\(0\) when it is imported"),
    "the import of a model": ("model.name=leaving:M", "sys.exit()", r"it calls sys\.exit\(None\) when it is imported"),
    "building a model": ("model.name=leaving:M", "def M(classes):\n    sys.exit(0)", r"cannot be built: SystemExit"),
    "a model's first batch": (
        "model.name=leaving:M",
        "class M(nn.Linear):\n    def __init__(self, classes):\n        super().__init__(64, classes)\n"
        "    def forward(self, x):\n        sys.exit(0)",
        r"fails on a batch of shape \(3, 1, 8, 8\): SystemExit",
    ),
    "a method's own check": (
        "method.name=leaving:M",
        "class M(FedAvg):\n    @classmethod\n    def check(cls, *_):\n        sys.exit(0)",
        r"code that the config names called sys\.exit\(0\)",
    ),
    "a method's start": (
        "method.name=leaving:M",
        "class M(FedAvg):\n    def start(self):\n        sys.exit(0)",
        r"method\.name=leaving:M cannot start",
    ),
}


@pytest.mark.parametrize("where", EXITS)
def test_sys_exit_in_code_that_a_config_names_is_no_success_and_leaves_nothing(
    rayfl_typed: Callable[..., Typed], tmp_path: Path, where: str
) -> None:
    word, code, told = EXITS[where]
    imports = "import sys\nfrom torch import nn\nfrom rayfl.methods.fedavg import FedAvg\n"
    (tmp_path / "leaving.py").write_text(f"{imports}{code}\n")
    sys.modules.pop("leaving", None)  # of another test
    try:
        status, _, err = rayfl_typed("run", "federation=serial", "rounds=2", word)
    finally:
        sys.modules.pop("leaving", None)
    assert status in (1, 2), err
    assert re.search(f"error: .*{told}", err), err
    assert not (tmp_path / "runs").exists()


def test_partition_counts_only_the_changes_within_the_run(rayfl_typed: Callable[..., Typed]) -> None:
    features = "features: [{kind: rotation, angle: [0, 90]}], drift: [{every: 10, share: 0.5}]"
    words = ["partition", f"partition={{kind: composed, clients: 8, {features}}}"]
    assert "drift: 4 clients change cluster, in 2 of the rounds 10 to 20\n" in rayfl_typed(*words, "rounds=25")[1]
    assert "drift: none in 5 rounds, the first change is in round 10\n" in rayfl_typed(*words, "rounds=5")[1]


def test_partition_prints_every_client_and_draws_a_figure(rayfl_typed: Callable[..., Typed], tmp_path: Path) -> None:
    code, out, _ = rayfl_typed("partition", "partition.clients=8", "-o", "figure.png")
    assert code == 0
    assert "8 clients, 1797 of 1797 samples" in out
    assert "clients per true cluster: [2, 2, 2, 2]" in out
    rows = re.findall(r"^│ +(\d+) │ +(\d+) │ +\d+ │ +\d+ │ 0:\d+ 1:\d+", out, re.M)
    assert rows == [(str(client), str(client // 2)) for client in range(8)], out
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"^label skew: 0\.0\d\d Jensen-Shannon, 0\.0\d\d Hellinger", out, re.M), out
    assert re.search(r"^effective classes per client: 9\.\d\d of 10$", out, re.M), out
    assert "quantity skew: 0.00" in out


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_partition_writes_who_has_which_sample(rayfl_typed: Callable[..., Typed], tmp_path: Path, ending: str) -> None:
    keys = ["partition.clients=8", "partition.validation=0.2", "partition.public=0.1"]
    code, out, _ = rayfl_typed("partition", *keys, "-o", f"who.{ending}")
    assert code == 0 and out.splitlines()[-1] == f"who.{ending}"
    table = pd.read_csv("who.csv") if ending == "csv" else pd.read_parquet("who.parquet")
    assert list(table.columns) == ["client", "sample", "split", "label", "cluster", "transform"]
    assert sorted(table["sample"]) == list(range(1797))
    public = table[table["split"] == "public"]
    assert len(public) == 180 and public["client"].isna().all() and public["cluster"].isna().all()
    clients = table.dropna(subset="client").groupby("client")
    assert clients["cluster"].first().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert re.search(rf"^│ +0 │ +0 │ +{(clients.get_group(0)['split'] == 'train').sum()} │", out, re.M), out


def test_partition_shows_the_names_of_natural_clients(rayfl_typed: Callable[..., Typed], tmp_path: Path) -> None:
    names = ["Anna [bold]", "Bert"] * 10
    pd.DataFrame({"a": range(20), "label": [0, 1] * 10, "who": names}).to_parquet(tmp_path / "people.parquet")
    keys = ["data={source: parquet, path: people.parquet}", "partition={kind: natural, column: who}"]
    code, out, _ = rayfl_typed("partition", *keys, "-o", "who.csv")
    assert code == 0
    assert "Anna [bold]" in out and "Bert" in out
    table = pd.read_csv("who.csv")
    assert table["name"].tolist() == ["Anna [bold]"] * 10 + ["Bert"] * 10
    assert table["sample"].tolist() == [*range(0, 20, 2), *range(1, 20, 2)]


def test_methods_lists_every_method_with_its_options(rayfl_typed: Callable[..., Typed]) -> None:
    code, out, _ = rayfl_typed("methods")
    assert code == 0
    # The lines below each name, up to the next name.
    parts = dict(re.findall(r"^(\w+)  [^\n]*\n((?:    [^\n]*\n)*)", out, re.M))
    assert "=None" not in out, "which nobody can type"
    common = set(ClusteredOptions.model_fields)
    for name, method in METHODS.items():
        options = re.findall(r"^    method\.(\w+)=", parts[name], re.M)
        assert options == [key for key in method.Options.model_fields if key not in common], name
    for name, addon in ADDONS.items():
        assert re.findall(rf"^    method\.{name}\.(\w+)=", parts[name], re.M) == list(addon.model_fields)
    assert "method.tuning=utility" in parts["fedac"] and "method.finetune=False" in out and "con_cks" in out


@pytest.mark.parametrize("words", [["methods"], ["config"]])
def test_a_reader_that_has_seen_enough_gets_no_traceback(words: list[str]) -> None:
    """As in `rayfl methods | head -1`, with a reader that is gone before the first line: no buffer hides it."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "rayfl.cli", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_doctor_says_what_fits_and_warns_of_fractions_that_waste(
    rayfl_typed: Callable[..., Typed], ray_session: None
) -> None:
    code, out, _ = rayfl_typed("doctor")
    assert code == 0
    assert "4 CPUs, 2 GPUs: 4 fit" in out
    assert "nothing would go wrong" in out
    code, out, _ = rayfl_typed("doctor", "ray.gpus_per_actor=0.3", "ray.cpus_per_actor=0.5")
    assert code == 0
    assert ": 6 fit" in out
    assert "does not divide 1" in out
    assert "ray.actors_per_gpu=3" in out
    assert "memory: about 1.6 GB per GPU, 3 x (0.5 GB for CUDA and " in out
    assert rayfl_typed("doctor", "ray.actors=50")[0] == 2


def test_doctor_of_a_run_in_this_process_speaks_of_no_actors_and_starts_no_ray(
    rayfl_typed: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    for name in [name for name in sys.modules if name.startswith("rayfl.actors")]:
        monkeypatch.delitem(sys.modules, name)
    serial = ["doctor", "federation=serial", "partition.clients=8", "model.name=mlp"]
    code, out, _ = rayfl_typed(*serial)
    assert code == 0
    assert "this run would train its 8 clients in this process, on its CPU" in out
    assert "actor" not in out and "ray " not in out
    assert out.splitlines()[-1] == "nothing would go wrong"
    code, out, _ = rayfl_typed(*serial, "ray.actors=4")
    assert code == 0
    assert "warning: ray.actors=4 is not used with federation=serial" in out


def test_doctor_says_that_results_cannot_be_written(rayfl_typed: Callable[..., Typed], tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("in the way")
    code, _, err = rayfl_typed("doctor", "federation=serial", "output.dir=a_file")
    assert code == 2
    assert "cannot be written to" in err


def test_config_lists_every_key_with_its_meaning(rayfl_typed: Callable[..., Typed]) -> None:
    code, out, _ = rayfl_typed("config")
    assert code == 0
    lines = out.splitlines()
    by_key = {line.partition("=")[0]: line for line in lines}
    assert len(by_key) == len(lines)
    sections = {name: [type(section)] for name, section in Config() if isinstance(section, BaseModel)}
    sections |= {"data": list(DATA.values()), "partition": list(PARTITIONS.values()), "arrive": [ArriveConfig]}
    keys = [name for name in Config.model_fields if name not in sections]
    keys += [
        f"{name}.{key}" for name, several in sections.items() for section in several for key in section.model_fields
    ]
    assert set(by_key) >= set(keys) and len(set(keys)) > 70
    assert by_key["partition.alpha"].startswith("partition.alpha=0.1 (dirichlet)  ")
    assert [key for key, line in by_key.items() if not line.partition("  ")[2].strip()] == []


def test_config_gives_a_json_schema(rayfl_typed: Callable[..., Typed]) -> None:
    import json

    code, out, _ = rayfl_typed("config", "--schema")
    assert code == 0
    schema = json.loads(out)
    assert {"data", "partition", "local", "method"} <= set(schema["properties"])
