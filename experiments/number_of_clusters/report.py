"""Write RESULTS.md from what judge.py and closed_loop.py found; nothing in it is typed by hand.

python experiments/number_of_clusters/report.py
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import pandas as pd
from scipy.stats import beta
from settings import FACTORS, read_settings

from rayfl.methods.judging import FEW_SAMPLES
from rayfl.results import Run

HERE = Path(__file__).resolve().parent
SETTINGS = HERE / "settings.yaml"
RESULTS = HERE.parent / "results"
sys.path.insert(0, str(HERE.parent))

from pages.store import Sweep, collected, unpacked  # noqa: E402
from pages.tables import pair, setting_lines  # noqa: E402

RIGHT = 0.95
CHOSEN = ("digits", "mnist")  # on these, constants were chosen
FRESH = 10  # the first seed that nobody had looked at when the rule got its present form
LONG = "fedac/number_of_clusters"  # in any of its sets
MANY = "number_of_clusters/ten_thousand"


def bounds(successes: int, runs: int) -> tuple[float, float]:
    """Return the Clopper-Pearson bounds of a share, 95 %.

    >>> [round(b, 3) for b in bounds(19, 20)]
    [0.751, 0.999]
    """
    low = float(beta.ppf(0.025, successes, runs - successes + 1)) if successes else 0.0
    high = float(beta.ppf(0.975, successes + 1, runs - successes)) if successes < runs else 1.0
    return low, high


def shown(right: pd.Series) -> str:
    """Return a share with its bounds and the number of runs."""
    if not len(right):
        return ""
    low, high = bounds(int(right.sum()), len(right))
    return f"{right.mean():.1%} ({low:.0%} .. {high:.0%}), {int(right.sum())} of {len(right)}"


def table(rows: list[list[str]], heads: list[str]) -> str:
    """Return rows as a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows]]
    return "\n".join(lines)


def of_rules(judged: pd.DataFrame) -> str:
    """Return how often each rule is right, by trainings, on what it was chosen on and on the rest."""
    rows = []
    order = ["decision", "utility", *sorted(set(judged["rule"]) - {"decision", "utility"})]
    for rule in [rule for rule in order if (judged["rule"] == rule).any()]:
        for trainings in sorted(judged.loc[judged["rule"] == rule, "trainings"].unique()):
            these = judged[(judged["rule"] == rule) & (judged["trainings"] == trainings)]
            cells = [rule, "" if rule == "decision" else str(trainings)]
            for part in (these[these["data"].isin(CHOSEN)], these[~these["data"].isin(CHOSEN)]):
                planted = part[(part["planted"] > 1) & part["identifiable"]]
                alone = part[part["planted"] == 1]
                cells += [shown(planted["right"]), shown(alone["right"])]
            rows.append(cells)
    return table(
        rows,
        ["rule", "trainings", "digits, MNIST: found", "not invented", "Fashion-MNIST, CIFAR-10: found", "not invented"],
    )


def fresh(decisions: pd.DataFrame) -> str:
    """Return how often the decision is right for seeds that the present form was not chosen with, by data."""
    rows = []
    for data, these in decisions[decisions["seed"] >= FRESH].groupby("data"):
        planted, alone = these[(these["planted"] > 1) & these["identifiable"]], these[these["planted"] == 1]
        rows.append([str(data), shown(planted["right"]), shown(alone["right"])])
    return table(rows, ["data", "found", "not invented"])


def over_rounds(runs: Sequence[Run]) -> str:
    """Return K over the rounds, and the accuracies at the end, of long runs without planted clusters."""
    rows = []
    for run in runs:
        method, clusters = run.config.method, run.rounds["clusters"]
        tested = run.rounds.dropna(subset="accuracy").tail(3)
        marks = sorted({mark for mark in (1, 20, 50, 100, 200, 500, run.config.rounds) if mark <= len(clusters)})
        rows.append(
            {
                "setting": "three classes" if run.config.partition.kind == "classes" else "Dirichlet 0.1",
                "method": " ".join([method.name, str(method.options.get("tuning", ""))]).strip(),
                "K at the start": str(method.options.get("clusters", "")),
                "seed": run.config.seed,
                "K after rounds " + ", ".join(map(str, marks)): ", ".join(_number(clusters.iloc[m - 1]) for m in marks),
                "accuracy": 100 * tested["accuracy"].mean(),
                "macro-F1": 100 * tested["macro_f1"].mean(),
                "worst tenth": 100 * tested["accuracy_worst10"].mean(),
            }
        )
    frame = pd.DataFrame(rows).fillna("")
    groups = frame.groupby(["setting", "method", "K at the start"], sort=False)
    lines = []
    for key, these in groups:
        figures = [pair(these[name].mean(), these[name].std()) for name in ("accuracy", "macro-F1", "worst tenth")]
        lines.append([*map(str, key), str(len(these)), "; ".join(these[frame.columns[4]]), *figures])
    heads = ["setting", "method", "K at the start", "seeds", frame.columns[4], *frame.columns[5:]]
    return table(sorted(lines, key=lambda line: (line[0], -float(line[5].split()[0]))), heads)


