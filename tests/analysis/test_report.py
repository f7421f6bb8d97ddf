# SPDX-License-Identifier: GPL-2.0-only
import io
import json

import pandas as pd
import pytest
from rich.console import Console
from wakescope.analysis.distance import NAMES
from wakescope.analysis.report import build_report, shown, visible
from wakescope.analysis.sections import SECTIONS
from wakescope.errors import TraceError, UsageError
from wakescope.tests.maketrace import make_trace, switch, task, topology, wake
from wakescope.trace import Trace


def text(report):
    out = io.StringIO()
    report.render(Console(file=out, width=160))
    return out.getvalue()


@pytest.fixture
def nasty(trace):
    return trace(
        topology(cores=2, threads=2),
        tasks=[task(1, b"[red]a\x1b[31m"), task(2, b"b\xff")],
        wakeups=[wake(1000, 0, 1, 2, 1, 1)],
        switches=[switch(1500, 1, 0, 2)],
    )


def test_three_lines_first_then_every_section(nasty):
    lines = text(build_report(nasty)).splitlines()
    assert [line.startswith("• ") for line in lines[:4]] == [True, True, True, False]
    assert len(build_report(nasty).sections) == len(SECTIONS)


def test_names_from_a_trace_cannot_reach_the_terminal(nasty):
    out = text(build_report(nasty))
    assert "[red]a\N{REPLACEMENT CHARACTER}[31m:1" in out
    assert "\x1b" not in out


def test_shown_keeps_ordinary_text():
    assert shown("kworker/0:1-événement") == "kworker/0:1-événement"


@pytest.mark.parametrize("made", ["empty", "one"])
def test_an_empty_trace_and_one_event_report_every_section(trace, made):
    small = trace() if made == "empty" else trace(tasks=[task(1), task(2)], wakeups=[wake(5, 0, 1, 2, 0, 1)])
    report = build_report(small)
    assert len(report.odd) == 3
    assert text(report)
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert set(data["sections"]) == set(SECTIONS)
    assert data["wakeups"] == (0 if made == "empty" else 1)


def test_a_section_without_its_table_says_so_and_is_refused_when_asked_for(tmp_path):
    lacking = make_trace(tmp_path / "a.wake", {"wakeups": [], "tasks": []})
    assert "no switches table" in build_report(lacking).to_json()["missing"]["latency"]
    with pytest.raises(TraceError, match="no switches table"):
        build_report(lacking, ["latency"])


@pytest.mark.parametrize(("tier", "odd"), [("decision", True), ("tracepoint", False)])
def test_flips_left_unchanged_are_odd_only_where_placement_is_known_to_have_run(trace, tier, odd):
    quiet = {"waker_last_wakee": 2, "waker_decay_ts": 1_000_000, "llc_size": 2}
    wakeups = [wake(10 * i, 0, 1, 2, 0, 0, **quiet) for i in range(100)]
    wakeups[50]["waker_last_wakee"] = wakeups[51]["waker_last_wakee"] = 9  # the wakeup of 2 did not note it
    report = build_report(trace(meta={"tier": tier}, tasks=[task(1), task(2)], wakeups=wakeups), ["flips"])
    assert report.to_json()["sections"]["flips"]["check"][2] == {"check": "unchanged", "wakeups": 1, "share": 0.01}
    assert any("should have run" in f.text for f in report.odd) == odd


def test_a_damaged_table_is_no_missing_section(tmp_path):
    """Its footer is sound and its pages are not: nothing may be said of what was not read."""
    damaged = make_trace(
        tmp_path / "a.wake",
        {"wakeups": [wake(5, 0, 1, 2, 0, 1)], "tasks": [task(1), task(2)], "switches": [switch(9, 1, 0, 2)]},
    )
    for table in ("wakeups", "tasks", "switches"):
        file = damaged.path / f"{table}.parquet"
        sound = file.read_bytes()
        file.write_bytes(sound[:4] + bytes(len(sound) // 3) + sound[4 + len(sound) // 3 :])
        with pytest.raises(TraceError, match=f"{table}.parquet"):
            build_report(Trace.open(damaged.path))
        file.write_bytes(sound)


def test_numbers_are_whole_however_narrow_the_console(trace):
    pids = (1_234_567, 2_345_678)
    tasks = [task(pid, b"fifteen letters") for pid in pids]
    report = build_report(trace(tasks=tasks, wakeups=[wake(1000 * i, 0, *pids, 1, 1) for i in range(1, 20)]))
    out = io.StringIO()
    report.render(Console(file=out, width=40))
    for table in (table for section in report.sections for table in section.tables if len(table.data)):
        assert any(all(name in line for name in visible(table.data)) for line in out.getvalue().splitlines())
    assert f"fifteen letters:{pids[0]}" in out.getvalue()


def test_a_cpu_is_shown_where_it_is_cpu_0_alone():
    assert visible(pd.DataFrame({"ring": ["wakeup"], "cpu": [0]})) == ["ring", "cpu"]
    far = pd.DataFrame({name: [int(name == "llc")] for name in NAMES})
    assert visible(far) == ["llc"]


def test_unknown_section_and_task_are_usage_errors(nasty):
    with pytest.raises(UsageError, match="no section 'colour'"):
        build_report(nasty, ["colour"])
    with pytest.raises(UsageError, match="no task"):
        build_report(nasty, task="nobody")


def test_loss_leads_the_report_and_is_shown_per_ring_and_cpu(trace):
    lossy = trace(
        tasks=[task(1), task(2)],
        wakeups=[wake(1000, 0, 1, 2, 1, 1, seq=0), wake(9000, 0, 1, 2, 1, 1, seq=5)],
    )
    report = build_report(lossy)
    assert report.odd[0].text.startswith("4 records were lost")
    data = report.to_json()
    assert (data["lost"], data["clean_share"]) == (4, pytest.approx(1 / 9))  # clean from 0 to 1000 of 9000
    assert data["sections"]["loss"]["per_cpu"][0] | {"blind_s": None} == {
        "ring": "wakeup", "cpu": 0, "tried": -1, "lost": 4, "windows": 1, "blind_s": None,
    }  # fmt: skip
