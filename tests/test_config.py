"""The config: what goes in comes out, and every fault is one line that names key, value and cure."""

from pathlib import Path

import pytest
import yaml

from rayfl.config import Config, load_config
from rayfl.errors import InputError
from rayfl.simulation.preparation import resolve


def lines_of(given: object, overrides: list[str] | None = None) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        load_config(given, overrides or [])  # type: ignore[arg-type]
    return caught.value.lines


def test_the_embedded_default_is_fedac_on_digits_with_planted_clusters() -> None:
    config = load_config()
    assert (config.method.name, config.data.source, config.partition.kind) == (
        "fedac",
        "digits",
        "transforms",
    )
    assert (config.partition.clients, config.partition.clusters) == (20, 4)
    assert config.local.steps == 10


def test_the_resolved_yaml_reads_back_as_the_same_config(tmp_path: Path) -> None:
    config = load_config({"partition": {"kind": "dirichlet", "alpha": 0.3, "clients": 7}, "method": {"mu": 0.2}})
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert load_config(file) == config
    assert load_config(config) == config


def test_overrides_win_over_the_file_and_are_read_as_yaml(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("rounds: 5\nlocal: {epochs: 2}\n")
    config = load_config(file, ["rounds=9", "partition.samples=[5, 9]", "method.tuning=none", "local.lr=1"])
    assert (config.rounds, config.partition.samples, config.local.lr) == (9, [5, 9], 1.0)
    assert config.method.options == {"tuning": "none"}


def test_learning_rates_may_be_written_with_an_exponent() -> None:
    assert load_config(None, ["local.lr=1e-3"]).local.lr == 0.001
    assert load_config(None, ["local.lr=5E-2"]).local.lr == 0.05


def test_another_method_by_override_leaves_the_files_options_for_the_first_one_out() -> None:
    file = {"method": {"name": "fedac", "tuning": "granularity", "mu": 0.3}}
    assert load_config(file, ["method.name=fedprox"]).method.options_among({"mu"}) == {"mu": 0.3}
    told = load_config(file, ["method.name=fedprox", "method.lam=2"]).method.options_among({"mu"})
    assert told == {"mu": 0.3, "lam": 2}  # what was typed is not left out: it will be refused
    assert load_config(file).method.options_among({"mu"}) == {"mu": 0.3, "tuning": "granularity"}


def test_keyword_overrides_merge_into_sections() -> None:
    config = load_config({"local": {"lr": 0.5}}, {"local": {"batch_size": 8}, "method.name": "fedavg"})
    assert (config.local.lr, config.local.batch_size, config.method.name) == (0.5, 8, "fedavg")


def test_an_override_displaces_its_rival_in_the_file() -> None:
    assert load_config({"local": {"epochs": 2}}, ["local.steps=3"]).local.epochs is None
    assert load_config({"participation": {"fraction": 0.5}}, ["participation.count=3"]).participation.fraction is None


def test_each_kind_of_partition_fills_only_its_own_defaults() -> None:
    partition = load_config({"partition": {"kind": "cluster_classes", "clients": 10}}).partition
    assert (partition.clusters, partition.classes_cluster, partition.classes_client) == (5, 3, 2)
    assert not hasattr(partition, "alpha")


def test_cluster_sizes_say_how_many_clients_and_clusters_there_are() -> None:
    partition = load_config({"partition": {"kind": "cluster_dirichlet", "cluster_sizes": [3, 4, 5]}}).partition
    assert (partition.clients, partition.clusters) == (12, 3)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"round": 5}, ["round=5", "did you mean 'rounds'", "allowed:", "seed"]),
        ({"local": {"learning_rate": 1.0}}, ["local.learning_rate=1.0", "lr_decay"]),
        ({"lr": 1.0}, ["lr=1.0", "did you mean 'local.lr'?", "allowed:", "rounds"]),
        ({"ROUNDS": 1}, ["ROUNDS=1", "did you mean 'rounds'?", "allowed:"]),
        (
            {"data": {"source": "tsv"}},
            ["data.source='tsv'", "tables are read by parquet and csv", "allowed: digits, mnist"],
        ),
        ({"rounds": "many"}, ["rounds='many'", "integer"]),
        ({"local.lr": 0.1}, ["local.lr=0.1", "here, write local: {lr: ...}"]),
        ({"seed": "0..4"}, ["seed='0..4'", "integer", "rayfl sweep"]),
        ({"seed": [1, 2]}, ["seed=[1, 2]", "integer", "rayfl sweep"]),
        ({"method": "fedavg"}, ["method='fedavg'", "a mapping of keys", "did you mean method.name=fedavg?"]),
        ({"data": "mnist"}, ["data='mnist'", "a mapping of keys", "did you mean data.source=mnist?"]),
        ({"local": 3}, ["local=3", "a mapping of keys, such as local.steps"]),
        ({"local": {"augment": "crop"}}, ["local.augment='crop'", "in brackets: local.augment=[crop]"]),
        ({"rounds": 0}, ["rounds=0", "greater than or equal to 1"]),
        ({"data": {"source": "mnst"}}, ["data.source='mnst'", "did you mean 'mnist'", "cifar10"]),
        ({"data": {"source": "npz"}}, ["data.path is missing", "npz"]),
        ({"data": {"path": "x.npz"}}, ["data.path=x.npz", "digits", "data.root"]),
        ({"partition": {"kind": "diriclet"}}, ["partition.kind='diriclet'", "did you mean 'dirichlet'"]),
        ({"partition": {"kind": "iid", "alpha": 1.0}}, ["partition.alpha=1.0", "iid", "dirichlet"]),
        ({"partition": {"clusters": 5}}, ["partition.clusters=5", "rotation", "4"]),
        ({"partition": {"clients": 3}}, ["partition.clusters=4", "partition.clients=3"]),
        ({"partition": {"cluster_sizes": [1, 2], "clients": 5}}, ["cluster_sizes=[1, 2]", "add up to 3"]),
        ({"partition": {"samples": [9, 3]}}, ["partition.samples=[9, 3]", "min"]),
        ({"partition": {"test": 1.5}}, ["partition.test=1.5", "official"]),
        ({"partition": {"kind": "natural"}}, ["partition.column is missing"]),
        ({"local": {"steps": 1, "epochs": 1}}, ["local.steps=1", "local.epochs=1", "remove one"]),
        ({"participation": {"count": 50}}, ["participation.count=50", "partition.clients=20"]),
        ({"participation": {"count": 5, "fraction": 0.1}}, ["participation.count=5", "remove one"]),
        ({"ray": {"gpus_per_actor": 0.5, "actors_per_gpu": 2}}, ["ray.gpus_per_actor=0.5", "remove one"]),
        ({"ray": {"gpus_per_actor": 1.5}}, ["ray.gpus_per_actor=1.5", "whole number"]),
        ({"name": "../up"}, ["name='../up'", "folder"]),
        ({"federation": "spark"}, ["federation='spark'", "ray", "serial"]),
        ({"local": 3}, ["local=3"]),
    ],
)
def test_a_fault_is_one_line_with_key_value_and_cure(given: dict, names: list[str]) -> None:
    (line,) = lines_of(given)
    assert "\n" not in line
    for name in names:
        assert name in line, line


