"""What the papers print in their tables, and our runs beside it.

The values are in `papers.csv`: paper, table, dataset, setting, K, method, metric, mean, std; accuracy and macro-F1 in
percent. A printed row is matched with a run by the run's config: method, data, partition and number of clusters. Some
rows do not show the end of a run, but the moment after fine-tuning or after a stage of SR-FCA.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rayfl.analysis.comparison import Cell, Comparison
from rayfl.analysis.measures import by_round, is_share
from rayfl.analysis.statistics import summary
from rayfl.config import Config
from rayfl.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.results import Run

_METHODS = {
    "Global": "fedavg",
    "FedAvg+": "fedavg_ensemble",
    "FedProx+": "fedprox_ensemble",
    "FL+HC": "flhc",
    "SR-FCA": "sr_fca",
    "Local-KMeans": "local_kmeans",
    "ONE_SHOT-IFCA": "oneshot_ifca",
}
_ADDONS = {"CAM": ["cam"], "CKS": ["cks"], "CON": ["con"], "CON&CKS": ["con_cks"]}
#: Metrics whose names in the file differ from those of our columns.
_METRICS = {
    "misclustering error": "misclustering",
    "test accuracy % (std column holds the printed variance)": "accuracy",
}
_VARIANCE = "printed variance"
#: Part of a method's name if each client trains its model once more before the test.
_FINETUNED = "-Finetune"


@dataclass(frozen=True)
class PaperTable:
    """Printed values beside ours, in the unit of the paper, and what could not be matched."""

    name: str
    rows: "pd.DataFrame"
    notes: list[str]


def table_names() -> list[str]:
    """Return the names of all tables: the paper and the number of the table, such as `cam 1`."""
    frame = printed()
    return list(dict.fromkeys(f"{paper} {table}" for paper, table in zip(frame["paper"], frame["table"], strict=True)))


def printed(table: str | None = None) -> "pd.DataFrame":
    """Return what a table prints, or all tables; `table` is a name such as `cam 1` or `thesis 3.1`."""
    import pandas as pd

    with (files("rayfl.analysis") / "papers.csv").open() as file:
        frame = pd.read_csv(file, dtype={"table": str, "K": str})
    frame = frame.fillna({"K": "", "method": ""})
    if table is None:
        return frame
    words = re.sub(r"[-_\s]+", " ", table.lower().replace("table", " ")).split()
    paper, number = "_".join(words[:-1]), words[-1] if words else ""
    found = frame[(frame["paper"] == paper) & (frame["table"] == number)]
    if found.empty:
        raise InputError(f"paper={table}: there is no such table; there are {', '.join(table_names())}")
    return found.reset_index(drop=True)


def beside_paper(comparison: Comparison, table: str) -> PaperTable:
    """Put the printed values of a table beside ours, with the difference."""
    import pandas as pd

    frame = printed(table)
    name = f"{frame['paper'][0]} {frame['table'][0]}"
    metrics = frame["metric"].map(lambda metric: _METRICS.get(metric, metric))
    rows, missing = [], []
    matched: set[tuple[str, str]] = set()
    wanted = frame[(metrics == comparison.metric) & frame["mean"].notna()]
    if wanted.empty:
        raise InputError(
            f"paper={name} prints no {comparison.metric}: use metric={' or '.join(dict.fromkeys(metrics))}"
        )
    sizes: dict[str, None] = {}
    lines: list[dict[str, Any]] = wanted.to_dict("records")  # type: ignore[assignment]
    for line in lines:
        row = _PrintedRow.named(line["method"])
        cells = [
            key
            for key, cell in comparison.cells.items()
            if _matches(_config(cell), {**line, "method": row.method}) and row.values(cell, comparison.metric)
        ]
        matched |= set(cells)
        if not cells:
            missing.append(_described(line))
        for key in sorted(cells):
            rows.append(_beside(line, key, comparison, row))
            sizes |= dict.fromkeys(_other_sizes(_config(comparison.cells[key]), line))
    listed = "; ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    notes = [f"printed in {name}, without a run: {listed}"] if missing else []
    others = [
        f"{method} in {setting}" for setting, method in sorted(comparison.cells) if (setting, method) not in matched
    ]
    notes += [f"not printed in {name}: {'; '.join(others)}"] if others else []
    return PaperTable(name, pd.DataFrame(rows), notes + list(sizes))


def would_match(config: Config, line: Mapping[str, Any]) -> bool:
    """Whether a finished run with this config would be compared with this line of `printed`."""
    row = _PrintedRow.named(line["method"])
    return row.reached_by(config) and _matches(config, {**line, "method": row.method})


@dataclass(frozen=True)
class _PrintedRow:
    """The method of a printed row, and the moment that the row shows: by default, the end of a run."""

    method: str
    finetuned: bool = False
    stage: tuple[str, int] | None = None  # the stage of SR-FCA, and the number of the refinement

    @classmethod
    def named(cls, name: str) -> "_PrintedRow":
        """Read the name of a row, such as `IFCA-CAM-Finetune` or `SR-FCA after 2nd REFINE`."""
        if _FINETUNED in name:
            return cls(name.replace(_FINETUNED, ""), finetuned=True)
        if found := re.fullmatch(r"(.*) after (?:(\d+)(?:st|nd|rd|th) REFINE|ONE_SHOT)", name):
            return cls(found[1], stage=("merge", int(found[2])) if found[2] else ("one_shot", 0))
        return cls(name)

    def reached_by(self, config: Config) -> bool:
        """Whether a run with this config reaches this moment."""
        options = config.method.options
        stages = 1 + int(options.get("refinements", 0))
        return (not self.finetuned or options.get("finetune") is True) and (
            self.stage is None or self.stage[1] < stages
        )

    def values(self, cell: Cell, metric: str) -> list[float]:
        """Return the metric of the runs that have it at this moment."""
        if not self.finetuned and self.stage is None:
            return [measured.value for measured in cell.values()]
        found = [self._by_round(measured.run, metric) for measured in cell.values()]
        return [float(values.iloc[-1]) for values in found if len(values)]

    def _by_round(self, run: "Run", metric: str) -> "pd.Series":
        if self.finetuned:
            return by_round(run, f"finetuned_{metric}")
        assert self.stage is not None
        name, refinement = self.stage
        values, extras = by_round(run, metric), run.extras
        if "stage" not in extras:
            return values[:0]
        there = extras["stage"] == name
        if "refinement" in extras:
            there &= extras["refinement"] == refinement
        return values[values.index.isin(extras.index[there])]


def _beside(line: dict[str, Any], key: tuple[str, str], comparison: Comparison, row: _PrintedRow) -> dict[str, Any]:
    scale = 100 if is_share(comparison.metric) else 1
    ours = summary([value * scale for value in row.values(comparison.cells[key], comparison.metric)])
    std = line["std"] ** 0.5 if _VARIANCE in line["metric"] else line["std"]
    return {
        "printed_as": line["method"],
        "dataset": line["dataset"],
        "printed_setting": line["setting"],
        "K": line["K"],
        "setting": key[0],
        "method": key[1],
        "n": ours.n,
        "mean": ours.mean,
        "std": ours.std,
        "printed_mean": line["mean"],
        "printed_std": std,
        "difference": ours.mean - line["mean"],
    }


def _config(cell: Cell) -> Config:
    return next(iter(cell.values())).run.config


def _described(line: dict[str, Any]) -> str:
    k = f", K={line['K']}" if line["K"] else ""
    return f"{line['method']} ({line['dataset']}, {line['setting']}{k})"


def _matches(config: Config, line: dict[str, Any]) -> bool:
    return (
        _same_method(config, line["method"])
        and _same_data(config, line["dataset"])
        and _same_setting(config, line["setting"])
        and _same_clusters(config, line["K"])
    )


def _same_data(config: Config, dataset: str) -> bool:
    """Whether the data set is `dataset`: by the name of the source, or by a word in the path of the user's file."""
    path = str(getattr(config.data, "path", None) or "").lower()
    return config.data.source == dataset or re.search(rf"(?<![a-z0-9]){dataset}(?![a-z0-9])", path) is not None


