"""Whatever is typed or written into a config: it is a run that can start, or lines that say what is wrong.

Examples are the same on every run. RAYFL_FUZZ=20 draws twenty times as many, other ones each time.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from rayfl.config import PARTITIONS, Config, PartitionConfig, load_config
from rayfl.config.union import members
from rayfl.data.sources import SOURCES
from rayfl.data.sources.digits import Digits
from rayfl.data.sources.torchvision_sets import TorchvisionSet
from rayfl.errors import InputError
from rayfl.methods import METHODS
from rayfl.methods.options import ADDONS
from rayfl.models.zoo import ZOO
from rayfl.simulation.preparation import prepare

MORE = int(os.environ.get("RAYFL_FUZZ", "1"))


def fuzzed(examples: int) -> settings:
    return settings(
        max_examples=examples * MORE,
        derandomize=MORE == 1,
        database=None,
        deadline=timedelta(seconds=90),  # a hang, not a slow machine
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of the schema with its annotation, sections too."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field.annotation
        for kind in (field.annotation, *get_args(field.annotation), *members(field.annotation).values()):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys_of(kind, f"{prefix}{name}.")


def words_of(annotation: Any) -> list[Any]:
    """Return the words that an annotation allows, if it lists them."""
    return [w for arg in get_args(annotation) for w in ([arg] if isinstance(arg, str) else words_of(arg))]


KEYS = dict(keys_of(Config))
for _method in METHODS.values():
    KEYS |= dict(keys_of(_method.Options, "method."))
for _architecture in ZOO.values():
    KEYS |= dict.fromkeys((f"model.options.{option}" for option in _architecture.options), int)
KEYS |= {
    "model.options.no_such_option": int,
    "method.no_such_option": int,
    "no_such_key": int,
    "local..lr": int,
    "": int,
}

NUMBERS = st.one_of(
    st.integers(-3, 30),
    st.sampled_from([2**31, 2**32 + 1, 10**9, 10**9 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(10**18), 10**4000]),
    st.integers(),
    st.floats(),
    st.floats(0, 1),
    st.sampled_from([1e-320, 5e-324, 1e30, 1e31, 1.7e308, 1e-9, 0.99999999999999999]),
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "..", "/", "~", "~nobody/x", "a\0b", "\ud800", "\n", "x" * 5000, "é" * 150, "a.b.c"]),
    st.sampled_from(["1:30", "2020-01-01", "on", "null", "file://h/x", "s3://", "s3://key:secret@bucket"]),
    st.sampled_from([":", ".:a", "a:", ":a", "json:", "json:loads", "pathlib:Path", "this_is:nowhere"]),
    st.sampled_from(["rayfl.methods.method:Method", "torch.nn:Linear", "torch.nn:Identity"]),
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.sampled_from(sorted(KEYS)), inner, max_size=4)
    ),
    max_leaves=8,
)


def value_for(key: str) -> st.SearchStrategy[Any]:
    """Draw values that the key accepts, values just outside its limits, and absurd values."""
    allowed = words_of(KEYS[key])
    if key == "method.name":
        allowed = list(METHODS)
    if key == "model.name":
        allowed = list(ZOO)
    if key == "method.addons":
        allowed = [[name] for name in ADDONS]
    if key in ("partition.samples", "partition.cluster_sizes", "partition.angles"):
        return st.lists(NUMBERS, max_size=4) | VALUES
    likely = st.sampled_from(allowed) if allowed else NUMBERS
    return st.one_of(likely, likely, VALUES)


PAIRS = st.sampled_from(sorted(KEYS)).flatmap(lambda key: st.tuples(st.just(key), value_for(key)))


@pytest.fixture(autouse=True)
def offline_and_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the digits once, and download nothing."""

    def absent(self: Any, config: Any, column: Any) -> Any:
        raise InputError(f"data.source={config.source}: no usable files")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path))
    monkeypatch.setattr(TorchvisionSet, "load", absent)
    samples = SOURCES["digits"].load(None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(Digits, "load", lambda self, config, column: samples)


def assert_told(error: InputError) -> None:
    """A refusal is lines, each whole, printable and of a length that one reads."""
    assert error.lines
    for line in error.lines:
        assert line.strip() and line.isprintable()
        assert len(line) < 6000


def assert_reads_back(config: Config) -> None:
    assert load_config(yaml_of(config)) == load_config(config.to_tree())


def yaml_of(config: Config) -> dict[str, Any]:
    from rayfl.input_tree import load_yaml

    return load_yaml(config.to_yaml(), "the resolved config")


EDGES = [1, 2, 3, 5, 10_000, 10**6, 10**9, 2**31]


def typed_value(annotation: Any) -> st.SearchStrategy[Any]:
    """Draw a value of the kind that a key takes: mostly an ordinary one, at times one at the edge of its range."""
    if allowed := words_of(annotation):
        return st.sampled_from(allowed)
    kinds = {kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)}
    if bool in kinds:
        return st.booleans()
    if float in kinds:
        return st.floats(0.01, 0.99) | st.floats(0.01, 0.99) | st.sampled_from([1e-9, 1e-300, 1.0, 1e9, 1e30])
    if int in kinds:
        return st.integers(1, 8) | st.integers(1, 8) | st.sampled_from(EDGES)
    return st.none()


