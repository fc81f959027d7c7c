"""A comparison as text, Markdown, LaTeX and csv, and the command that prints it."""

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from written_runs import START, write_run

import rayfl
from rayfl import cli
from rayfl.analysis.comparison import Comparison, compare_runs
from rayfl.analysis.comparison_tables import render, show
from rayfl.errors import InputError
from rayfl.results import load_all

AWKWARD = 'own_kind, 50 % & #1 {x} ~a^b \\c <d> $e$ é 雪 "q" |p|'


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, two settings, six seeds."""
    tmp_path = tmp_path_factory.mktemp("written") / "runs"
    for seed in range(6):
        for setting in ("iid", "dirichlet"):
            for method, value in (("fedavg", 0.5), ("fesem", 0.599), ("ifca", 0.6)):
                noise = 0.01 * seed + (0.002 * seed * (-1) ** seed if method == "fesem" else 0)
                clients = [[value - 0.1, value + 0.1]]
                write_run(
                    tmp_path / f"{method}-{setting}-{seed}",
                    method,
                    seed,
                    [value + noise],
                    overrides=[f"partition.kind={setting}"],
                    clients=clients,
                    summary={"ari": 0.25, "misclustering": 0.5, "clusters": 3},
                )
    return tmp_path


@pytest.fixture(scope="module")
def comparison(written: Path) -> Comparison:
    return compare_runs(load_all(written), target=0.6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three methods, one run of each."""
    for method in ("fedavg", "fesem", "ifca"):
        write_run(tmp_path / "runs" / method, method)
    return tmp_path / "runs"


def test_markdown_has_methods_as_rows_settings_as_columns_and_the_best_in_bold(comparison: Comparison) -> None:
    lines = render(comparison, "markdown").splitlines()
    assert lines[0] == "**accuracy, %, after the last evaluated round; mean ± std over 6 seeds**"
    assert lines[2] == "| method | digits, dirichlet | digits, iid |"
    assert lines[3] == "| :-- | --: | --: |"
    assert lines[4] == "| fedavg | 52.50 ± 1.87 | 52.50 ± 1.87 |"
    assert lines[6] == "| ifca | **62.50 ± 1.87** | **62.50 ± 1.87** |"
    assert re.fullmatch(r"\| fesem \| 62\.\d\d ± \d\.\d\d † \| 62\.\d\d ± \d\.\d\d † \|", lines[5])
    assert "| ifca | +10.00 [10.00, 10.00], p=0.031 | +10.00 [10.00, 10.00], p=0.031 |" in lines
    header = "| setting | method | worst 10 % | std over clients | worse than with fedavg |"
    assert header in lines and "| digits, iid | ifca | 50.00 | 10.00 | 0 % |" in lines
    assert "| setting | method | ARI | misclustered | K |" in lines
    assert "| digits, iid | ifca | 0.250 | 0.500 | 3 |" in lines
    assert lines[-1] == "- †: not significantly worse than the best (paired sign-flip test at 5 %)"


def test_text_marks_the_best_without_colours_too_and_wraps_nothing(comparison: Comparison) -> None:
    text = render(comparison)
    assert re.search(r"│ ifca +│ +62\.50 ± 1\.87 \* │ +62\.50 ± 1\.87 \* │", text)
    assert "cost to reach accuracy 60.00 %; means over the seeds that reach it" in text
    assert "- bold and *: the best of its column" in text
    assert "\x1b" not in text


def test_on_a_terminal_the_best_is_bold(comparison: Comparison) -> None:
    out = io.StringIO()
    show(comparison, None, Console(file=out, force_terminal=True, width=150, highlight=False))
    assert re.search(r"\x1b\[1m62\.50 ± 1\.87 \*", out.getvalue())


def test_csv_is_the_whole_frame_in_full_precision(comparison: Comparison) -> None:
    again = pd.read_csv(io.StringIO(render(comparison, "csv")))
    pd.testing.assert_frame_equal(again, comparison.summary, check_exact=True, check_dtype=False)


