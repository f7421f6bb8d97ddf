# SPDX-License-Identifier: GPL-2.0-only
"""Each section where a trace is not as one would wish: pids used again, new names, CPUs that go, lost records."""

import pytest
from wakescope.analysis.balance import df_undone_counts
from wakescope.analysis.bounces import df_bounces
from wakescope.analysis.fights import df_fights
from wakescope.analysis.flips import df_flip_check
from wakescope.analysis.latency import df_latency
from wakescope.analysis.numa import df_retries
from wakescope.analysis.report import build_report
from wakescope.analysis.sections import SECTIONS, View
from wakescope.analysis.stacking import df_stacked, df_stacking
from wakescope.errors import TraceError
from wakescope.schema import NumaEvent, TaskEvent
from wakescope.tests.maketrace import make_trace, mask, records, switch, task, topology, wake
from wakescope.trace import write_table

MS = 1_000_000
MACHINE = {"nodes": 2, "cores": 2}  # LLC and node 0: CPUs 0-1; node 1: CPUs 2-3
TASKS = [task(1, b"a"), task(2, b"b")]


def tables(report, section):
    return report.to_json()["sections"][section]


@pytest.fixture
def reused(trace):
    """pid 2 is b until 50 ms, then another b, later named c: each is woken thrice, bounced, pulled and sent back."""
    wakeups, switches, migrations, numa = [], [], [], []
    for begin, start in ((10 * MS, 2), (60 * MS, 60 * MS)):
        for i, (prev, chosen) in enumerate(((2, 2), (2, 1), (1, 2))):
            ts = begin + 5 * i * MS
            mine = {"wakee_start": start, "wakee_cpu": prev, "wakee_migrate_retry": 1_000_000 + i, "llc_size": 2}
            wakeups.append(wake(ts, 0, 1, 2, prev, chosen, waker_migrate_retry=0, **mine))
            switches += [switch(ts + 1000, chosen, 0, 2), switch(ts + 3000, chosen, 2, 0)]
        migrations.append({"ts": begin + 6 * MS, "pid": 2, "by_pid": 0, "orig_cpu": 1, "dest_cpu": 3})
        numa.append({"ts": begin + 6 * MS, "pid": 2, "event": NumaEvent.FAULT, "migrate_retry": 1_000_001})
    return trace(
        topology(**MACHINE),
        meta={"start_ts": 0, "stop_ts": 100 * MS},
        tasks=[
            *TASKS, task(2, b"b", ts=50 * MS, event=TaskEvent.EXIT), task(2, b"b", 60 * MS, TaskEvent.NEW, 60 * MS),
            task(2, b"c", 65 * MS, TaskEvent.RENAME, 60 * MS),
        ],
        wakeups=wakeups, switches=switches, migrations=migrations, numa=numa,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("section", "table", "column", "count"),
    [
        ("placement", "pairs", "wakee", {"decisions": 3}),
        ("flips", "wide", "wakee", {"decisions": 3}),
        ("affine", "bounces", "task", {"decisions": 3, "bounces": 1}),
        ("affine", "pair_bounces", "wakee", {"decisions": 3, "bounces": 1}),
        ("runqueue", "tasks", "task", {"runs": 3, "running_ms": 0.006, "wake_waits": 3}),
        ("numa", "retries", "task", {"attempts": 2}),
        ("numa", "fights", "task", {"held_ms": 1.0, "home_nid": 1}),
    ],
)
def test_a_pid_used_again_and_a_new_name_are_told_apart(reused, section, table, column, count):
    rows = {row[column]: row for row in tables(build_report(reused, [section]), section)[table]}
    assert set(rows) == {"b:2", "c:2#2"}
    assert all({key: row[key] for key in count} == count for row in rows.values())


@pytest.mark.parametrize(("section", "table"), [("latency", "all"), ("balance", "migrations"), ("affine", "verdicts")])
def test_a_task_is_chosen_by_a_name_it_no_longer_has(reused, section, table):
    def total(task):
        rows = tables(build_report(reused, [section], task), section)[table]
        return sum(row.get("waits", 0) + row.get("migrations", 0) + row.get("wakeups", 0) for row in rows)

    assert total("c") > 0
    assert total("b") == 2 * total("c")  # the second was a b, too
    assert total("2") == total("b")


def test_a_cpu_that_goes_is_no_place_a_task_could_have_gone(trace):
    def found(*events):
        made = trace(
            topology(cores=3),
            tasks=TASKS,
            wakeups=[wake(50, 0, 1, 2, 1, 1, has_masks=0), wake(90, 0, 1, 2, 1, 1, has_masks=0)],
            switches=[switch(10, 1, 0, 9), switch(11, 2, 9, 0)],
            hotplugs=[{"ts": ts, "target_cpu": 2, "online": online} for ts, online in events],
        )
        assert len(build_report(made).odd) == 3
        return [int(s) for s in df_stacked(made)["stacking"]]

    llc, no_other = 2, 1
    assert found() == [llc, llc]
    assert found((40, 0)) == [no_other, no_other]
    assert found((40, 0), (60, 1)) == [no_other, llc]


