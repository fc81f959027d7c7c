"""Callbacks: what is reported to them, how they end a run, and that failures and resumes do not change this."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import assert_same

import rayfl
from rayfl.config import Config, load_config
from rayfl.errors import CallbackError, InputError, LostError
from rayfl.launch import resume, simulate
from rayfl.results import Run, load
from rayfl.simulation import starting
from rayfl.simulation.callbacks import Callback, RunFacts, make_callbacks
from rayfl.simulation.early_stopping import EarlyStopping
from rayfl.simulation.opening import opened_here
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import RoundRecord, Server
from rayfl.simulation.signals import Stopped

SMALL = ["federation=serial", "data.limit=240", "partition.clients=6", "local.steps=1", "method.name=fedavg"]
QUIET = Screen(quiet=True)
OwnCode = Callable[[str, str], None]


def config(folder: Path, name: str, *words: str) -> Config:
    return load_config(None, [*SMALL, f"output.dir={folder}", f"name={name}", *words])


def files(path: str | Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in Path(path).rglob("*") if p.is_file()}


@dataclass
class Seen:
    rounds: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    accuracy: float | None = None


class Watching(Callback):
    """Remembers all reports: in its state, and in `told`, which checkpoints do not save."""

    def __init__(self, stop_after: int = 0) -> None:
        self.told: list[Any] = []
        self.stop_after = stop_after

    def on_start(self, run: RunFacts) -> None:
        self.state = Seen()
        self.told.append(("start", run.clients, run.round, Path(run.path).name))

    def on_round_end(self, record: RoundRecord) -> bool:
        self.state.rounds = np.append(self.state.rounds, record.number)
        self.state.accuracy = record.value("accuracy")
        self.told.append(record.number)
        return len(self.state.rounds) == self.stop_after

    def on_end(self, run: Run) -> None:
        self.told.append(("end", run.finished))


# -- what they are told ------------------------------------------------------------------------------------------


def test_a_callback_is_told_the_start_every_round_and_the_end(tmp_path: Path, capsys: Any) -> None:
    watching = Watching()
    given = {"data": {"limit": 240}, "partition": {"clients": 6}, "method": {"name": "fedavg"}}
    run = rayfl.run(
        given, callbacks=[watching], quiet=True, federation="serial", rounds=3, name="a", output={"dir": str(tmp_path)}
    )
    assert watching.told == [("start", 6, 0, "a"), 1, 2, 3, ("end", True)]
    assert watching.state.accuracy == run.rounds["accuracy"].iloc[-1]
    assert run.finished and run.stopped_early is None
    assert capsys.readouterr() == ("", "")
    longer = rayfl.resume(run.path, callbacks=[again := Watching()], quiet=True, rounds=4)
    assert again.told == [("start", 6, 2, "a"), 3, 4, ("end", True)]
    assert again.state.rounds.tolist() == [1, 2, 3, 4]  # those of the first run come from its checkpoint
    assert len(longer.rounds) == 4
    assert capsys.readouterr() == ("", "")


def test_a_callback_named_in_the_config_ends_the_run_and_says_why(tmp_path: Path, own_code: OwnCode) -> None:
    own_code(
        "mine",
        """
import rayfl

class Enough(rayfl.Callback):
    def __init__(self, rounds):
        self.rounds = rounds

    def on_round_end(self, record):
        return "that is enough" if record.number == self.rounds else None