def _number(clusters: float) -> str:
    return "none" if pd.isna(clusters) else f"{clusters:.0f}"


def of_judgements(runs: Sequence[Run]) -> str:
    """Return each judgement of runs with many clients, and what the clusters were after it and at the end."""
    rows = []
    for run in runs:
        rounds = run.rounds.set_index("round")
        judged = run.extras["judgement"].dropna()
        for number, found in judged.items():
            rows.append(
                [
                    str(run.config.seed),
                    str(number),
                    str(found["trainings"]),
                    f"{found['clusters']} ({', '.join(map(str, found['supported']))})",
                    found["verdict"],
                    "" if found["gain"] is None else f"{found['gain']:.0%}",
                    "" if found["score"] is None else f"{found['score']:.1f} ({found['limit']:.1f})",
                    *(f"{rounds.at[at, 'clusters']} ({rounds.at[at, 'ari']:.2f})" for at in (number, rounds.index[-1])),
                    f"{rounds['accuracy'].dropna().iloc[-1]:.3f}",
                ]
            )
    heads = ["seed", "round", "trainings", "proposed (supported)", "verdict", "best gain", "score (limit)"]
    return table(rows, [*heads, "K in use (ARI)", "at the end (ARI)", "accuracy at the end"])


def by_factor(decisions: pd.DataFrame) -> str:
    """Return how often the decision is right at each level of each factor."""
    rows = []
    known = decisions[(decisions["planted"] == 1) | decisions["identifiable"]]
    for factor in FACTORS:
        for level, these in known.groupby(known[factor].astype(str).replace({"nan": "none", "null": "all"})):
            judged = these[~these["data"].isin(CHOSEN)]
            rows.append([factor, str(level), shown(these["right"]), shown(judged["right"])])
    return table(rows, ["factor", "level", "all data", "Fashion-MNIST, CIFAR-10"])


def failures(decisions: pd.DataFrame) -> str:
    """Return all runs in which the decision is wrong although it could be right, and the unidentifiable ones."""
    wrong = decisions[~decisions["right"]].sort_values(
        ["identifiable", "setting", "seed"], ascending=[False, True, True]
    )
    rows = [
        [
            row.setting,
            str(row.seed),
            str(row.planted),
            f"{row.found} ({', '.join(map(str, json.loads(row.supported)))})",
            f"{row.ari:.2f}",
            f"{row.told:.2f}" if row.planted > 1 else "",
        ]
        for row in wrong.itertuples()
    ]
    return table(rows, ["setting", "seed", "planted", "found (supported)", "ARI", "ARI of average linkage, told K"])


def closed(loops: pd.DataFrame) -> str:
    """Return the closed-loop runs by setting and rule, with the accuracies for one cluster and the planted number."""
    rows = []
    for (setting, rule), these in loops.groupby(["setting", "rule"]):
        rows.append(
            [
                setting,
                rule,
                str(len(these)),
                f"{these['planted'].iloc[0]}",
                ", ".join(map(str, these["at_20"])),
                ", ".join(map(str, these["at_end"])),
                ", ".join(f"{value:.2f}" for value in these["ari"]),
                *(f"{these[name].mean():.3f}" for name in ("accuracy", "one", "told")),
            ]
        )
    heads = ["setting", "rule", "seeds", "planted", "K after 20", "K at the end", "ARI"]
    return table(rows, [*heads, "accuracy", "one cluster", "K given"])


#: Three decisions on the same models, by the samples that clients are asked about.
BY_SAMPLES = {
    "decision": "by training samples",
    "decision, validation": "by validation samples",
    "decision, as asked": "as FedAC asks",
}


def held_out(judged: pd.DataFrame) -> str:
    """Return how often decisions by losses on different samples are right, on the same models."""
    rows = []
    few = judged["setting"].isin([name for name, setting in read_settings(SETTINGS).items() if is_few(setting)])
    for what, part in (("few samples per client", judged[few]), ("all others", judged[~few])):
        for rule in BY_SAMPLES:
            these = part[part["rule"] == rule]
            if not len(these):
                continue
            planted, alone = these[(these["planted"] > 1) & these["identifiable"]], these[these["planted"] == 1]
            late = these["decided_at"].replace(0, pd.NA).dropna()
            rows.append([what, rule, shown(planted["right"]), shown(alone["right"]), f"{late.mean():.1f}"])
    return table(rows, ["settings", "rule", "found", "not invented", "decided after trainings (mean)"])


