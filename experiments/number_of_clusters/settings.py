"""The settings of settings.yaml, and the rayfl config of each."""

from pathlib import Path
from typing import Any

import yaml

FACTORS = (
    "data",
    "plant",
    "clusters",
    "clients",
    "sizes",
    "per_client",
    "participation",
    "steps",
    "nuisance",
    "network",
)


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """Return all settings by name, each with a level of every factor."""
    file = yaml.safe_load(path.read_text())
    found: dict[str, dict[str, Any]] = {}
    for given in file["settings"]:
        setting = {"per_client": None, "nuisance": None, "whole": False} | file["default"] | given
        name = "-".join(str(setting[key]) for key in ("data", "plant", "clusters", "clients"))
        for key in given:
            if key not in ("data", "plant", "clusters", "clients"):
                value = setting[key]
                name += f" {key}={'-'.join(map(str, value)) if isinstance(value, list) else value}"
        if name in found:
            raise ValueError(f"{path}: the setting {name!r} stands there twice")
        found[name] = setting
    return found


def words(setting: dict[str, Any]) -> list[str]:
    """Return a setting as overrides of rayfl's config."""
    hidden = 32 if setting["data"] == "digits" else 64
    options = f"model.options={{hidden: {hidden}}}" if setting["network"] == "mlp" else "model.options={}"
    partition = _whole(setting) if setting["whole"] else _composed(setting)
    return [
        f"data.source={setting['data']}",
        f"model.name={setting['network']}",
        options,
        f"local.steps={setting['steps']}",
        f"participation.fraction={setting['participation']}",
        f"partition={yaml.safe_dump(partition, default_flow_style=True, width=10_000).strip()}",
    ]


def _angles(clusters: int) -> list[float]:
    return [360 * k / clusters for k in range(clusters)]


def _whole(setting: dict[str, Any]) -> dict[str, Any]:
    """Each cluster is dealt all samples, so that there are enough for many clients."""
    partition = {"kind": "transforms", "clients": setting["clients"], "whole_per_cluster": True}
    if setting["plant"] == "rotation":
        partition |= {"transform": "rotation", "angles": _angles(setting["clusters"])}
    else:
        partition |= {"transform": "label_permutation", "clusters": setting["clusters"]}
    return _with_sizes(partition, setting)


def _composed(setting: dict[str, Any]) -> dict[str, Any]:
    plant, clusters = setting["plant"], setting["clusters"]
    partition: dict[str, Any] = {"kind": "composed", "clients": setting["clients"]}
    if clusters > 1:
        partition["clusters"] = clusters
    if setting["nuisance"]:
        partition["labels"] = {"kind": "dirichlet", "alpha": setting["nuisance"]}
    if setting["per_client"]:
        least, most = setting["per_client"]
        partition["quantity"] = {"kind": "range", "min": least, "max": most}
    partition |= {
        "none": {},
        "rotation": {"features": [{"kind": "rotation", "angle": _angles(clusters)}]},
        "inversion": {"features": [{"kind": "inversion", "clusters": [1]}]},
        "labels": {"concept": [{"kind": "permutation"}]},
        "some_labels": {"concept": [{"kind": "permutation", "labels": 3}]},
        "swap": {"concept": [{"kind": "swap", "random": 1}]},
        "classes": {"labels": {"kind": "cluster_classes", "classes_cluster": 3, "classes_client": 2}},
        "dirichlet": {"labels": {"kind": "cluster_dirichlet", "alpha_cluster": 0.1, "alpha_client": 10.0}},
    }[plant]
    return _with_sizes(partition, setting)


def _with_sizes(partition: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    if setting["sizes"] == "equal":
        return partition
    partition.pop("clients")
    partition.pop("clusters", None)
    return partition | {"cluster_sizes": setting["sizes"], "clients": setting["clients"]}