""",
    )
    words = ["rounds=6", "callbacks=[{name: mine:Enough, rounds: 2}]"]
    run = simulate(config(tmp_path, "a", *words), QUIET)
    assert len(run.rounds) == 2 and run.finished
    stopped = run.stopped_early
    assert stopped is not None and (stopped.round, stopped.rounds, stopped.reason) == (2, 6, "that is enough")
    assert (Path(run.path) / "models" / "index.json").exists()
    with pytest.raises(
        InputError, match=r'names code to be imported, callbacks=\[\{"name": "mine:Enough", "rounds": 2\}\]: if you'
    ):
        resume(run.path, ["rounds=8"], QUIET)
    assert len(resume(run.path, ["rounds=8", "callbacks=[{name: mine:Enough, rounds: 5}]"], QUIET).rounds) == 5


def test_an_error_in_a_callback_ends_the_run_with_its_traceback_and_says_how_to_go_on(tmp_path: Path) -> None:
    class Failing(Watching):
        def on_round_end(self, record: RoundRecord) -> bool:
            if record.number == 3:
                raise KeyError("the cat ate it")
            return super().on_round_end(record)

    words = ["rounds=4", "output.checkpoint_every=1"]
    with pytest.raises(
        CallbackError,
        match=r"callback test_callbacks:.*Failing failed after round 3:\nTraceback(.|\n)*KeyError: 'the cat ate it'\n"
        rf"once that is fixed, go on after round 2 with: rayfl resume {tmp_path}/a$",
    ):
        simulate(config(tmp_path, "a", *words), QUIET, [Failing()])
    assert_same(simulate(config(tmp_path, "b", *words), QUIET), resume(tmp_path / "a", [], QUIET))


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_round(tmp_path: Path) -> None:
    class Unsaveable(Callback):
        def on_start(self, run: RunFacts) -> None:
            self.state = {"generator": object()}

    with pytest.raises(InputError, match=r"callbacks\.0\.0 is of type object, which a checkpoint cannot hold"):
        simulate(config(tmp_path, "a", "rounds=2"), QUIET, [Unsaveable()])
    assert not len(load(tmp_path / "a").rounds)


@pytest.mark.parametrize("page", ["callbacks", "models"])
def test_the_example_in_the_documentation_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = (Path(__file__).parent.parent / "docs" / f"{page}.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(example.splitlines()) < 40
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "example"}
    exec(example, scope)
    if page == "callbacks":
        assert scope["run"].stopped_early.reason == "accuracy reached 0.5"
        assert re.match(r"20 clients, results in .*\nround 1: 0", capsys.readouterr().out)
    else:
        assert scope["classes"].tolist() == scope["chances"].argmax(axis=1).tolist()
        assert scope["logits"].shape == (50, 10)


# -- early stopping ----------------------------------------------------------------------------------------------


def record(number: int, value: float | None, metric: str = "accuracy") -> RoundRecord:
    summary = {} if value is None else {"accuracy": 0.0, metric: value}
    return RoundRecord(number, summary, {}, None, {})


NAN, NONE = float("nan"), None
STOPS: dict[str, tuple[dict[str, Any], list[float | None], int | None]] = {
    "two in a row without a new best": ({"patience": 2}, [0.1, 0.3, 0.2, 0.3, 0.9], 4),
    "a new best in time": ({"patience": 2}, [0.1, 0.3, 0.2, 0.4, 0.3, 0.5], None),
    "a change that is too small": ({"patience": 2, "min_change": 0.1}, [0.5, 0.55, 0.6, 0.9], 3),
    "small changes that add up": ({"patience": 2, "min_change": 0.1}, [0.5, 0.55, 0.625, 0.9], None),
    "rounds without a value do not count": ({"patience": 2}, [0.3, NONE, 0.2, NONE, NONE, 0.1], 6),
    "a loss falls": ({"patience": 1, "metric": "loss"}, [3.0, 2.0, 1.0, 1.0], 4),
    "unless one says otherwise": ({"patience": 1, "metric": "loss", "mode": "max"}, [1.0, 2.0, 1.5], 3),
    "not a number is no best": ({"patience": 2}, [NAN, 0.1, NAN, 0.1], 4),
}


@pytest.mark.parametrize("what", STOPS)
def test_early_stopping_counts_evaluations_without_a_better_value(what: str) -> None:
    options, values, stop = STOPS[what]
    options = {"metric": "accuracy", **options}
    stopping = EarlyStopping(**options)
    stopping.on_start(facts())
    verdicts = [stopping.on_round_end(record(n, v, options["metric"])) for n, v in enumerate(values, 1)]
    assert [n for n, verdict in enumerate(verdicts, 1) if verdict] == ([stop] if stop else [])


def test_the_reason_names_the_best_value() -> None:
    stopping = EarlyStopping("accuracy", patience=2, min_change=0.1)
    stopping.on_start(facts())
    reasons = [stopping.on_round_end(record(n, v)) for n, v in enumerate([0.25, 0.5, 0.5, 0.55], 1)]
    assert reasons[-1] == ("accuracy has not improved by more than 0.1 in 2 evaluations: 0.5 in round 2 was the best")


def test_a_metric_that_no_evaluated_round_has_is_refused_with_what_there_is() -> None:
    stopping = EarlyStopping("acuracy")
    stopping.on_start(facts())
    assert stopping.on_round_end(record(1, None)) is None  # not evaluated
    with pytest.raises(CallbackError, match=r"metric=acuracy: round 2 .*did you mean 'accuracy'\?\); it has: accuracy"):
        stopping.on_round_end(record(2, 0.1))


def facts(**changed: Any) -> RunFacts:
    ones = np.ones(2, int)
    return RunFacts(**{"config": Config(), **dict.fromkeys(["n_train", "n_validation", "n_test"], ones)}
                    | {"true_cluster": ones} | changed)  # fmt: skip


STOPPING = ["rounds=12", "local.lr=0.5", "callbacks=[{name: early_stopping, metric: accuracy, patience: 2}]"]


class Copying(Screen):
    """Copies the folder after a round, as it would be left by a kill -9 at that moment."""

    def __init__(self, number: int, source: Path, to: Path) -> None:
        super().__init__(quiet=True)
        self._copied = (number, source, to)

    def show_round(self, record: RoundRecord) -> None:
        number, source, to = self._copied
        if record.number == number:
            shutil.copytree(source, to)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that early stopping has ended, with checkpoints every second round; and copies of earlier moments."""
    folder = tmp_path_factory.mktemp("stopped")
    whole = simulate(config(folder, "whole", *STOPPING, "output.checkpoint_every=2"), QUIET)
    number = len(whole.rounds)
    assert 4 <= number <= 10, f"stopped after {number} rounds: choose other numbers for this test"
    return whole


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_run_resumed_after_a_kill_stops_where_an_undisturbed_one_does(
    before: int, stopped: Run, tmp_path: Path
) -> None:
    """Killed in the round that would have ended it (its row may be there, the note is not), and in those before."""
    moment = len(stopped.rounds) - before
    screen = Copying(moment, tmp_path / "a", tmp_path / "killed")
    simulate(config(tmp_path, "a", *STOPPING, "output.checkpoint_every=2"), screen)
    assert not load(tmp_path / "killed").finished
    found = resume(tmp_path / "killed", [], QUIET)
    assert_same(stopped, found)
    assert found.stopped_early == stopped.stopped_early
    assert (tmp_path / "killed" / "models" / "index.json").exists()