@st.composite
def coherent_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Keys that go together: a method with its own options, a partition with its own keys, a network with its own."""
    method = draw(st.sampled_from(sorted(METHODS)))
    kind = draw(st.sampled_from([k for k in PARTITIONS if k != "natural"]))
    model = draw(st.sampled_from(["digits_cnn", "mlp", "thesis_fashion_mnist", "fedtsdp_cnn"]))
    config: dict[str, Any] = {
        "federation": "serial",
        "method.name": method,
        "partition.kind": kind,
        "partition.clients": draw(st.integers(4, 40)),
        "model.name": model,
    }
    keys = [key for key, _ in keys_of(METHODS[method].Options, "method.") if key.count(".") == 1]
    keys += [f"partition.{key}" for key in PARTITIONS[kind].model_fields if key not in PartitionConfig.model_fields]
    keys += [f"model.options.{key}" for key in ZOO[model].options]
    keys += ["partition.validation", "partition.public"]
    keys += ["partition.test", "local.batch_size", "local.lr", "local.momentum", "local.weight_decay", "data.limit"]
    keys += ["local.steps", "local.epochs", "participation.fraction", "participation.count", "training", "seed"]
    keys += ["rounds", "evaluate.every", "state.memory_mb", "output.checkpoint_every"]
    own = {key: ZOO[model].options[key.rpartition(".")[2]] for key in keys if key.startswith("model.options.")}
    for key in draw(st.lists(st.sampled_from(keys), max_size=4, unique=True)):
        value = draw(typed_value(type(own[key]) if key in own else KEYS[key]))
        if value is not None:
            config[key] = value
    if draw(st.integers(0, 9)) == 0:
        low, high = draw(st.sampled_from(EDGES)), draw(st.sampled_from(EDGES))
        config["partition.samples"] = [low, high]
    return config


STARTED: list[bool] = []


@fuzzed(150)
@given(overrides=coherent_configs())
def test_configs_whose_keys_go_together_start_a_run_or_are_told(overrides: dict[str, Any]) -> None:
    try:
        prepared = prepare(load_config(None, overrides))
    except InputError as error:
        assert_told(error)
        STARTED.append(False)
    else:
        assert_reads_back(prepared.config)
        STARTED.append(True)


def test_many_of_these_configs_do_start_a_run() -> None:
    """Else the test before it would only try the first doors."""
    if not STARTED:
        pytest.skip("runs after the test before it")
    assert sum(STARTED) > len(STARTED) / 4, f"{sum(STARTED)} of {len(STARTED)}"


@fuzzed(250)
@given(pairs=st.lists(PAIRS, min_size=1, max_size=4), serial=st.booleans())
def test_any_values_for_the_keys_of_the_schema_start_a_run_or_are_told(
    pairs: list[tuple[str, Any]], serial: bool
) -> None:
    overrides = {"federation": "serial" if serial else "ray", "partition.clients": 5, **dict(pairs)}
    try:
        prepared = prepare(load_config(None, overrides))
    except InputError as error:
        assert_told(error)
    else:
        assert_reads_back(prepared.config)


@fuzzed(400)
@given(tree=VALUES, words=st.lists(st.tuples(st.sampled_from(sorted(KEYS)), TEXTS | VALUES.map(str)), max_size=3))
def test_any_tree_and_any_words_on_the_command_line_are_a_config_or_are_told(
    tree: Any, words: list[tuple[str, str]]
) -> None:
    try:
        config = load_config(tree if isinstance(tree, dict) else None, [f"{key}={value}" for key, value in words])
    except InputError as error:
        assert_told(error)
    else:
        assert_reads_back(config)


WHOLE = load_config({"method": {"name": "ifca", "addons": ["con"], "con": {"on": "parameters"}}}).to_yaml()
TOKENS = st.one_of(
    st.sampled_from("[]{}:,-?&*!|>%@`\"'#\n \t~.0123456789abe_"),
    st.sampled_from(["rounds", "seed: ", "local:\n  lr: ", "<<: ", "*a", "&a ", "!!int ", "---\n", "...\n", "? "]),
    st.sampled_from(["!!python/object:os.system ", "\0", "\ufeff", "\u2028", ".inf", "1e999", "1:30", "0x"]),
)


@st.composite
def damaged_yaml(draw: st.DrawFn) -> bytes:
    """A whole config in which pieces were cut out, doubled or replaced."""
    text = WHOLE
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 30)))
        text = (
            text[:begin] + "".join(draw(st.lists(TOKENS, max_size=5))) + text[end if draw(st.booleans()) else begin :]
        )
    return text.encode()


@fuzzed(500)
@given(data=st.one_of(damaged_yaml(), st.lists(TOKENS).map(lambda t: "".join(t).encode()), st.binary()))
def test_any_bytes_in_a_config_file_are_a_config_or_are_told(data: bytes) -> None:
    file = Path("config.yaml")
    file.write_bytes(data)
    try:
        config = load_config(file)
    except InputError as error:
        assert_told(error)
    else:
        assert_reads_back(config)


def test_the_fuzz_knows_the_keys_that_users_know() -> None:
    known = yaml.safe_load(Config().to_yaml())
    assert set(known) <= set(KEYS)
    assert {"method.clusters", "method.con.on", "local.lr", "model.options.hidden", "ray.actors"} <= set(KEYS)