def _same_clusters(config: Config, printed_k: str) -> bool:
    """Whether the method was given the printed number of clusters, if there is one; FedAvg has one cluster."""
    return not printed_k.isdigit() or int(printed_k) == config.method.options.get("clusters", 1)


def _same_method(config: Config, name: str) -> bool:
    """Whether a paper's name of a method stands for the method of this config."""
    options = config.method.options
    addons = list(options.get("addons", []))
    if both := re.fullmatch(r"FedAvg\+(\w+)", name):  # thesis Table 7.5: CAM's two models, trained separately
        apart = options.get("cam", {}).get("residual") is False
        return addons == ["cam"] and apart and config.method.name == both[1].lower()
    if addons == ["cam"] and options.get("cam", {}).get("residual") is False:
        return False
    name, _, warmup = name.partition(" warmup=")
    if warmup and addons and options.get("cam", {}).get("warmup") != int(warmup.split()[0]):
        return False
    if name not in _METHODS and "-" in name:
        name, addon = name.split("-", 1)
        addon, _, on = addon.partition("-")
        if _ADDONS.get(addon) != addons:
            return False
        compared = {"para": "parameters", "rep": "representations", "": None}.get(on, "unknown")
        given = options.get("con", {}).get("on", "parameters")
        return config.method.name == name.lower() and compared in (None, given)
    return not addons and config.method.name == _METHODS.get(name, name.lower())


