"""Whatever a checkpoint's JSON holds: the run continues, or a message says what is wrong; numbers are never wrong."""

import copy
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tables import assert_same
from test_fuzz_input import assert_told, fuzzed

from rayfl.config import load_config
from rayfl.errors import InputError, MethodError
from rayfl.launch import resume, simulate
from rayfl.results import Run
from rayfl.simulation.manifest import check_of
from rayfl.simulation.screen import Screen

WORDS = ["federation=serial", "partition.clients=4", "local.steps=1", "method.tune_from=1", "method.tune_every=1"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.sampled_from([2**31, 2**62, 2**63, 2**64, 10**30, -1, 1e308, float("inf"), float("nan")]),
    st.sampled_from(["", "..", "/etc/passwd", "a\nb", "x" * 300]),
    st.sampled_from([[], {}, [[]], {"a": {}}, [1, "a"], {"__array__": "x"}, "clients-000001-00000.npz", "é\0"]),
    st.recursive(st.integers(), lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifests")


@pytest.fixture(scope="module")
def begun(folder: Path) -> Path:
    words = [*WORDS, f"output.dir={folder}", "name=begun", "rounds=3", "output.checkpoint_every=1"]
    return Path(simulate(load_config(None, words), Screen(quiet=True)).path)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Run:
    return simulate(load_config(None, [*WORDS, f"output.dir={folder}", "name=whole", "rounds=4"]), Screen(quiet=True))


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything in a tree."""
    yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*path, key))


def changed(tree: Any, path: tuple[Any, ...], value: Any, remove: bool) -> Any:
    if not path:
        return value
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return tree


def gone_on(begun: Path, manifest: bytes) -> Run | InputError | MethodError:
    """Go on with a copy of the run that has this manifest."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        shutil.copytree(begun, run)
        (run / "checkpoints" / "round-000002.json").write_bytes(manifest)
        try:
            found = resume(run, ["rounds=4"], Screen(quiet=True))
            found.rounds, found.clients, found.clusters  # noqa: B018 - read while the folder is there
        except (InputError, MethodError) as error:
            return error
        return found


@fuzzed(60)
@given(data=st.data())
def test_a_damaged_manifest_is_told_or_gives_the_same_numbers(begun: Path, reference: Run, data: st.DataObject) -> None:
    whole = (begun / "checkpoints" / "round-000002.json").read_bytes()
    if data.draw(st.booleans()):
        begin = data.draw(st.integers(0, len(whole) - 1))
        end = begin + data.draw(st.integers(0, 8))
        damaged = whole[:begin] + data.draw(st.binary(max_size=8)) + whole[end:]
    else:
        tree = json.loads(whole)
        path = data.draw(st.sampled_from(sorted(places(tree), key=str)))
        damaged = json.dumps(changed(tree, path, data.draw(VALUES), data.draw(st.booleans()))).encode()
    found = gone_on(begun, damaged)
    if isinstance(found, Run):
        assert_same(reference, found)
    else:
        assert isinstance(found, InputError)
        assert_told(found)


@fuzzed(60)
@given(data=st.data())
def test_a_forged_manifest_is_told_or_the_run_goes_on(begun: Path, data: st.DataObject) -> None:
    """With a check that fits, so that what is read later is met too."""
    tree = json.loads((begun / "checkpoints" / "round-000002.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(sorted(places(tree), key=str)))
        tree = changed(tree, path, data.draw(VALUES), data.draw(st.booleans()))
        assume(isinstance(tree, dict))
    found = gone_on(begun, json.dumps(tree | {"check": check_of(tree)}).encode())
    if not isinstance(found, Run):
        assert isinstance(found, InputError), found
        assert_told(found)
