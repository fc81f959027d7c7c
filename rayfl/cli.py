"""The commands, such as `rayfl run` and `rayfl sweep`. Errors of a user are one line each."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rayfl.config import Config, load_config
from rayfl.errors import InputError, RayflError
from rayfl.simulation.signals import Stopped, stopping

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Clustered federated learning, simulated on Ray.",
)
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.yaml] [key=value ...]",
        show_default=False,
        help="a YAML file, and keys that change it: rounds=10 method.name=ifca seed=3. `rayfl config` lists the keys",
    ),
]
#: An unknown option is most likely a key, such as --rounds 3: the words are passed on, and `_checked` says so.
_KEYS = {"ignore_unknown_options": True}

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME", help="a set of the config file, such as small; more than one: repeat it"),
]


def main() -> None:
    """Run a command; exit with 2 for bad input, 1 for a run that failed, 130 or 143 for SIGINT or SIGTERM."""
    try:
        app()
    except InputError as error:
        for line in error.lines:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except RayflError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@app.command(context_settings=_KEYS)
def run(arguments: Arguments = None, sets: Sets = None) -> None:
    """Run a simulation. Without a config: FedAC on scikit-learn's digits, in under a minute."""
    with _told_when_stopped():
        from rayfl.launch import simulate
        from rayfl.simulation.screen import Screen

        simulate(_config(arguments, sets), Screen())


@app.command(context_settings=_KEYS)
def resume(
    path: Annotated[str, typer.Argument(metavar="RUN_DIR", show_default=False, help="the run's folder")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value ...]", show_default=False, help="keys that change it: rounds=100 ray.actors=8"
        ),
    ] = None,
) -> None:
    """Go on with a run that was stopped or killed, to the same numbers; rounds=N gives it more rounds, or fewer."""
    with _told_when_stopped():
        from rayfl.launch import resume as go_on
        from rayfl.simulation.screen import Screen

        go_on(path, _checked(overrides), Screen())


@app.command(context_settings=_KEYS)
def sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SWEEP.yaml] [key=a,b,c seed=0..4 ...]",
            show_default=False,
            help="a YAML file with a section `sweep`, and keys with one value or several",
        ),
    ] = None,
    sets: Sets = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PATTERN",
            help="only the runs with such names, as in a shell, for example 'fedac*'; may be given several times",
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="runs at a time; default: as many as there is room for")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="try runs again that failed before")] = False,
) -> None:
    """Carry out a grid of runs, side by side; started again, go on with what is not complete."""
    with _told_when_stopped():
        from rayfl.sweeping.sweep import sweep as carry_out

        file, overrides = _file_and_overrides(arguments)
        result = carry_out(file, overrides, sets=sets or (), only=only or (), jobs=jobs, retry=retry)
        print(f"{len(result.runs)} complete, {len(result.failures)} failed", file=sys.stderr)
        for name, message in result.failures.items():
            print(f"error: {name}: {message}", file=sys.stderr)
        if result.failures:
            print("try the failed runs again with --retry", file=sys.stderr)
        print(result.path)
        if result.failures:
            sys.exit(1)


@contextmanager
def _told_when_stopped() -> Iterator[None]:
    """Say how to go on with a run that a signal stopped; here, since typer takes any KeyboardInterrupt for itself.

    Imports belong inside: they take seconds, and a signal may come then too.
    """
    try:
        with stopping(last=True):
            yield
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)


@app.command("list")
def list_runs(
    path: Annotated[str, typer.Argument(metavar="[DIR]", help="a folder or URI with runs below it")] = "runs",
    form: Annotated[str, typer.Option("--format", help="text, csv or json")] = "text",
) -> None:
    """List runs: how far they are, their last figures, and the settings in which they differ."""
    from rayfl.following.listing import list_runs as listed

    listed(path, form)


@app.command()
def watch(
    path: Annotated[str, typer.Argument(metavar="DIR", show_default=False, help="a run folder, or one with runs")],
    interval: Annotated[float, typer.Option(help="seconds between two looks")] = 1.0,
    patience: Annotated[float, typer.Option(help="seconds to wait for a run that nobody is going on with")] = 10.0,
) -> None:
    """Show runs while they go on, until all are complete. Exits with 1 if one was left unfinished."""
    from rayfl.following.looking import leaving_on_signals
    from rayfl.following.watching import watch as watch_runs

    with leaving_on_signals():
        sys.exit(watch_runs(path, interval, patience))