def test_a_run_that_stopped_early_is_complete_and_goes_on_only_with_more_rounds(stopped: Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(stopped.path, tmp_path / "copy"))
    before = files(copy)
    lines: list[str] = []

    class Listening(Screen):
        def say(self, text: str) -> None:
            lines.append(text)

    number = len(stopped.rounds)
    again = resume(copy, [], Listening(quiet=True))
    assert again.finished and len(again.rounds) == number and files(copy) == before
    assert lines[0].startswith(f"the run was stopped early after round {number} of 12 and is complete: accuracy has")
    longer = resume(copy, ["rounds=14", "callbacks=[]"], QUIET)
    assert longer.finished and longer.stopped_early is None and len(longer.rounds) == 14
    assert_same(simulate(config(tmp_path, "b", *STOPPING, "rounds=14", "callbacks=[]"), QUIET), longer)


@pytest.mark.parametrize("every", [0, 2])
def test_given_more_rounds_it_gets_its_patience_again_also_if_killed_on_the_way(every: int, tmp_path: Path) -> None:
    """Without checkpoints it begins again, and must not stop where it did before."""
    words = [*STOPPING, f"output.checkpoint_every={every}"]
    first = simulate(config(tmp_path, "a", *words), QUIET)
    shutil.copytree(first.path, tmp_path / "b")
    longer = resume(tmp_path / "a", ["rounds=20"], Copying(len(first.rounds) + 1, tmp_path / "a", tmp_path / "killed"))
    assert len(longer.rounds) >= len(first.rounds) + 2
    assert_same(longer, resume(tmp_path / "killed", [], QUIET))
    assert load(tmp_path / "killed").stopped_early == longer.stopped_early