def is_few(setting: Mapping[str, object]) -> bool:
    """Return whether a setting is one of those with few samples per client."""
    return bool(setting.get("few"))


def differences(judged: pd.DataFrame) -> str:
    """Return the runs in which some of the decisions of `held_out` are right and others are not."""
    decisions = judged[judged["rule"].isin(BY_SAMPLES)]
    wide = decisions.pivot(index=["setting", "seed"], columns="rule", values=["found", "ari", "planted", "right"])
    rules = [rule for rule in BY_SAMPLES if rule in wide["right"]]
    rows = []
    for (setting, seed), row in wide.iterrows():
        if len({bool(row["right"][rule]) for rule in rules}) > 1:
            cells = [f"{int(row['found'][rule])} ({row['ari'][rule]:.2f})" for rule in rules]
            rows.append([str(setting), str(seed), str(int(row["planted"][rules[0]])), *cells])
    return table(rows, ["setting", "seed", "planted", *(f"{BY_SAMPLES[rule]} (ARI)" for rule in rules)])


def of_loops(loops: pd.DataFrame) -> str:
    """Return a summary of all closed-loop runs, by rule."""
    rows = []
    for rule, these in loops.groupby("rule", sort=False):
        known, planted = these[these["identifiable"] & (these["planted"] > 1)], these["planted"] > 1
        rows.append(
            [
                str(rule),
                str(len(these)),
                shown(these["at_20"] == these["at_end"]),
                shown(known["ari"] >= RIGHT),
                shown(known["offline"] >= RIGHT),
                shown(these.loc[~planted, "at_end"] == 1),
                f"{100 * (these['accuracy'] - these[['one', 'told']].max(axis=1)).mean():+.2f}",
            ]
        )
    heads = ["rule", "runs", "K unchanged from 20 trainings on", "found", "found offline", "not invented"]
    return table(rows, [*heads, "points of accuracy over the better of one cluster and K given"])


def of_claims(decisions: pd.DataFrame, loops: pd.DataFrame | None) -> str:
    """Return what came of each claim, for all runs and for fresh seeds; nothing is typed."""
    if loops is None:
        loops = pd.DataFrame({name: [] for name in LOOPS})
    loops = loops[loops["rule"] == "utility"]
    rows = []
    for number, (what, judged) in enumerate(CLAIMS.items(), 1):
        cells = []
        for these, those in ((decisions, loops), tuple(t[t["seed"] >= FRESH] for t in (decisions, loops))):
            right, least = judged(these, those)
            verdict = "not run" if not len(right) else "holds" if right.mean() >= least else "does not hold"
            cells += [shown(right), verdict]
        rows.append([f"{number}. {what}", *cells])
    return table(rows, ["claim", "all runs", "", f"fresh seeds ({FRESH} and above)", ""])


LOOPS = ("rule", "seed", "planted", "identifiable", "at_20", "at_end", "ari", "offline", "accuracy", "one", "told")
#: What is judged, as in CLAIMS.md: from decisions and closed loops, which runs are right, and the least share of them.
CLAIMS: dict[str, Callable[[pd.DataFrame, pd.DataFrame], tuple[pd.Series, float]]] = {
    "found": lambda decisions, loops: (
        decisions.loc[decisions["identifiable"] & (decisions["planted"] > 1), "right"],
        0.95,
    ),
    "not invented": lambda decisions, loops: (decisions.loc[decisions["planted"] == 1, "right"], 0.95),
    "stable": lambda decisions, loops: (loops["at_20"] == loops["at_end"], 0.95),
    "the loop is as good as the evidence": lambda decisions, loops: as_good(loops),
    "harmless": lambda decisions, loops: (
        (loops["accuracy"] >= loops[["one", "told"]].max(axis=1) - 0.01)[~loops["identifiable"].astype(bool)],
        1.0,
    ),
}


def as_good(loops: pd.DataFrame) -> tuple[pd.Series, float]:
    """Return which closed loops are right, and the lower bound of the share of right offline decisions."""
    known = loops[loops["identifiable"].astype(bool) & loops["offline"].notna()]
    offline = known["offline"] >= RIGHT
    return known["ari"] >= RIGHT, bounds(int(offline.sum()), len(offline))[0] if len(known) else 0.0


def marked(judged: pd.DataFrame) -> pd.DataFrame:
    """Add which rows are right; a run is identifiable if it is after its last training."""
    judged = judged.assign(right=judged["ari"] >= RIGHT)
    last = judged.groupby(["setting", "seed"])["trainings"].transform("max")
    told = judged[judged["trainings"] == last].groupby(["setting", "seed"])["identifiable"].first()
    judged["identifiable"] = [told[key] for key in zip(judged["setting"], judged["seed"], strict=True)]
    return judged