@pytest.mark.parametrize("table", ["wakeups", "switches", "migrations", "tasks", "numa"])
def test_a_clock_that_steps_back_is_refused_by_every_section_that_reads_it(tmp_path, monkeypatch, table):
    made = {"wakeups": [wake(10, 0, 1, 2, 0, 0)] * 2, "switches": [switch(20, 0, 1, 2)] * 2, "tasks": TASKS}
    made |= {"migrations": [{"ts": 30, "pid": 2, "by_pid": 0}] * 2, "numa": [{"ts": 40, "pid": 2}] * 2}
    rows = records(table, made[table])
    rows["ts"][0] = 99
    monkeypatch.setattr("wakescope.trace.np.argsort", lambda values, kind: range(len(values)))  # write it as it is
    broken = make_trace(tmp_path / "a.wake", {**made, table: rows}, topology(**MACHINE))
    monkeypatch.undo()
    read = {
        "wakeups": set(SECTIONS) - {"loss"},
        "tasks": set(SECTIONS) - {"loss", "latency"},
        "migrations": {"numa", "balance"},
        "switches": set(SECTIONS),  # every report says how much of the switches is clean
        "numa": {"numa", "balance"},
    }[table]
    for section in SECTIONS:
        try:
            build_report(broken, [section])
            refused = False
        except TraceError as error:
            refused = f"{table}.parquet is not in time order" in str(error)
        assert refused == (section in read), section


def lost(row, seq):
    return {**row, "seq": seq}


def test_flips_and_waits_over_lost_records_are_unknown(trace):
    made = trace(
        tasks=TASKS,
        wakeups=[wake(10, 0, 1, 2, 0, 0, seq=0), wake(90, 0, 1, 2, 0, 0, seq=4)],
        switches=[switch(5, 0, 9, 1, seq=0), switch(95, 0, 1, 2, seq=7)],
    )
    assert df_flip_check(made).set_index("check")["wakeups"]["loss"] == 1
    assert df_latency(made)[["waits", "unclean"]].to_numpy().tolist() == [[0, 2]]


def test_a_bounce_over_lost_decisions_is_counted_apart(trace):
    def bounced(seqs):
        rows = [wake(1000 * i, 0, 1, 2, 0, cpu, seq=s) for i, (cpu, s) in enumerate(zip((0, 1, 0), seqs, strict=True))]
        return df_bounces(trace(tasks=TASKS, wakeups=rows)).iloc[0][["bounces", "unclean", "llc"]].tolist()

    assert bounced((0, 1, 2)) == [1, 0, 1]
    assert bounced((0, 1, 5)) == [0, 1, 0]


@pytest.mark.parametrize("gap", [False, True])
def test_what_undid_a_wakeup_is_unknown_if_a_later_one_may_be_lost(trace, gap):
    made = trace(
        topology(**MACHINE),
        tasks=TASKS,
        wakeups=[wake(1 * MS, 0, 1, 2, 2, 1, seq=0), wake(9 * MS, 0, 1, 9, 0, 0, seq=5 if gap else 1)],
        migrations=[{"ts": 2 * MS, "pid": 2, "by_pid": 0, "orig_cpu": 1, "dest_cpu": 2}],
        numa=[],
    )
    assert df_undone_counts(made)["undone"].tolist() == ["unclean" if gap else "back"]
    assert df_fights(made)["unclean"].tolist() == [gap]
    findings = SECTIONS["numa"](View(made)).findings
    assert any("balancing took it back" in f.text for f in findings) != gap


@pytest.mark.parametrize("gap", [False, True])
def test_an_attempt_without_an_event_is_settled_only_if_none_can_be_lost(trace, gap):
    def fault(ts, jiffies, seq):
        return {
            "ts": ts, "pid": 2, "event": NumaEvent.FAULT, "jiffies": 1000 + jiffies, "migrate_retry": 1015 + jiffies,
            "scan_period": 1000, "seq": seq,
        }  # fmt: skip

    rings = [{"ring": "event", "cpu": 0, "tried": 9 if gap else 4, "lost": 5 if gap else 0}]
    made = trace(
        topology(**MACHINE), meta={"rings": rings}, tasks=TASKS, numa=[fault(10 * MS, 0, 0), fault(900 * MS, 200, 1)]
    )
    if gap:  # make_trace numbers the event ring itself
        rows = made.array("numa")
        rows["seq"][1] += 5
        write_table(made.path, "numa", rows)
    row = df_retries(made).iloc[0]
    assert row[["attempts", "settled", "unknown"]].tolist() == ([2, 1, 1] if gap else [2, 2, 0])


def test_who_is_idle_is_unknown_while_switches_may_be_lost(trace):
    made = trace(
        topology(cores=2),
        tasks=TASKS,
        wakeups=[wake(ts, 0, 1, 2, 1, 1, has_masks=0) for ts in (50, 150, 250)],
        switches=[switch(10, 1, 9, 0, seq=0), switch(100, 1, 0, 9, seq=1), switch(200, 1, 9, 0, seq=8)],
    )
    stacking = df_stacking(made).set_index("stacking")["decisions"].to_dict()
    assert stacking == {"idle": 2, "unknown": 1}
    known = df_stacked(
        trace(topology(cores=2), tasks=TASKS, wakeups=[wake(50, 0, 1, 2, 1, 1, has_masks=1, idle=mask([1]))])
    )
    assert known["stacking"].tolist() == [0]  # measured, whatever switches are there
