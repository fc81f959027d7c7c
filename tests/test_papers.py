"""What the papers print, and runs beside it."""

import math
from pathlib import Path

import pytest
from written_runs import write_run

from rayfl.analysis.comparison import compare_runs
from rayfl.analysis.comparison_tables import render
from rayfl.analysis.papers import PaperTable, beside_paper, printed, table_names
from rayfl.errors import InputError
from rayfl.results import load_all

CLUSTERED = ["data.source=cifar10", "partition.kind=cluster_dirichlet"]


def beside(folder: Path, table: str, metric: str = "accuracy") -> PaperTable:
    return beside_paper(compare_runs(load_all(folder), metric=metric), table)


def matched(folder: Path, table: str, metric: str = "accuracy") -> list[tuple[str, str, str, float]]:
    rows = beside(folder, table, metric).rows
    return [(r.printed_as, r.dataset, r.printed_setting, r.printed_mean) for r in rows.itertuples()]


def test_every_printed_value_comes_with_the_package() -> None:
    frame = printed()
    assert len(frame) == 3169
    assert frame.groupby("paper").size().to_dict() == {
        "cam": 224,
        "fedac": 32,
        "fedtsdp": 141,
        "sr_fca": 59,
        "thesis": 2713,
    }
    assert list(frame.columns) == ["paper", "table", "dataset", "setting", "K", "method", "metric", "mean", "std"]


def test_tables_are_named_by_paper_and_number_in_any_spelling() -> None:
    assert len(table_names()) == 34 and {"cam 1", "sr_fca 4", "thesis 3.1"} <= set(table_names())
    assert len(printed("cam 1")) == 112
    for name in ("SR-FCA 1", "sr fca Table 1", "sr_fca  1"):
        assert set(printed(name)["paper"]) == {"sr_fca"} and len(printed(name)) == 18
    with pytest.raises(InputError, match=r"paper=cam 7: there is no such table; there are thesis 3\.1, .*sr_fca 4"):
        printed("cam 7")


def test_printed_values_stand_beside_ours_with_the_difference(tmp_path: Path) -> None:
    for seed, value in enumerate((0.68, 0.72)):
        write_run(tmp_path / f"a{seed}", "fesem", seed, [value], overrides=[*CLUSTERED, "method.clusters=10"])
    (row,) = beside(tmp_path, "thesis 7.5").rows.to_dict("records")
    assert (row["printed_as"], row["printed_mean"], row["printed_std"], row["K"]) == ("FeSEM", 66.89, 2.18, "10")
    assert row["n"] == 2 and row["mean"] == pytest.approx(70.0) and row["std"] == pytest.approx(2 * math.sqrt(2))
    assert row["difference"] == pytest.approx(70.0 - 66.89)
    comparison = compare_runs(load_all(tmp_path))
    text = render(comparison, "markdown", beside_paper(comparison, "thesis 7.5"))
    line = "| fesem | cifar10 | cluster_dirichlet (0.1,10) | 10 | 70.00 ± 2.83 | 2 | 66.89 ± 2.18 | +3.11 |"
    assert line in text.splitlines()