def page(
    judged: pd.DataFrame,
    loops: pd.DataFrame | None,
    kept: Mapping[Sweep, Sequence[Run]] = MappingProxyType({}),
    validated: pd.DataFrame | None = None,
) -> str:
    """Return the whole page; `kept` are runs of LONG and MANY, `validated` judgements on validation samples."""
    judged = marked(judged)
    decisions = judged[judged["rule"] == "decision"]
    seconds = judged[judged["rule"] != "decision"].groupby(["rule", "clients"])["seconds"].median().unstack().round(2)
    when = decisions["decided_at"].value_counts().sort_index()
    parts = [
        "# The number of clusters: results",
        "Written by `python experiments/number_of_clusters/report.py`. What is claimed is in [CLAIMS.md](CLAIMS.md),"
        " the settings in [settings.yaml](settings.yaml).",
        f"{judged['setting'].nunique()} settings, {len(decisions)} runs (settings x seeds). *Found*: adjusted Rand"
        " index of at least 0.95, of the runs with planted clusters that are identifiable. *Not invented*: one cluster"
        " where none are planted. In brackets the bounds by Clopper and Pearson.",
        "`decision, first form` is what was claimed and judged blind. `decision` and `utility` are of the present form,"
        f" which was chosen with the seeds below {FRESH} in view: for these, its figures are not blind on any data.",
        "## The claims",
        of_claims(decisions, loops),
        "## All rules",
        of_rules(judged),
        "First decided after " + ", ".join(f"{mark} trainings: {count}" for mark, count in when.items()) + " runs.",
        *(["## Fresh seeds", fresh(decisions)] if (decisions["seed"] >= FRESH).any() else []),
        "## The decision, by factor",
        by_factor(decisions),
        "## Where the decision is wrong",
        failures(decisions),
        "## Seconds of an offline judgement (median), by clients",
        table(
            [[str(rule), *["" if pd.isna(v) else f"{v:.2f}" for v in row]] for rule, row in seconds.iterrows()],
            ["rule", *map(str, seconds.columns)],
        ),
    ]
    if validated is not None:
        validated = marked(validated)
        parts += [
            "## By samples that nobody has trained on",
            "Clients keep a fifth of their training samples for validation, and are asked about these samples, about"
            f" training samples as above, or as FedAC asks: those with fewer than {FEW_SAMPLES} training samples about"
            " validation samples, the others about training samples. Three decisions on the same models,"
            f" {validated['setting'].nunique()} settings, seeds"
            f" {', '.join(map(str, sorted(validated['seed'].unique())))}. Few: about five to twenty training samples.",
            held_out(validated),
            "Runs in which some of the three are right and others are not:",
            differences(validated),
        ]
    if loops is not None:
        parts += [
            "## Closed loop",
            "FedAC for 100 trainings per client, with the rule in the loop: decided clusters pull their clients.",
            of_loops(loops),
            closed(loops),
        ]
    many, long = ({sweep: kept[sweep] for sweep in kept if sweep.name == name} for name in (MANY, LONG))
    if many:
        parts += [
            "## 10,000 clients, of whom 1 % take part in a round",
            "A row per judgement: what it proposed, and which clusters were in use after it and after the last round.",
        ]
    for sweep, runs in many.items():
        parts += ["\n".join(setting_lines(sweep, runs)), of_judgements(runs)]
    if long:
        parts += [
            "## Where nothing is planted: CIFAR-10 in FedAC's settings",
            "Does it pay to look for clusters where none are planted? Accuracy in %: means of the last three tests, and"
            " of the seeds with their standard deviation. K is shown for each seed. `utility` is our rule,"
            " `granularity` the paper's, `none`: K stays as it was given.",
        ]
    for sweep, runs in long.items():
        parts += ["\n".join(setting_lines(sweep, runs)), over_rounds(runs)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judged", type=Path, default=HERE / "judged.parquet")
    parser.add_argument("--validated", type=Path, default=HERE / "judged_validation.parquet")
    parser.add_argument("--loops", type=Path, default=HERE / "closed_loop.parquet")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    loops = pd.read_parquet(given.loops) if given.loops.exists() else None
    with ExitStack() as stack:
        sweeps = [sweep for sweep in collected(RESULTS) if sweep.name in (LONG, MANY)]
        kept = {sweep: stack.enter_context(unpacked(sweep, RESULTS)) for sweep in sweeps}
        validated = pd.read_parquet(given.validated) if given.validated.exists() else None
        given.output.write_text(page(pd.read_parquet(given.judged), loops, kept, validated))
    print(given.output)


if __name__ == "__main__":
    main()