def test_different_numbers_of_seeds_are_shown_in_each_cell(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", "fedavg", seed)
    write_run(tmp_path / "b", "ifca", 0)
    text = render(compare_runs(load_all(tmp_path)), "markdown")
    assert "mean ± std over seeds, n in brackets" in text
    assert "| **50.00 ± 0.00 (2)** |" in text and "| ifca | 50.00 (1) |" in text


def test_latex_uses_booktabs_and_escapes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", overrides=["partition.kind=cluster_dirichlet"])
    write_run(tmp_path / "b", "fedavg_ensemble", values=[0.4], overrides=["partition.kind=cluster_dirichlet"])
    tex = render(compare_runs(load_all(tmp_path)), "latex")
    assert r"fedavg & \textbf{50.00} \\" in tex and r"fedavg\_ensemble & 40.00 \\" in tex
    assert r"method & \shortstack[r]{digits,\\cluster\_dirichlet} \\" in tex
    assert r"fedavg\_ensemble & $-$10.00, p=1.000 \\" in tex and "sign-flip test; 1 pair." in tex
    for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{accuracy, \%, after"):
        assert word in tex
    assert "% 1 paired seed cannot support a test at 5 %" in tex


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex (Debian: texlive-latex-recommended)")
def test_latex_compiles_even_with_awkward_names(comparison: Comparison, tmp_path: Path) -> None:
    awkward = comparison.summary.replace({"digits, iid": AWKWARD, "fesem": AWKWARD})
    body = render(replace(comparison, summary=awkward), "latex")
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + body + "\\end{document}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


# --- the command ----------------------------------------------------------------------------------------------------

Typed = tuple[int, str, str]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Typed]:
    def run(*words: object) -> Typed:
        monkeypatch.setattr(sys, "argv", ["rayfl", "compare", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return run


def test_the_command_prints_the_tables_and_their_notes(folder: Path, typed: Callable[..., Typed]) -> None:
    write_run(folder / "odd", "cfl", prints=START._replace(data="other"))
    code, out, err = typed(folder, "--baseline", "ifca", "--target", "0.6")
    assert (code, err) == (0, "")
    assert "paired difference to ifca" in out and "cost to reach" in out
    assert "cfl had other data than ifca with seed 0, so these runs are not paired" in out


def test_the_command_writes_a_file_in_the_format_of_its_name(folder: Path, typed: Callable[..., Typed]) -> None:
    for name, start in (
        ("t.md", "**accuracy"),
        ("t.tex", "% Needs"),
        ("t.csv", "setting,method"),
        ("t.txt", "accuracy"),
    ):
        file = folder.parent / name
        assert typed(folder, "-o", file)[:2] == (0, f"{file}\n")
        assert file.read_text().startswith(start), name
    assert typed(folder, "-o", folder.parent / "t.md", "--format", "csv")[0] == 0
    frame = pd.read_csv(folder.parent / "t.md")
    assert frame["mean"].tolist() == pytest.approx(rayfl.compare(folder)["mean"].tolist())


def test_notes_of_csv_and_latex_go_to_the_error_stream(folder: Path, typed: Callable[..., Typed]) -> None:
    write_run(folder / "half", "cfl", rounds=5)
    for form in ("csv", "latex"):
        code, _, err = typed(folder, "--format", form)
        assert code == 0 and f"note: left out: {folder / 'half'} has not finished (1 of 5 rounds)" in err
    assert "half" in typed(folder, "--partial")[1]


BAD = {
    "no folder": (["{}/nowhere"], "nowhere does not exist: give a run folder, or a folder that holds runs"),
    "no runs": (["{}/empty"], "empty holds no run: give run folders, or folders that hold runs"),
    "format": (["{}", "--format", "html"], "format=html is not allowed: use one of text, markdown, latex, csv"),
    "ending": (["{}", "-o", "{}/a.pdf"], "files end in one of .txt, .md, .tex, .csv; or name a format with --format"),
    "no place": (["{}", "-o", "{}/x/a.md"], "there is no folder"),
    "at": (["{}", "--at", "best"], "at=best is not allowed: use one of last, last3, best-validation"),
    "metric": (["{}", "--metric", "acc"], "metric=acc: no run has it"),
    "baseline": (["{}", "--baseline", "x"], "baseline=x is not among the methods: use one of fedavg, fesem, ifca"),
    "paper": (["{}", "--paper", "cam 9"], "paper=cam 9: there is no such table; there are thesis 3.1"),
    "validation": (["{}", "--at", "best-validation"], "has no validation_accuracy; run it again with validation"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, typed: Callable[..., Typed], case: str) -> None:
    (folder / "empty").mkdir()
    words, said = BAD[case]
    code, out, err = typed(*[word.format(folder) for word in words])
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert said in err and err.startswith("error: ")


def test_an_unwritable_file_is_one_line(folder: Path, typed: Callable[..., Typed]) -> None:
    if os.geteuid() == 0:
        (folder / "t.md").mkdir()  # root may write anywhere, but not to a folder
        code, _, err = typed(folder, "-o", folder / "t.md")
    else:
        folder.chmod(0o500)
        code, _, err = typed(folder, "-o", folder / "t.md")
        folder.chmod(0o700)
    assert code == 2 and "cannot be written" in err


def test_render_refuses_another_format(folder: Path) -> None:
    with pytest.raises(InputError, match="format=html is not allowed"):
        render(compare_runs(load_all(folder)), "html")  # type: ignore[arg-type]
