"""`rayfl list`: what runs there are, how far, with which settings."""

import csv
import io
import json
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console
from run_folders import add_rounds, begin_run, files_below, write_run
from typer.testing import CliRunner

import rayfl
from rayfl.cli import app
from rayfl.errors import InputError
from rayfl.following.listing import list_runs
from rayfl.results import RunWriter, Storage
from rayfl.results.locks import is_locked
from rayfl.results.stopped import StoppedEarly, write_stopped
from rayfl.sweeping.plan import SweepFolder


def listed(path: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["list", str(path), *options])
    assert done.exit_code == 0, done.output
    return done.output


def records(path: Path) -> dict[str, dict]:
    return {record["run"]: record for record in json.loads(listed(path, "--format", "json"))}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real runs, of two seeds and two learning rates."""
    folder = tmp_path_factory.mktemp("runs")
    small = {"federation": "serial", "rounds": 2, "partition.clients": 8, "model.name": "mlp", "local.steps": 1}
    for name, method, more in (
        ("first", {"name": "fesem", "clusters": 2, "addons": ["cam"]}, {"seed": 0, "local.lr": 0.1}),
        ("second", {"name": "fedavg"}, {"seed": 1, "local.lr": 0.05}),
    ):
        rayfl.run(None, quiet=True, method=method, name=name, **small, **more, **{"output.dir": str(folder)})
    return folder


def test_a_line_has_what_the_run_is_and_its_last_figures(real: Path) -> None:
    first, second = listed(real).splitlines()[1:]
    last = {name: rayfl.load(real / name).rounds.iloc[-1] for name in ("first", "second")}
    value, ari = f"{last['first']['accuracy']:.4f}", f"{last['first']['ari']:.2f}"
    assert first.split()[:9] == ["first", "fesem+cam", "digits", "0", "2/2", "done", value, "2", ari]
    value = f"{last['second']['accuracy']:.4f}"
    assert second.split()[:7] == ["second", "fedavg", "digits", "1", "2/2", "done", value]


def test_only_settings_that_differ_are_shown_and_not_those_with_a_column_of_their_own(real: Path) -> None:
    found = records(real)
    assert found["first"]["settings"] == {"local.lr": 0.1}
    assert found["second"]["settings"] == {"local.lr": 0.05}
    line = next(line for line in listed(real).splitlines() if line.startswith("second"))
    assert line.endswith("local.lr=0.05")


def test_options_of_a_method_are_compared_with_those_of_the_same_method(tmp_path: Path) -> None:
    for name, overrides in {
        "a": ["method.clusters=2", "method.init=x"],
        "b": ["method.clusters=3", "method.init=x"],
        "c": ["method.name=fedavg"],
        "d": ["method.name=fedavg", "local.clip_norm=1.0"],
    }.items():
        write_run(tmp_path / name, *overrides)
    settings = {name: record["settings"] for name, record in records(tmp_path).items()}
    assert settings == {
        "a": {"method.clusters": 2},
        "b": {"method.clusters": 3},
        "c": {},
        "d": {"local.clip_norm": 1.0},
    }


def test_the_three_formats_agree(real: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(listed(real, "--format", "csv"))))
    for row in rows:
        record = records(real)[row["run"]]
        assert float(row["value"]) == record["value"] and int(row["round"]) == record["round"]
        assert row["local.lr"] == str(record["settings"]["local.lr"])
        assert record["path"] == row["path"] == str(real / row["run"])


def test_each_state_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "complete")
    write_run(tmp_path / "left", rounds=2)
    write_run(tmp_path / "begun", rounds=0)
    write_stopped(Storage(write_run(tmp_path / "early", rounds=3)), StoppedEarly(3, 4, "enough"))
    going = Storage(write_run(tmp_path / "going", rounds=1))
    with going.locked():
        states = {name: record["state"] for name, record in records(tmp_path).items()}
    assert states == {
        "complete": "done",
        "left": "unfinished",
        "begun": "unfinished",
        "early": "stopped early",
        "going": "running",
    }
    assert records(tmp_path)["going"]["state"] == "unfinished"
    assert records(tmp_path)["begun"]["round"] == 0


def test_a_run_that_failed_in_a_sweep_is_told_with_the_reason_until_it_goes_on(tmp_path: Path) -> None:
    sweep = SweepFolder(Storage(tmp_path))
    going = Storage(write_run(tmp_path / "going", rounds=1))
    write_run(tmp_path / "complete")
    for name in ("going", "complete"):
        sweep.note_failure(name, "Traceback ...\nRuntimeError: the cat ate s3://KEY:hush@bucket/x\n")
    found = records(tmp_path)
    assert (found["going"]["state"], found["complete"]["state"]) == ("failed", "done")
    assert found["going"]["problem"] == "RuntimeError: the cat ate s3://bucket/x"
    assert found["complete"]["problem"] is None and set(found) == {"going", "complete"}
    with going.locked():
        assert records(tmp_path)["going"]["state"] == "running"
    sweep.forget_failure("going")
    assert records(tmp_path)["going"]["state"] == "unfinished"


def test_a_damaged_folder_is_a_line_with_the_reason_and_the_others_are_there(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    (write_run(tmp_path / "torn") / "rounds" / "part-00000.parquet").write_bytes(b"PAR1 torn")
    (write_run(tmp_path / "bad_config") / "config.yaml").write_text("# rayfl 0.1\nrounds: [1\n")
    (write_run(tmp_path / "unknown_key") / "config.yaml").write_text("# rayfl 0.1\nroundss: 1\n")
    (write_run(tmp_path / "bad_note") / "stopped_early.json").write_text("{")
    found = records(tmp_path)
    assert found["good"]["state"] == "done" and found["good"]["problem"] is None
    assert {found[name]["state"] for name in ("torn", "bad_config", "unknown_key", "bad_note")} == {"damaged"}
    assert "arquet" in found["torn"]["problem"]
    assert "not valid YAML" in found["bad_config"]["problem"]
    assert "there is no key 'roundss'" in found["unknown_key"]["problem"]
    assert "stopped_early.json is damaged" in found["bad_note"]["problem"]
    text = listed(tmp_path)
    assert len(text.splitlines()) == 6 and "there is no key 'roundss'" in text


def test_runs_come_in_the_order_in_which_they_began_also_after_a_resume(tmp_path: Path) -> None:
    for name, begun in (("a", 3000.0), ("b", 1000.0), ("c", 2000.0)):
        write_run(tmp_path / name, begun=begun)
    (tmp_path / "b" / "config.yaml").touch()
    assert list(records(tmp_path)) == ["b", "c", "a"]


def test_runs_deeper_down_have_their_path_below_the_folder_as_name(tmp_path: Path) -> None:
    write_run(tmp_path / "sweep" / "one")
    assert list(records(tmp_path)) == ["sweep/one"]
    assert list(records(tmp_path / "sweep" / "one")) == ["one"]


def test_looking_changes_nothing_on_disk(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (write_run(tmp_path / "without_lock") / ".lock").unlink()
    before = files_below(tmp_path)
    listed(tmp_path)
    assert files_below(tmp_path) == before
    assert "without_lock/.lock" not in before


def test_looking_never_keeps_a_run_from_starting(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run")
    looked, over = [0], threading.Event()

    def look() -> None:
        while not over.is_set():
            is_locked(storage)
            looked[0] += 1

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(100):
            with Storage(storage.path).locked():
                assert is_locked(storage)
    finally:
        over.set()
        for looker in lookers:
            looker.join()
    assert looked[0] > 100


def test_a_held_lock_is_still_refused(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run")
    with (
        storage.locked(),
        pytest.raises(InputError, match="being written to by another process"),
        Storage(storage.path).locked(),
    ):
        pass


def test_two_hundred_runs_are_listed_in_a_few_seconds_without_torch(tmp_path: Path) -> None:
    write_run(tmp_path / "run-000", "local.lr=0.1")
    files = {
        p.relative_to(tmp_path / "run-000"): p.read_bytes() for p in (tmp_path / "run-000").rglob("*") if p.is_file()
    }
    for number in range(1, 200):
        for name, data in files.items():
            path = tmp_path / f"run-{number:03d}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.replace(b"seed: 0", f"seed: {number}".encode()))
    code = (
        "import sys; from rayfl.cli import app; app(['list', sys.argv[1]], standalone_mode=False);"
        "print([m for m in ('torch', 'ray', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime  # of the processor: others may be using it too
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    lines = done.stdout.splitlines()
    assert len(lines) == 202 and lines[-1] == "[]"
    assert {line.split()[3] for line in lines[1:-1]} == set(map(str, range(200)))
    assert took < 8, f"{took:.1f} s"


def test_what_a_folder_holds_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run\x1b[31m")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("name: fesem", 'name: "own:[red]x\\e]0;title\\a"'))
    printed = listed(tmp_path)
    assert "\x1b" not in printed and "\a" not in printed
    assert "[red]x" in printed and "run\\x1b[31m" in printed


def test_secrets_in_settings_are_hidden(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "model.options={api_token: hush}", "method.place='s3://KEY:hush@bucket/x'")
    write_run(tmp_path / "b")
    for form in ("text", "csv", "json"):
        printed = listed(tmp_path, "--format", form)
        assert "hush" not in printed
        assert "(hidden)" in printed and "s3://bucket/x" in printed


@pytest.mark.parametrize(("width", "missing"), [(130, []), (100, ["begun"]), (84, ["begun", "data", "seed"])])
def test_on_a_terminal_lines_fit_and_what_matters_least_is_left_out(
    width: int, missing: list[str], tmp_path: Path
) -> None:
    for number in range(2):
        angles = f"partition.angles=[{number}, 90, 180, 270]"
        write_run(tmp_path / f"digits-fesem-seed{number}", f"local.lr=0.{number + 1}", angles, "local.momentum=0.9")
    text = io.StringIO()
    list_runs(tmp_path, console=Console(file=text, force_terminal=True, width=width, color_system=None))
    title, *lines = text.getvalue().splitlines()
    assert all(len(line) <= width for line in (title, *lines)) and len(lines) == 2
    assert [name for name in ("method", "data", "seed", "begun") if name not in title.split()] == sorted(
        missing, key=("method", "data", "seed", "begun").index
    )
    assert lines[0].startswith("digits-fesem-seed0") and "0.4000" in lines[0] and "done" in lines[0]
    assert "differs in" in title and ("local.lr=0.1" in lines[0] or lines[0].endswith("…"))


def test_a_long_name_is_cut_in_its_middle(tmp_path: Path) -> None:
    write_run(tmp_path / ("a" * 60 + "-the-end"))
    text = io.StringIO()
    list_runs(tmp_path, console=Console(file=text, force_terminal=True, width=80, color_system=None))
    line = text.getvalue().splitlines()[1]
    assert len(line) <= 80 and line.startswith("aaaaaaaa") and "…" in line and "-the-end " in line


def test_other_metrics_than_accuracy_are_named(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "runs" / "own", "task=regression")
    with RunWriter(storage, "own", "fesem", 0, metrics=["mse"]) as writer:
        writer.write_round(1, {"mse": 0.125, "mse_mean": 0.25}, {"client": [0], "mse": [0.125]})
    write_run(tmp_path / "runs" / "usual")
    found = records(tmp_path / "runs")
    assert (found["own"]["metric"], found["own"]["value"]) == ("mse", 0.125)
    text = listed(tmp_path / "runs")
    assert "mse 0.1250" in text and "accuracy 0.4000" in text


def test_an_empty_folder_and_none_at_all_are_told(tmp_path: Path) -> None:
    assert listed(tmp_path) == f"no runs in {tmp_path}\n"
    assert json.loads(listed(tmp_path, "--format", "json")) == []
    for path, form, told in (
        (tmp_path / "nowhere", "text", "does not exist"),
        (tmp_path, "jsn", "did you mean 'json'"),
    ):
        with pytest.raises(InputError, match=told):
            list_runs(path, form)


def test_a_run_at_a_uri_is_listed_without_a_claim_about_who_writes(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "half", rounds=2)
    (record,) = json.loads(listed(f"local://{tmp_path}/runs", "--format", "json"))  # type: ignore[arg-type]
    assert (record["run"], record["state"], record["round"], record["begun"]) == ("half", "unfinished", 2, None)


def test_rounds_that_come_are_seen_by_the_next_look(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run")
    add_rounds(storage, 1, 2)
    assert records(tmp_path)["run"]["round"] == 2
    add_rounds(storage, 3, 4)
    assert records(tmp_path)["run"]["round"] == 4