@pytest.mark.parametrize("name", ["tsv", "excel", "coco", "zzz"])
def test_a_source_that_is_not_close_to_any_suggests_none_and_lists_all(name: str) -> None:
    (line,) = lines_of({"data": {"source": name}})
    assert "did you mean" not in line
    assert "allowed: digits, mnist, fashion_mnist, cifar10, cifar100, svhn, image_folder, npz, parquet, csv, " in line


@pytest.mark.parametrize("method", ["fedac", "fedavg", "ifca"])
def test_a_mistyped_method_name_suggests_and_lists_name(method: str) -> None:
    config = load_config(None, [f"method.name={method}", "method.nam=fedavg"])
    with pytest.raises(InputError, match=r"there is no key 'nam' \(did you mean 'name'\?\); allowed with .*: name, "):
        resolve(config)


def test_several_faults_are_told_at_once() -> None:
    assert len(lines_of({"rounds": 0, "seed": -1, "modle": {}})) == 3


@pytest.mark.parametrize("text", ["rounds", "=5", "local.lr.x=3", "a=[1"])
def test_an_override_that_is_none_is_told(text: str) -> None:
    (line,) = lines_of({"local": {"lr": 0.1}}, [text])
    assert text.partition("=")[0] in line


def test_unreadable_files_are_told(tmp_path: Path) -> None:
    assert "cannot be read" in lines_of(tmp_path / "none.yaml")[0]
    broken = tmp_path / "broken.yaml"
    broken.write_text("rounds: [1\nseed: 2")
    assert "not valid YAML at line 2" in lines_of(broken)[0]
    broken.write_text("- a\n- b\n")
    assert "must hold keys" in lines_of(broken)[0]
    broken.write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in lines_of(broken)[0]


def test_yaml_cannot_make_python_objects(tmp_path: Path) -> None:
    file = tmp_path / "evil.yaml"
    file.write_text("name: !!python/object/apply:os.system ['true']\n")
    assert "not valid YAML" in lines_of(file)[0]


def test_cohort_size_is_a_share_or_a_count_and_never_nobody() -> None:
    assert load_config({"participation": {"fraction": 0.25}}).cohort_size(20) == 5
    assert load_config({"participation": {"fraction": 0.01}}).cohort_size(20) == 1
    assert load_config({"participation": {"count": 7}}).cohort_size(20) == 7
    assert load_config().cohort_size(20) == 20


def test_the_resolved_yaml_lists_keys_in_the_order_of_the_tree() -> None:
    resolved = yaml.safe_load(Config().to_yaml())
    assert list(resolved) == [key for key in Config.model_fields if key in resolved]


def test_keys_of_yaml_are_the_text_that_stands_there(tmp_path: Path) -> None:
    """YAML 1.1 reads `on` as true, and `method.con.on` is a key of ours."""
    file = tmp_path / "c.yaml"
    file.write_text("method: {name: ifca, addons: [con], con: {on: parameters}}\nname: 2020-01-01\n")
    config = load_config(file)
    assert config.method.options["con"] == {"on": "parameters"}
    assert config.name == "2020-01-01"


@pytest.mark.parametrize(
    "text", ["1e-3", "1:30", "2020-01-01", "010", "on", "null", "0x1f", "1_000", ".inf", "~", "<<", "*a"]
)
def test_text_that_looks_like_something_else_reads_back_as_the_same_text(text: str, tmp_path: Path) -> None:
    config = load_config({"model": {"options": {"a": text, text: 1}}})
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert load_config(file).model.options == {"a": text, text: 1}


def test_a_mapping_from_python_is_bounded_like_a_file() -> None:
    endless: dict = {}
    endless["model"] = endless
    assert "nested more than 32 deep" in lines_of(endless)[0]
    assert "seed=(int of about 5000 digits) is too large" in lines_of({"seed": 10**5000})[0]
    assert "key 3 is of type int" in lines_of({3: 1})[0]
    assert "more than 200,000 values" in lines_of({"partition": {"cluster_sizes": [1] * 300_000}})[0]


def test_a_line_of_an_error_has_no_line_breaks_or_terminal_codes() -> None:
    (line,) = lines_of({"data": {"path": "a\nerror: b\x1b[2J"}})
    assert "data.path=a\\nerror: b\\x1b[2J" in line
