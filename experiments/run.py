"""`rayfl run` or `rayfl resume` on the Ray cluster of this node: the script for `ray submit` and `ray job submit`.

    ray submit cluster_configs/onprem.yaml experiments/run.py --config experiments/fedtsdp/digits.yaml seed=3
    ray job submit --working-dir . -- python experiments/run.py --config experiments/fedtsdp/digits.yaml seed=3
    ... experiments/run.py --resume RUN_DIR

Differs from `rayfl` in three ways: the cluster that `ray start` made on this node is used without being named; a config
may lie beside this script; and a job's results go to the home folder, since Ray removes a job's own folder.
Exit codes are those of `rayfl`: 0, 1 when the run failed, 2 for bad input, 130 or 143 when stopped by a signal.
"""

import argparse
import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayfl.config import Config

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Run an experiment on the Ray cluster of this node.", allow_abbrev=False
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--config", metavar="FILE", help="looked for from the current folder, then beside this script")
    what.add_argument("--resume", metavar="RUN_DIR", help="go on with a run that was cut short")
    parser.add_argument("--set", action="append", default=[], metavar="NAME", help="a set of the config, such as small")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="config keys, dotted")
    options = parser.parse_intermixed_args()
    for word in options.overrides:
        if "=" not in word:
            parser.error(f"'{word}' is not key=value; a config file is given as --config {word}")
    find_rayfl()
    if options.resume:
        folder = lasting(options.resume)
        if join_cluster_for(f"{folder}/config.yaml", options.overrides, []) is None:
            join_cluster()  # its config may lie in a bucket
        command = ["resume", folder, *options.overrides]
    else:
        file = options.config
        if file and not Path(file).exists() and (HERE / file).exists():
            file = str(HERE / file)
        config = join_cluster_for(file, options.overrides, options.set)
        command = ["run", *([file] if file else []), *options.overrides, *[f"--set={name}" for name in options.set]]
        if config and lasting(config.output.dir) != config.output.dir:
            command.append(f"output.dir={lasting(config.output.dir)}")
    # Ray puts the folder of argv[0] on the path of its workers: that of the checkout, where rayfl may not be installed.
    sys.argv = [str(HERE.parent / "rayfl"), *command]
    from rayfl.cli import main as rayfl

    rayfl()


def find_rayfl() -> None:
    """Make rayfl importable from the checkout that this script lies in, where it is not installed."""
    found = importlib.util.find_spec("rayfl")
    if found and found.origin:  # a mere folder of that name has no origin
        return
    if not (HERE.parent / "rayfl" / "__init__.py").is_file():
        print("error: rayfl is not installed here, and this script is not in a checkout of it", file=sys.stderr)
        sys.exit(2)
    sys.path.insert(0, str(HERE.parent))


def lasting(folder: str) -> str:
    """Return a folder for results; a relative one is below the home folder when this is a job.

    Ray unpacks a job's working directory below `runtime_resources`, and removes it some time after the job.
    """
    if "://" in folder or "runtime_resources" not in Path.cwd().parts:
        return folder
    return str(Path.home() / folder)


def join_cluster_for(file: str | None, overrides: list[str], sets: list[str]) -> "Config | None":
    """Join the cluster of this node if the config leaves open which Ray to use; return the config if it is readable."""
    from rayfl.config import load_config
    from rayfl.errors import InputError

    try:
        config = load_config(file, overrides, sets)
    except InputError:  # rayfl will tell
        return None
    if config.federation == "ray" and not config.ray.address:
        join_cluster()
    return config


def join_cluster() -> None:
    """Point $RAY_ADDRESS to the cluster that runs on this node, if there is one and no other was named."""
    if os.environ.get("RAY_ADDRESS"):
        return
    address = running_cluster()
    if address:
        print(f"using the Ray cluster at {address}", file=sys.stderr)
        os.environ["RAY_ADDRESS"] = address
    else:
        print("no Ray cluster runs on this node: starting a local Ray", file=sys.stderr)


def running_cluster() -> str | None:
    """Return the address that `ray start` left on this node, if something listens there."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    note = Path(folder, "ray", "ray_current_cluster")
    try:
        address = note.read_text().strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError):
        return None
    return address


if __name__ == "__main__":
    main()