@app.command()
def export(
    paths: Annotated[
        list[str], typer.Argument(metavar="DIR...", show_default=False, help="run folders, or folders with runs")
    ],
    to: Annotated[str, typer.Option("--to", help="tensorboard, wandb, mlflow or csv", show_default=False)],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="folder; default: exports/ and the tool's name")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="go on until the runs are complete")] = False,
) -> None:
    """Export runs to TensorBoard, Weights & Biases (offline), MLflow (SQLite) or CSV."""
    from rayfl.following.export import export as export_runs
    from rayfl.following.looking import leaving_on_signals

    with leaving_on_signals():
        sys.exit(export_runs(paths, to, output, follow=follow))


@app.command(context_settings=_KEYS)
def partition(
    arguments: Arguments = None,
    sets: Sets = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="a figure (.png, .pdf, ...), or a table of samples (.parquet, .csv)"),
    ] = None,
) -> None:
    """Show who gets what, before any training."""
    from rayfl.analysis.partition_table import check_partition_file, write_partition
    from rayfl.analysis.skew import gini, measure_skew
    from rayfl.client.task import find_task
    from rayfl.data import make_partition
    from rayfl.data.sources import load_dataset
    from rayfl.own_code import exits_told
    from rayfl.simulation.preparation import settle_splits

    config = _config(arguments, sets)
    if output is not None:
        check_partition_file(output)
    with exits_told():
        targets = find_task(config.task).targets
        dataset = load_dataset(config.data, config.partition_seed, config.partition.owner_column, targets)
        config = settle_splits(config, dataset)
        made = make_partition(config.partition.lasting(config.rounds), dataset, config.partition_seed)
    counts = made.label_counts(dataset, "all")
    classes = dataset.targets == "class"
    shown = min(made.clients, 40)
    splits = {"train": made.n_train, "validation": made.n_validation, "test": made.n_test}
    splits = {name: sizes for name, sizes in splits.items() if sizes.any()}
    dealt = len(np.unique(np.concatenate([made.train, made.validation, made.test])))
    table = Table(title=f"{config.partition.kind}: {made.clients} clients, {dealt} of {len(dataset.labels)} samples")
    named = made.client_names is not None
    for name in ("client", *(["name"] if named else []), "cluster", *splits, "labels (class:samples)"):
        table.add_column(name, justify="left" if name.startswith(("labels", "name")) else "right")
    for client in range(shown):
        labels = " ".join(f"{k}:{n}" for k, n in enumerate(counts[client]) if n) if classes else "numbers"
        cluster = "-" if made.true_cluster is None else str(made.true_cluster[client])
        names = [] if made.client_names is None else [escape(made.client_names[client])]
        table.add_row(str(client), *names, cluster, *[str(sizes[client]) for sizes in splits.values()], labels)
    console = Console(highlight=False)
    console.print(table)
    if shown < made.clients:
        console.print(f"... and {made.clients - shown} more")
    for name, sizes in splits.items():
        console.print(f"{name}: {sizes.min()} to {sizes.max()} samples per client, mean {sizes.mean():.1f}")
    for note in dataset.notes:
        console.print(f"warning: {note}", style="yellow", markup=False)
    if len(made.public):
        console.print(f"public: {len(made.public)} samples that only the server sees")
    if made.true_cluster is not None:
        console.print(f"clients per true cluster: {np.bincount(made.true_cluster).tolist()}")
    if classes:
        skew = measure_skew(counts)
        distances = f"{skew.jensen_shannon:.3f} Jensen-Shannon, {skew.hellinger:.3f} Hellinger"
        console.print(f"label skew: {distances} (mean distance to all clients together)", soft_wrap=True)
        console.print(f"effective classes per client: {skew.effective_classes:.2f} of {dataset.classes}")
    console.print(f"quantity skew: {gini(made.n_train + made.n_validation + made.n_test):.3f} Gini")
    if changes := [change for change in made.changes if change.round <= config.rounds]:
        moved = len(np.unique(np.concatenate([change.clients for change in changes])))
        rounds = f"{changes[0].round} to {changes[-1].round}"
        console.print(f"drift: {moved} clients change cluster, in {len(changes)} of the rounds {rounds}")
    elif made.changes:
        console.print(f"drift: none in {config.rounds} rounds, the first change is in round {made.changes[0].round}")
    if output is not None:
        tree = config.to_tree()
        print(write_partition(made, dataset, output, {key: tree[key] for key in ("seed", "data", "partition")}))


