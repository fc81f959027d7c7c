"""What `rayfl doctor` says about a config: where its run would be, what fits there, and what would go wrong."""

import importlib.metadata
import platform

from rich.console import Console

from rayfl.config import Config
from rayfl.own_code import exits_told
from rayfl.simulation.folder import check_output
from rayfl.simulation.preparation import Prepared, prepare


def examine(config: Config, console: Console) -> None:
    """Check everything that can be checked before a run and print the findings; InputError if the run cannot start."""
    serial = config.federation == "serial"
    packages = ["rayfl", *([] if serial else ["ray"]), "torch", "pyarrow"]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    console.print(f"python {platform.python_version()}, {versions}")
    check_output(config)
    with exits_told():
        prepared = prepare(config)
    console.print(
        f"{config.data.source}: {len(prepared.dataset.labels)} samples, {prepared.dataset.classes} classes;"
        f" {config.model.name}: {prepared.facts.layout.parameters:,} parameters; training: {prepared.config.training}"
    )
    if prepared.gpu_memory is not None:
        console.print(str(prepared.gpu_memory))
    warnings = _in_this_process(prepared, console) if serial else _on_ray(prepared, console)
    for warning in (*prepared.notes, *warnings):
        console.print(f"warning: {warning}", style="yellow", markup=False)
    console.print("nothing would go wrong" if not warnings else "it would run")


def _in_this_process(prepared: Prepared, console: Console) -> list[str]:
    """Print what a run without Ray uses; return warnings about settings that it ignores."""
    import torch

    clients, config = prepared.partition.clients, prepared.config
    console.print(f"this run would train its {clients} clients in this process, on its CPU ({config.cpu_capability})")
    warnings = [
        f"ray.{key}={getattr(config.ray, key)} is not used with federation=serial"
        for key, field in type(config.ray).model_fields.items()
        if getattr(config.ray, key) != field.get_default(call_default_factory=True)
    ]
    if torch.cuda.is_available():
        warnings.append("federation=serial uses no GPU: for GPUs, use federation=ray with ray.actors_per_gpu")
    return warnings


def _on_ray(prepared: Prepared, console: Console) -> list[str]:
    """Print what Ray offers and how many actors fit; return warnings about settings that waste resources."""
    from rayfl.actors.cluster import actors_that_fit, advice, connected, nodes

    clients, config = prepared.partition.clients, prepared.config.ray
    with connected(config):
        for node in nodes(config):
            console.print(f"node {node.offer}")
        console.print(f"this run would use {actors_that_fit(config, clients)} client actors for {clients} clients")
    return advice(config)