# -- failures ----------------------------------------------------------------------------------------------------


class Losing(Server):
    """Loses its workers the first time it does something in a round: {"run_round": 5, "snapshot": 6}."""

    losses: dict[str, int]

    def _lose(self, operation: str, number: int) -> None:
        if self.losses.get(operation) == number:
            del self.losses[operation]
            raise LostError("an actor died")

    def run_round(self, number: int) -> RoundRecord:
        self._lose("run_round", number)
        return super().run_round(number)

    def snapshot(self) -> Any:
        self._lose("snapshot", self.fed.round)
        return super().snapshot()

    def describe_models(self) -> Any:
        self._lose("describe_models", self.fed.round)
        return super().describe_models()

    def recover(self) -> str:
        self.fed.forget()
        self.fed.round = 0
        Server.__init__(self, self.config, self.fed, self.truth)
        return "lost an actor"


def lossy(**losses: int) -> Any:
    """An opener of a federation in this process that loses its workers."""

    @contextmanager
    def opened(config: Config, prepared: Any, screen: Screen) -> Iterator[Any]:
        with opened_here(config, prepared, screen) as (server, ready):
            made = type("Once", (Losing,), {"losses": dict(losses)})
            yield made(config, server.fed, ready.partition.true_cluster), ready

    return lambda config: opened


def test_rounds_that_are_repeated_are_reported_once(tmp_path: Path) -> None:
    watching = Watching()
    words = ["rounds=7", "output.checkpoint_every=3"]
    run = starting.simulate(config(tmp_path, "a", *words), lossy(run_round=6), QUIET, [watching])
    assert watching.told[1:-1] == [1, 2, 3, 4, 5, 6, 7]
    assert_same(simulate(config(tmp_path, "b", *words), QUIET), run)


@pytest.mark.parametrize("operation", ["run_round", "describe_models", "snapshot"])
def test_a_failure_in_the_round_that_ends_the_run_changes_nothing(operation: str, stopped: Run, tmp_path: Path) -> None:
    """Also after the callbacks have spoken: while the models are saved, or the last checkpoint is written."""
    loss = {operation: len(stopped.rounds)}
    words = [*STOPPING, "output.checkpoint_every=2"]
    run = starting.simulate(config(tmp_path, "a", *words), lossy(**loss), QUIET)
    assert_same(stopped, run)
    assert run.stopped_early == stopped.stopped_early
    assert run.model().state_dict().keys() == stopped.model().state_dict().keys()


def test_a_checkpoint_of_a_repeated_round_has_the_states_of_that_round(tmp_path: Path) -> None:
    """Rounds 1 to 6 are reported; the checkpoint of 6 fails; round 4 is repeated, and a signal ends the run then."""

    class Stopping(Screen):
        def say(self, text: str) -> None:
            if text.startswith("lost an actor, from round 4"):
                os.kill(os.getpid(), signal.SIGINT)

    words = ["rounds=8", "output.checkpoint_every=3"]
    with pytest.raises(Stopped, match="go on after round 4 with"):
        starting.simulate(config(tmp_path, "a", *words), lossy(snapshot=6), Stopping(quiet=True), [first := Watching()])
    assert first.told[1:] == [1, 2, 3, 4, 5, 6]
    run = resume(tmp_path / "a", [], QUIET, [second := Watching(stop_after=7)])
    assert second.told[1:-1] == [5, 6, 7]
    assert second.state.rounds.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert run.stopped_early is not None and run.stopped_early.round == 7


