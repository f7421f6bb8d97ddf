# SPDX-License-Identifier: GPL-2.0-only
"""The command line says what is wrong with it in one line, with an exit status of its own for each kind of error."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from wakescope import errors
from wakescope.analysis.sections import SECTIONS
from wakescope.model.explain_find import find_wakeup
from wakescope.model.kernels import kernel
from wakescope.testbox import apt, ending, initrd, kernels
from wakescope.testbox.campaign import parse
from wakescope.trace import Trace
from wakescope.tracers.recorder import give_to_caller
from wakescope.tracers.workloads import workload

ROOT = Path(__file__).parent.parent
TRACE = "tests/corpus/6.12-2s2c2t-decision-tbench.wake"


def wakescope(*words):
    return subprocess.run([sys.executable, "-m", "wakescope", *words], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nonsense"], 2, "nonsense"),
        (["--nonsense"], 2, "--nonsense"),
        (["record", "--tier"], 2, "--tier"),
        (["record", "--duration", "0"], 2, "--duration"),
        (["record", "--duration", "soon"], 2, "--duration"),
        (["validate"], 2, "TRACE"),
        (["validate", TRACE, "more"], 2, "more"),
        (["validate", TRACE, "--min", "101"], 2, "--min 101"),
        (["box", "run"], 2, "wakescope box run --help"),
        (["box", "run", "--memory", "much", "--", "true"], 2, "--memory"),
        (["box", "run", "--via", "air", "--", "true"], 2, "--via"),
        (["validate", TRACE, "--policy", "3.1"], 12, "not modelled"),
        (["validate", TRACE, "--policy", "6.12+nonsense"], 12, "no patch nonsense"),
        (["info", "nothing.wake"], 3, "does not exist"),
        (["explain", TRACE, "--at", "1e300"], 2, "goes from 0 to"),
        (["explain", TRACE, "--at", "-5"], 2, "goes from 0 to"),
        (["explain", TRACE, "--task", ""], 2, "--task is empty"),
    ],
)
def test_an_error_is_one_line(words, status, said):
    done = wakescope(*words)
    assert done.returncode == status
    assert done.stderr.startswith("wakescope: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_the_readme_shows_what_explain_prints():
    shown = (ROOT / "README.md").read_text().partition("    $ wakescope explain ")[2].partition("\n\n")[0].splitlines()
    done = wakescope("explain", *shown[0].split())
    assert [line.rstrip() for line in done.stdout.splitlines()] == [line.strip() for line in shown[1:]]


@pytest.mark.parametrize("digit", ["²", "①", "٣"])
def test_digits_of_other_kinds_are_no_numbers(digit, monkeypatch, tmp_path):
    for release in (f"4.15.{digit}", f"6.12.{digit}", f"{digit}.10"):
        with pytest.raises(errors.ModelError, match="not a kernel release"):
            kernel(release)
    for spec in (f"hackbench:{digit}@1", f"hackbench:1@{digit}", f"hackbench:1@1.{digit}"):
        with pytest.raises(errors.UsageError, match="expected NAME"):
            parse(spec)
    with pytest.raises(errors.UsageError, match="expected tbench"):
        workload(f"tbench:{digit}", 1)
    with pytest.raises(errors.TraceError, match="no placed wakeup"):
        find_wakeup(Trace.open(ROOT / TRACE), digit, None)
    monkeypatch.setenv("SUDO_UID", digit)
    monkeypatch.setenv("SUDO_GID", digit)
    give_to_caller(tmp_path)


def test_a_reader_that_goes_away_is_no_fault():
    reading, writing = os.pipe()
    os.close(reading)
    line = [sys.executable, "-m", "wakescope", "patches"]
    done = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.parametrize("words", [["report", TRACE], ["patches"], ["explain", TRACE, "--at", "0"], ["doctor"]])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_of_few_letters_is_no_fault(words, encoding):
    done = subprocess.run(
        [sys.executable, "-m", "wakescope", *words],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert b"Traceback" not in done.stderr
    assert done.stdout


def test_the_help_of_report_names_every_section():
    said = " ".join(wakescope("report", "--help").stdout.split())
    assert [name for name in SECTIONS if name not in said] == []


@pytest.mark.parametrize("words", [[], ["box"]])
def test_without_a_command_the_help_is_shown(words):
    done = wakescope(*words)
    assert done.returncode == 2
    assert "Usage" in done.stdout
    assert done.stderr == ""


def test_a_share_below_min_is_told_from_a_fault():
    """The corpus has raced decisions, but every exact one agrees; of another kernel's they cannot all."""
    assert wakescope("validate", TRACE, "--min", "100").returncode == 0
    done = wakescope("validate", TRACE, "--policy", "4.2", "--min", "100")
    assert done.returncode == 10
    assert done.stderr.startswith("wakescope: below --min 100")


def kinds():
    """Every error class by name."""
    found = [errors.WakescopeError]
    for kind in found:
        found += kind.__subclasses__()
    return found[1:]


def test_each_kind_of_error_has_a_status_of_its_own_that_docs_name():
    assert {apt.ArchiveError, ending.GuestDiedError, initrd.BoxSetupError, kernels.NoKernelError} <= set(kinds())
    codes = [kind.exit_code for kind in kinds()]
    assert len(set(codes)) == len(codes)
    rows = re.findall(r"^\| ([\d, ]+) \|", (ROOT / "docs/exit-status.md").read_text(), re.MULTILINE)
    assert set(codes) <= {int(code) for row in rows for code in row.split(",")}
