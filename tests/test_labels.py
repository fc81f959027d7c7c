"""Labels of runs that are shown together: the method, its add-ons, and what differs."""

from types import SimpleNamespace

from rayfl.analysis.labels import config_value, labels
from rayfl.analysis.table_labels import table_labels
from rayfl.config import load_config


def configured(*overrides: str) -> SimpleNamespace:
    return SimpleNamespace(config=load_config(None, list(overrides)))


def named(*runs: SimpleNamespace) -> list[str]:
    return [str(label) for label in labels(runs)]


def test_a_label_shows_the_method_and_its_add_ons() -> None:
    assert named(
        configured("method.name=ifca"), configured("method.name=ifca", "method.addons=[cam]"), configured("seed=3")
    ) == ["ifca", "ifca+cam", "fedac"]


def test_runs_that_differ_in_seed_output_or_machine_have_one_label() -> None:
    others = ["seed=1", "name=other", "output.dir=elsewhere", "ray.actors=3", "federation=serial", "training=loop"]
    assert set(named(configured(), *[configured(other) for other in others])) == {"fedac"}


def test_a_label_shows_only_keys_that_differ_between_runs_of_its_method() -> None:
    found = named(
        configured("method.name=fedac", "method.mu=0.1", "method.lam=0.5"),
        configured("method.name=fedac", "method.mu=1.0", "method.lam=0.5"),
        configured("method.name=ifca", "method.clusters=7"),
    )
    assert found == ["fedac mu=0.1", "fedac mu=1", "ifca"]


def test_a_setting_that_differs_is_shown_for_all_methods_and_kept_apart_from_the_method() -> None:
    runs = [
        configured(f"method.name={m}", "partition.kind=dirichlet", f"partition.alpha={a}")
        for m in ("fedavg", "ifca")
        for a in (0.1, 1.0)
    ]
    found = labels(runs)
    assert [str(label) for label in found] == ["fedavg alpha=0.1", "fedavg alpha=1", "ifca alpha=0.1", "ifca alpha=1"]
    assert found[0].method == "fedavg"
    assert found[0].setting == "alpha=0.1"


def test_two_keys_with_the_same_last_part_are_written_out() -> None:
    found = named(
        configured("method.name=ifca", "method.clusters=2", "partition.clusters=2"),
        configured("method.name=ifca", "method.clusters=3", "partition.clusters=4"),
    )
    assert found == ["ifca method.clusters=2 partition.clusters=2", "ifca method.clusters=3 partition.clusters=4"]


def test_a_config_value_is_found_by_its_dotted_key() -> None:
    run = configured("method.name=fedac", "method.mu=0.25", "partition.kind=iid", "partition.samples=[5, 9]")
    assert config_value(run, "method.mu") == 0.25
    assert config_value(run, "partition.samples") == "[5, 9]"
    assert config_value(run, "method.nothing") is None


def test_values_are_short_unless_two_would_look_the_same() -> None:
    npz = ["data.source=npz", "method.name=fedavg"]
    assert named(configured(*npz, "data.path=a/one.npz"), configured(*npz, "data.path=a/two.npz")) == [
        "fedavg path=one",
        "fedavg path=two",
    ]
    assert named(configured(*npz, "data.path=a/one.npz"), configured(*npz, "data.path=b/one.npz")) == [
        "fedavg path=a/one.npz",
        "fedavg path=b/one.npz",
    ]
    sizes = [[1] * 19 + [2], [1] * 18 + [2, 1]]
    found = named(*[configured("partition.kind=cluster_classes", f"partition.cluster_sizes={each}") for each in sizes])
    assert len(set(found)) == 2
    near = named(configured("local.lr=0.1234567"), configured("local.lr=0.1234568"))
    assert near == ["fedac lr=0.1234567", "fedac lr=0.1234568"]


def test_tables_and_figures_write_a_method_and_a_setting_alike() -> None:
    runs = [
        configured("method.name=fedprox", f"method.mu={mu}", f"model.name={model}")
        for mu in (0.5, 1.0)
        for model in ("mlp", "cnn")
    ]
    figures, table = labels(runs), table_labels([run.config for run in runs])
    assert [label.method for label in figures] == table.rows == ["fedprox mu=0.5"] * 2 + ["fedprox mu=1"] * 2
    assert {label.setting for label in figures} == {"model=mlp", "model=cnn"}
    assert set(table.columns) == {"digits, transforms, model=mlp", "digits, transforms, model=cnn"}