def test_what_did_not_match_is_said_on_both_sides(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fesem", overrides=[*CLUSTERED, "method.clusters=10"])
    write_run(tmp_path / "b", "fesem", overrides=[*CLUSTERED, "method.clusters=7"])
    write_run(tmp_path / "c", "fedac", overrides=CLUSTERED)
    found = beside(tmp_path, "thesis 7.5")
    assert len(found.rows) == 1
    assert (
        "printed in thesis 7.5, without a run: FedAvg (cifar10, cluster_dirichlet (0.1,10), K=1); IFCA"
        in found.notes[0]
    )
    assert found.notes[1] == (
        "not printed in thesis 7.5: fedac in cifar10, cluster_dirichlet; fesem clusters=7 in cifar10, cluster_dirichlet"
    )


METHODS = [
    ("fedavg", [], "thesis 7.5", "FedAvg"),
    ("ifca", ["method.clusters=10"], "thesis 7.5", "IFCA"),
    ("ifca", ["method.clusters=10", "method.addons=[cam]"], "thesis 7.5", "IFCA-CAM"),
    ("ifca", ["method.clusters=10", "method.addons=[cam]", "method.cam.residual=false"], "thesis 7.5", "FedAvg+IFCA"),
    ("fedavg_ensemble", ["method.clusters=5"], "thesis 3.1", "FedAvg+"),
    ("wecfl", ["method.clusters=5"], "thesis 3.1", "WeCFL"),
    ("ifca", ["method.clusters=5", "method.addons=[con]"], "thesis 4.1", "IFCA-CON-para"),
    (
        "ifca",
        ["method.clusters=5", "method.addons=[con]", "method.con.on=representations"],
        "thesis 4.1",
        "IFCA-CON-rep",
    ),
    ("fesem", ["method.clusters=5", "method.addons=[cks]"], "thesis 5.1", "FeSEM-CKS"),
    ("fesem", ["method.clusters=5", "method.addons=[con_cks]"], "thesis 6.1", "FeSEM-CON&CKS"),
]


@pytest.mark.parametrize(("method", "options", "table", "name"), METHODS)
def test_methods_are_found_by_their_printed_names(
    tmp_path: Path, method: str, options: list[str], table: str, name: str
) -> None:
    write_run(tmp_path / "a", method, overrides=[*CLUSTERED, *options])
    assert {row[0] for row in matched(tmp_path, table)} == {name}


def test_data_of_ones_own_are_found_by_the_name_of_their_file(tmp_path: Path) -> None:
    keys = ["data.source=npz", "data.path=somewhere/pathmnist.npz", "partition.kind=cluster_dirichlet"]
    write_run(tmp_path / "a", overrides=keys)
    assert {row[1] for row in matched(tmp_path, "thesis 3.2")} == {"pathmnist"}
    assert matched(tmp_path, "sr_fca 1") == []  # which has mnist


SETTINGS = [
    ("thesis 3.3", "fashion_mnist", ["partition.kind=classes", "partition.classes=2"], "classes 2"),
    ("thesis 3.3", "fashion_mnist", ["partition.kind=dirichlet", "partition.alpha=0.1"], "dirichlet 0.1"),
    ("thesis 3.1", "fashion_mnist", ["partition.kind=cluster_classes"], "cluster_classes (3,2)"),
    ("fedac 1", "cifar10", ["partition.kind=classes", "partition.classes=3"], "pathological n=3"),
    ("fedtsdp 3", "cifar10", ["partition.kind=iid"], "CNN, IID"),
    ("fedtsdp 3", "cifar10", ["partition.kind=iid", "model.name=resnet18"], "ResNet18, IID"),
    ("sr_fca 1", "mnist", ["partition.transform=inversion"], "inverted (2 clusters) m=100 n=600"),
    ("sr_fca 1", "mnist", [], "rotated (4 clusters) m=100 n=600"),
    ("sr_fca 1", "cifar10", ["partition.angles=[0, 180]"], "rotated 180 (2 clusters) m=32 n=3125"),
]


@pytest.mark.parametrize(("table", "source", "keys", "setting"), SETTINGS)
def test_settings_are_found_by_the_partition(
    tmp_path: Path, table: str, source: str, keys: list[str], setting: str
) -> None:
    write_run(tmp_path / "a", "fedavg", overrides=[f"data.source={source}", *keys])
    assert [row[1:3] for row in matched(tmp_path, table)] == [(source, setting)]


def test_other_alphas_and_other_data_do_not_match(tmp_path: Path) -> None:
    write_run(
        tmp_path / "a", overrides=["data.source=fashion_mnist", "partition.kind=dirichlet", "partition.alpha=0.3"]
    )
    write_run(tmp_path / "b", overrides=["data.source=digits", "partition.kind=dirichlet", "partition.alpha=0.1"])
    assert matched(tmp_path, "thesis 3.3") == []


def test_another_number_of_clients_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", overrides=["data.source=mnist", "partition.clients=40"])
    notes = beside(tmp_path, "sr_fca 1").notes
    assert "the paper has 100 clients (rotated (4 clusters) m=100 n=600), the runs have 40" in notes


def test_macro_f1_and_misclustering_are_compared_with_what_is_printed_of_them(tmp_path: Path) -> None:
    write_run(
        tmp_path / "a",
        "sr_fca",
        values=[0.4],
        metric="macro_f1",
        summary={"misclustering": 0.1},
        overrides=["data.source=mnist"],
    )
    (row,) = beside(tmp_path, "sr_fca 2", "misclustering").rows.to_dict("records")
    assert (row["printed_mean"], row["mean"], row["difference"]) == pytest.approx((0.0, 0.1, 0.1))
    with pytest.raises(InputError, match="paper=sr_fca 2 prints no macro_f1: use metric=misclustering"):
        beside(tmp_path, "sr_fca 2", "macro_f1")


def test_a_printed_variance_becomes_a_deviation(tmp_path: Path) -> None:
    line = printed("fedtsdp 6").query("method == 'FedAvg' and setting.str.startswith('CNN')").iloc[0]
    keys = ["partition.kind=dirichlet", "partition.alpha=0.5", "data.source=svhn"]
    write_run(tmp_path / "a", overrides=[*keys, "model.name=mlp"])
    (row,) = beside(tmp_path, "fedtsdp 6").rows.to_dict("records")
    assert (row["printed_mean"], row["printed_std"]) == (line["mean"], math.sqrt(line["std"])) == (90.36, 0.2)


@pytest.mark.parametrize(
    ("cam", "plain", "tuned"),
    [
        ([], "IFCA-CAM", "IFCA-CAM-Finetune"),
        (["method.cam.residual=false"], "FedAvg+IFCA", "FedAvg-Finetune+IFCA-Finetune"),
    ],
)
def test_fine_tuned_rows_stand_beside_fine_tuned_models(tmp_path: Path, cam: list[str], plain: str, tuned: str) -> None:
    keys = [*CLUSTERED, "method.clusters=10", "method.addons=[cam]", "method.finetune=true", *cam]
    for seed, after in enumerate((0.7, 0.9)):
        extras = [{}, {"finetuned_accuracy": after}]
        write_run(tmp_path / f"a{seed}", "ifca", seed, [0.3, 0.6], overrides=keys, extras=extras)
    rows = {row["printed_as"]: row for row in beside(tmp_path, "thesis 7.5").rows.to_dict("records")}
    assert set(rows) == {plain, tuned}
    assert rows[plain]["mean"] == pytest.approx(60) and rows[tuned]["mean"] == pytest.approx(80)
    assert rows[tuned]["n"] == 2 and rows[tuned]["difference"] == pytest.approx(80 - rows[tuned]["printed_mean"])


def test_rows_after_a_refinement_stand_beside_the_round_of_its_merge(tmp_path: Path) -> None:
    stages = [("one_shot", 0), ("refine", 1), ("merge", 1), ("refine", 2), ("merge", 2), ("train", 2)]
    extras = [{"stage": stage, "refinement": number} for stage, number in stages]
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    write_run(tmp_path / "a", "sr_fca", values=values, overrides=["data.source=mnist"], extras=extras)
    rows = {row["printed_as"]: row["mean"] for row in beside(tmp_path, "sr_fca 4").rows.to_dict("records")}
    assert rows == {"SR-FCA after 1st REFINE": pytest.approx(30), "SR-FCA after 2nd REFINE": pytest.approx(50)}
    (last,) = beside(tmp_path, "sr_fca 1").rows.to_dict("records")
    assert last["mean"] == pytest.approx(60)


def test_a_run_without_that_moment_matches_no_such_row(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "sr_fca", values=[0.1], overrides=["data.source=mnist"], extras=[{"stage": "one_shot"}])
    assert matched(tmp_path, "sr_fca 4") == []
    write_run(tmp_path / "b", "ifca", overrides=[*CLUSTERED, "method.clusters=10", "method.addons=[cam]"])
    assert {row[0] for row in matched(tmp_path, "thesis 7.5")} == {"IFCA-CAM"}
