"""A secret in a URI is used, and nowhere shown or written."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from forks import finished
from pyarrow import fs

import rayfl
from rayfl.config import load_config
from rayfl.errors import InputError, RayflError
from rayfl.results import Storage
from rayfl.simulation.checkpoints import Checkpoints
from rayfl.uris import without_secrets

SECRET = "hush%2Fhush"
SMALL = ["federation=serial", "rounds=3", "local.steps=1", "partition.clients=4", "output.checkpoint_every=1"]


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://KEY:hush@bucket/runs", "s3://bucket/runs"),
        ("s3://KEY:hu@sh@bucket/runs", "s3://bucket/runs"),
        ("s3://KEY:hu/sh@bucket/runs/x", "s3://bucket/runs/x"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("s3://bucket/runs?region=eu&secret_key=hush&access_key=hush", "s3://bucket/runs?region=eu"),
        ("s3://bucket/runs?sig=hush", "s3://bucket/runs"),
        ("abfs://account:hush@container/runs", "abfs://account@container/runs"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("abfs://:hush@account.blob.core.windows.net/c", "abfs://account.blob.core.windows.net/c"),
        ("simplecache::s3://KEY:hush@bucket/x", "simplecache::s3://bucket/x"),
        ("hdfs://host:8020/runs", "hdfs://host:8020/runs"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("/home/me/runs@2", "/home/me/runs@2"),
        ("cannot open 's3://KEY:hush@bucket' (denied)", "cannot open 's3://bucket' (denied)"),
    ],
)
def test_a_uri_is_shown_without_its_secret_and_still_names_the_place(uri: str, shown: str) -> None:
    assert without_secrets(uri) == shown
    assert without_secrets(shown) == shown


def test_a_config_shows_and_saves_no_secret_and_still_holds_it() -> None:
    config = load_config(None, [f"output.dir=s3://KEY:{SECRET}@bucket/runs"])
    for text in (config.to_yaml(), str(config.to_tree()), repr(config), str(config), str(config.output)):
        assert "s3://bucket/runs" in text
        assert "hush" not in text and "KEY" not in text
    assert config.output.dir == f"s3://KEY:{SECRET}@bucket/runs"


def test_no_error_shows_a_secret_also_after_it_crossed_processes() -> None:
    uri = f"s3://KEY:{SECRET}@bucket/runs"
    for error in (RayflError(f"{uri} is gone"), InputError(f"{uri} is gone", "and more")):
        assert "hush" not in str(error) and "s3://bucket/runs is gone" in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
    assert len(pickle.loads(pickle.dumps(InputError("a", "b"))).lines) == 2
    for key in ("data.path", "data.root", "state.dir", "ray.address", "name", "no_such_key"):
        with pytest.raises(InputError) as told:
            rayfl.run(None, **{"federation": "serial", "data.source": "npz", key: uri})
        assert "hush" not in str(told.value)


def test_a_storage_shows_its_place_and_opens_its_folders_with_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        opened.append(uri)
        return fs.LocalFileSystem(), "/nowhere"

    monkeypatch.setattr(fs, "FileSystem", type("Fake", (), {"from_uri": staticmethod(from_uri)}))
    storage = Storage(f"s3://KEY:{SECRET}@bucket/runs?region=eu").folder("x")
    assert opened[-1] == f"s3://KEY:{SECRET}@bucket/runs/x?region=eu"
    assert storage.path == "s3://bucket/runs/x?region=eu"
    assert storage.name == "x"
    assert storage.has_secrets
    assert "hush" not in repr(storage)


@pytest.fixture
def s3() -> Iterator[str]:
    """A server that speaks S3, with a bucket `results`; returns the options of a URI that leads to it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        options = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http", "region": "us-east-1"}
        bucket = fs.S3FileSystem(**options, access_key="KEY", secret_key="hush/hush", allow_bucket_creation=True)
        bucket.create_dir("results")
        yield "&".join(f"{key}={value}" for key, value in options.items())
    finally:
        server.stop()


@pytest.mark.slow
def test_a_run_on_s3_is_made_and_resumed_with_a_secret_that_is_nowhere_to_be_found(s3: str, tmp_path: Path) -> None:
    """All that it prints, and all files that it writes."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    environment |= {"AWS_EC2_METADATA_DISABLED": "true"}

    def typed(*words: str) -> str:
        done = finished(["-m", "rayfl.cli", *words], 120, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stderr + done.stdout

    base = f"s3://KEY:{SECRET}@results/runs"
    printed = typed("run", *SMALL, "name=mine", f"output.dir={base}?{s3}")
    assert printed.splitlines()[-1] == f"s3://results/runs/mine?{s3}"
    printed += typed("resume", f"{base}/mine?{s3}", "rounds=4")
    assert "hush" not in printed
    storage = Storage(f"{base}/mine?{s3}")
    files = ["config.yaml", *[f"checkpoints/{name}" for name in storage.list("checkpoints")]]
    assert len(files) > 2
    for name in files:
        assert b"hush" not in storage.read(name), name
    assert b"s3://results/runs" in storage.read("config.yaml")
    run = rayfl.load(f"{base}/mine?{s3}")
    assert len(run.rounds) == 4
    assert "hush" not in run.path and "hush" not in repr(run)
    assert Checkpoints(storage, run.config).find() == 3