def _same_setting(config: Config, setting: str) -> bool:
    """Whether the partition is the one that a paper describes; sizes are left to `_other_sizes`."""
    model, comma, rest = setting.partition(", ")
    if comma and model in ("CNN", "ResNet18"):
        if (model == "ResNet18") != ("resnet" in config.model.name.lower()):
            return False
        setting = rest
    partition = config.partition
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", setting)]
    wanted: dict[str, Any] = {}
    if setting.startswith("cluster_dirichlet"):
        wanted = {"kind": "cluster_dirichlet", "alpha_cluster": numbers[0], "alpha_client": numbers[1]}
    elif setting.startswith("cluster_classes"):
        wanted = {"kind": "cluster_classes", "classes_cluster": numbers[0], "classes_client": numbers[1]}
    elif setting.startswith(("dirichlet", "non-IID")):
        wanted = {"kind": "dirichlet", "alpha": numbers[0]}
    elif setting.startswith(("classes", "pathological")) or setting.endswith("classes per client"):
        wanted = {"kind": "classes", "classes": numbers[0]}
    elif setting == "IID":
        wanted = {"kind": "iid"}
    elif setting.startswith("inverted"):
        wanted = {"kind": "transforms", "transform": "inversion", "clusters": numbers[0]}
    elif setting.startswith("rotated 180"):
        wanted = {"kind": "transforms", "transform": "rotation", "angles": [0, 180]}
    elif setting.startswith("rotated"):
        wanted = {"kind": "transforms", "transform": "rotation", "clusters": numbers[0], "angles": None}
    elif setting.endswith("real"):
        wanted = {"kind": "natural"}
    return bool(wanted) and all(getattr(partition, key, None) == value for key, value in wanted.items())


def _other_sizes(config: Config, line: dict[str, Any]) -> list[str]:
    clients = re.search(r"\bm=(\d+)", line["setting"])
    if clients is None or int(clients[1]) == config.partition.clients:
        return []
    return [f"the paper has {clients[1]} clients ({line['setting']}), the runs have {config.partition.clients}"]