@app.command()
def report(
    folders: Annotated[list[str], typer.Argument(metavar="DIR...", help="run folders, or folders that hold runs")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the page to write")] = Path("report.html"),
    metric: Annotated[str | None, typer.Option(help="a column of rounds; default: the task's first metric")] = None,
    baseline: Annotated[str | None, typer.Option(help="what others are compared with; default: fedavg")] = None,
    target: Annotated[float | None, typer.Option(help="the value of the metric whose cost is asked for")] = None,
) -> None:
    """Write one self-contained interactive page about runs, finished or still running."""
    from rayfl import report as write

    print(write(folders, output, metric=metric, baseline=baseline, target=target))


@app.command()
def methods() -> None:
    """List every method and add-on with its options."""
    from rayfl.methods import METHODS
    from rayfl.methods.options import ADDONS, ClusteredOptions

    console = Console(highlight=False, soft_wrap=True)
    common = ClusteredOptions.model_fields
    for name, method in METHODS.items():
        summary = (method.__doc__ or "").strip().splitlines()[0]
        console.print(f"[bold]{name}[/bold]  {summary}  ({method.paper})")
        for key, field in method.Options.model_fields.items():
            if key not in common:
                default = "" if field.default is None else field.default
                console.print(f"    method.{key}={default}", f" {field.description}", markup=False)
    console.print("\n[bold]every method[/bold]")
    console.print(f"    method.finetune=False {common['finetune'].description}", markup=False)
    console.print("\n[bold]add-ons[/bold] of clustered methods, for example method.addons=\\[cam]")
    for name, options in ADDONS.items():
        console.print(f"[bold]{name}[/bold]  {(options.__doc__ or '').strip()}")
        for key, field in options.model_fields.items():
            default = "" if field.default is None else field.default
            console.print(f"    method.{name}.{key}={default}", f" {field.description}", markup=False)
    console.print("[bold]con_cks[/bold]  cks on the backbone and con on the head (thesis ch. 6)")


@app.command()
def config(
    schema: Annotated[bool, typer.Option("--schema", help="as a JSON schema, for editors")] = False,
) -> None:
    """Print every key of a config with its default and its meaning; a method's own options are in `rayfl methods`."""
    import json

    from rayfl.config.listing import listed

    if schema:
        print(json.dumps(Config.model_json_schema(), indent=2))
        return
    for key in listed():
        only = f" ({', '.join(key.only)})" if key.only else ""
        default = "" if key.default is None else key.default
        print(f"{key.name}={default}{only}  {key.meaning}")


@app.command(context_settings=_KEYS)
def doctor(arguments: Arguments = None, sets: Sets = None) -> None:
    """Say where the run would be, what fits there, and what would go wrong."""
    from rayfl.doctor import examine

    examine(_config(arguments, sets), Console(highlight=False, soft_wrap=True))


@app.command()
def compare(
    folders: Annotated[
        list[str], typer.Argument(metavar="DIR...", show_default=False, help="run folders, or folders with runs")
    ],
    form: Annotated[str | None, typer.Option("--format", help="text, markdown, latex or csv; default: by -o")] = None,
    metric: Annotated[str, typer.Option(help="a column of rounds, or a key of extras")] = "accuracy",
    at: Annotated[str, typer.Option(help="last, last3 (mean of three rounds) or best-validation")] = "last",
    baseline: Annotated[str | None, typer.Option(help="the row to compare with; default: fedavg")] = None,
    target: Annotated[float | None, typer.Option(help="show the cost to reach this value of the metric")] = None,
    paper: Annotated[str | None, typer.Option(help="a table of a paper, to show beside ours, such as 'cam 1'")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="take runs that have not finished, too")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write to a file instead")] = None,
) -> None:
    """Compare methods over settings and seeds, from the folders of their runs."""
    from rayfl.comparing import compare_folders

    compare_folders(
        folders, form, paper, output, metric=metric, at=at, baseline=baseline, target=target, partial=partial
    )


def _config(arguments: list[str] | None, sets: list[str] | None) -> Config:
    return load_config(*_file_and_overrides(arguments), sets=sets or ())


def _file_and_overrides(arguments: list[str] | None) -> tuple[str | None, list[str]]:
    words = _checked(arguments)
    return (words[0], words[1:]) if words and "=" not in words[0] else (None, words)


def _checked(words: list[str] | None) -> list[str]:
    """Refuse words that look like options: keys are typed without dashes."""
    words = words or []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word.startswith("-"):
            key, _, value = word.lstrip("-").partition("=")
            raise InputError(
                f"there is no option {word.partition('=')[0]}: --help lists the options; keys of the config are written"
                f" without dashes, {key or 'key'}={value or following or 'value'}"
            )
    return words


if __name__ == "__main__":
    main()
