# SPDX-License-Identifier: GPL-2.0-only
"""`make bench`, second half: how fast a trace is read and reported, as rows of docs/benchmarks.md's table.

Each measurement is a process of its own, timed from its start; the rounds of what is compared are interleaved.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..benchmarks import middle, publish
from ..trace import Trace
from .scale import COUNTED, scale

HACKBENCH = ["hackbench", "-g", "2", "-l", "40000"]
EVENTS = 10_000_000
ROUNDS = 5

# What a measured process runs: time it takes to import, then to open, analyse and lay out the report.
REPORT = """
import io, json, re, sys, time
begin = time.perf_counter()
from rich.console import Console
from wakescope.analysis.report import build_report
from wakescope.model.paths import df_replay
from wakescope.trace import Trace
ready = time.perf_counter()
build_report(Trace.open(sys.argv[1]), sys.argv[2:] or None, load_replay=df_replay).render(Console(file=io.StringIO()))
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())  # ru_maxrss counts the parent before exec
print(json.dumps({"start": ready - begin, "report": time.perf_counter() - ready,
                  "cpu": time.process_time(), "rss": int(peak[1]) / 1024}))
"""


def main() -> None:
    """Measure, and put it into the document named on the command line."""
    with tempfile.TemporaryDirectory(prefix="wakescope-bench-") as name:
        publish(Path(sys.argv[1]), "Reports", _rows(Path(name)))


def _rows(folder: Path) -> Iterator[tuple[str, str]]:
    trace, data = _record(folder)
    yield from _against_timehist(trace, data)
    big = folder / "big.wake"
    scale(Trace.open(trace), big, EVENTS)
    yield from _whole(big)


def _record(folder: Path) -> tuple[Path, Path]:
    """One hackbench run recorded by both."""
    trace, data = folder / "run.wake", folder / "perf.data"
    perf = ["perf", "sched", "record", "-m", "16M", "-k", "CLOCK_MONOTONIC", "-o", str(data), "--", *HACKBENCH]
    record = [sys.executable, "-m", "wakescope", "record", "-o", str(trace), "--", *perf]
    subprocess.run(record, check=True, capture_output=True)
    return trace, data


def _against_timehist(trace: Path, data: Path) -> Iterator[tuple[str, str]]:
    """Events a second of the latency section and of perf sched timehist."""
    opened = Trace.open(trace)
    events = sum(opened.rows(table) for table in COUNTED)
    ours, theirs, ratios, whole = [], [], [], []
    _report(trace, "latency")  # compiles
    for _ in range(ROUNDS):
        mine, perf = _report(trace, "latency"), _timehist(data)
        ours.append(events / mine["report"] / 1e6)
        theirs.append(events / perf / 1e6)
        ratios.append(perf / mine["report"])
        whole.append(perf / (mine["start"] + mine["report"]))
    yield f"latency section, million events a second of {events:,}", middle(ours, ".2f")
    yield "perf sched timehist on its recording of the same run, the same events", middle(theirs, ".2f")
    yield "latency section over perf sched timehist, events a second", middle(ratios, ".1f")
    yield "… with the start of Python and its imports", middle(whole, ".1f")


def _timehist(data: Path) -> float:
    """Seconds perf sched timehist takes, by the shell's own clock."""
    command = ["bash", "-c", f"TIMEFORMAT=%R; time perf sched timehist -i {data} >/dev/null 2>&1"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return float(re.findall(r"[\d.]+", text)[-1])


def _whole(big: Path) -> Iterator[tuple[str, str]]:
    """Every section of a large trace."""
    _report(big)
    runs = [_report(big) for _ in range(ROUNDS)]
    events = sum(Trace.open(big).rows(table) for table in COUNTED)
    yield f"report, every section, of {events:,} events: seconds", middle([r["report"] for r in runs], ".1f")
    yield "… CPU seconds of the process", middle([r["cpu"] for r in runs], ".1f")
    yield "… peak resident memory, MiB", middle([r["rss"] for r in runs], ".0f")
    yield "… seconds to start Python and import, on top", middle([r["start"] for r in runs], ".1f")


def _report(trace: Path, *sections: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", REPORT, trace, *sections], check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


if __name__ == "__main__":
    main()