def test_early_stopping_on_ray_ends_the_run_as_in_this_process(ray_session: None, stopped: Run, tmp_path: Path) -> None:
    run = simulate(config(tmp_path, "a", *STOPPING, "federation=ray", "ray.actors=2", "output.models=all"), QUIET)
    assert_same(stopped, run)
    assert run.stopped_early == stopped.stopped_early
    for name, tensor in stopped.model().state_dict().items():
        assert tensor.equal(run.model().state_dict()[name]), name


# -- what is refused ---------------------------------------------------------------------------------------------


REFUSED = {
    "[early_stoping]": r"callbacks\.0\.name='early_stoping' is not allowed \(did you mean 'early_stopping'\?\);"
    " allowed: early_stopping, save_models, or package.module:Class",
    "[{name: early_stopping, patienc: 3}]": r"callbacks\.0\.patienc=3: early_stopping has no option 'patienc' \(did you"
    r" mean 'patience'\?\); allowed: metric, patience, min_change, mode",
    "[{patience: 3}]": r"callbacks\.0\.name is missing",
    "[save_models, {name: early_stopping, patience: 0}]": r"early_stopping\.patience=0: input should be greater",
    "[{name: early_stopping, mode: up}]": r"early_stopping\.mode='up' is not allowed",
    "[{name: early_stopping, patience: soon}]": r"early_stopping\.patience='soon': input should be a valid integer",
    "[{name: save_models, every: 0}]": r"save_models\.every=0: give a number of rounds, 1 or more",
    "[{name: save_models, models: some}]": r"save_models\.models='some' is not allowed; allowed: shared, all",
    "[early_stopping]": r"metric=validation_accuracy: clients have no validation samples; set partition\.validation",
    "[{name: early_stopping, metric: seed}]": r"metric=seed is no measurement",
    "[no_such_module:Name]": r"cannot import no_such_module, there is no module",
    "[json:Name]": r"callbacks\.0\.name=json:Name: json has no Name",
    "[json:JSONDecoder]": r"callbacks\.0\.name=json:JSONDecoder is not a subclass of rayfl\.Callback",
    "7": r"callbacks=7: input should be a valid list",
}


@pytest.mark.parametrize("given", REFUSED)
def test_callbacks_that_cannot_be_are_refused_before_anything_is_written(given: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=REFUSED[given]):
        simulate(config(tmp_path, "a", f"callbacks={given}"), QUIET)
    assert not list(tmp_path.iterdir())


def test_what_early_stopping_cannot_watch_in_this_run_is_refused() -> None:
    assert "plants no clusters" in EarlyStopping("ari").check(facts(true_cluster=None))[0]
    tuned = load_config(None, ["method.finetune=true"])
    assert "does not go with method.finetune=True" in EarlyStopping("loss").check(facts(config=tuned))[0]
    assert EarlyStopping().check(facts()) == []


@pytest.mark.parametrize("given", [Watching, 7, print])
def test_objects_that_are_no_callbacks_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"subclass rayfl\.Callback and give an object of it"):
        make_callbacks([], [given])


@pytest.mark.parametrize("text", ["{}", "[]", "x", '{"round": 5, "rounds": 5, "reason": ""}', '{"round": "1"}'])
def test_a_damaged_note_is_refused(text: str, stopped: Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(stopped.path, tmp_path / "copy"))
    (copy / "stopped_early.json").write_text(text)
    with pytest.raises(InputError, match=r"stopped_early\.json is damaged: restore it, or remove it"):
        resume(copy, [], QUIET)


def test_forged_states_in_a_checkpoint_are_refused(stopped: Run, tmp_path: Path) -> None:
    from rayfl.simulation.manifest import check_of

    copy = Path(shutil.copytree(stopped.path, tmp_path / "copy"))
    newest = max((copy / "checkpoints").glob("round-*.json"))
    tree = json.loads(newest.read_text())
    assert tree["callbacks"]["early_stopping"]["fields"]["metric"] == "accuracy"
    tree["callbacks"]["early_stopping"]["fields"]["value"] = "high"
    newest.write_text(json.dumps(tree | {"check": check_of(tree)}))
    with pytest.raises(InputError, match="the checkpoint does not hold the state of this method"):
        resume(copy, ["rounds=14"], QUIET)
