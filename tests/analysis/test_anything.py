# SPDX-License-Identifier: GPL-2.0-only
"""Whatever a trace holds, a report of it is made or refused by name, and its sums add up."""

import io
import json

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from wakescope.analysis.report import build_report
from wakescope.schema import Context, NumaEvent, Outcome, TaskEvent
from wakescope.tests.maketrace import make_trace, topology

CPUS = 8
cpus, pids, times = st.integers(0, CPUS - 1), st.integers(0, 4), st.integers(1, 10**9)
somewhere = st.integers(-1, CPUS - 1)
word = st.integers(0, 2**CPUS - 1).map(lambda bits: [bits])
jiffies = st.integers(0, 2000)


def row(**columns):
    return st.fixed_dictionaries({"ts": times, "cpu": cpus, **columns})


wakeups = row(
    ts_exit=times, jiffies=jiffies, jiffies_exit=jiffies,
    waker_pid=pids, wakee_pid=st.integers(1, 4),
    waker_start=st.integers(0, 2), wakee_start=st.integers(0, 2),
    waker_tag=pids, wakee_tag=pids, waker_last_wakee=pids,
    waker_flips=st.integers(0, 99), wakee_flips=st.integers(0, 99), waker_decay_ts=jiffies, prev_cpu=somewhere,
    chosen_cpu=somewhere, wakee_cpu=cpus, outcome=st.sampled_from([*Outcome]), context=st.sampled_from([*Context]),
    wake_flags=st.sampled_from([0, 0x18, 2**32 - 1]), llc_size=st.integers(1, 8),
    has_masks=st.integers(0, 2), idle=word, sched_idle=word, allowed=word,
    affine_attempts=st.integers(-1, 1), affine_moves=st.integers(-1, 1),
    wakee_preferred_nid=st.integers(-1, 1), waker_migrate_retry=jiffies, wakee_migrate_retry=jiffies,
    waker_scan_period=jiffies, wakee_scan_period=jiffies,
)  # fmt: skip
switches = row(prev_pid=pids, next_pid=pids, prev_on_rq=st.integers(0, 1), seq=st.integers(0, 50))
migrations = row(pid=pids, by_pid=pids, orig_cpu=cpus, dest_cpu=cpus, in_wakeup=st.integers(0, 1))
numa = row(
    pid=pids, dst_pid=pids, src_cpu=cpus, dst_cpu=somewhere, dst_nid=st.integers(0, 1),
    event=st.sampled_from([*NumaEvent]), preferred_nid=st.integers(-1, 1), scan_period=jiffies,
    migrate_retry=jiffies, jiffies=jiffies,
)  # fmt: skip
tasks = row(
    start=st.integers(0, 2), pid=pids, tgid=pids, event=st.sampled_from([*TaskEvent]), comm=st.binary(max_size=15)
)
hotplugs = row(target_cpu=cpus, online=st.integers(0, 1))
tables = st.fixed_dictionaries(
    {
        name: st.lists(rows, max_size=12)
        for name, rows in {
            "wakeups": wakeups, "switches": switches, "migrations": migrations, "numa": numa, "tasks": tasks,
            "hotplugs": hotplugs,
        }.items()
    }
)  # fmt: skip


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables)
def test_a_report_of_anything(tmp_path_factory, made):
    trace = make_trace(tmp_path_factory.mktemp("any") / "a.wake", made, topology(nodes=2, llcs=1, cores=2, threads=2))
    report = build_report(trace)
    report.render(Console(file=io.StringIO(), width=120))
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    placed = np.array([w["outcome"] for w in made["wakeups"]])
    decisions = int(np.isin(placed, [Outcome.PLACED, Outcome.FORK, Outcome.EXEC]).sum())
    sections = data["sections"]
    assert sum(r["wakeups"] for r in sections["placement"]["outcomes"]) == len(placed)
    for table, column in (("moves", "moved"), ("moves", "from_waker"), ("paths", "decisions")):
        assert sum(r[column] for r in sections["placement"][table]) == decisions
    assert sum(r["wakeups"] for r in sections["flips"]["check"]) == len(placed)
    assert sum(r["wakeups"] for r in sections["affine"]["verdicts"]) == (placed == Outcome.PLACED).sum()
    for group in ("by_moved", "by_sibling"):
        for count in ("waits", "censored", "unclean"):
            assert sum(r[count] for r in sections["latency"][group]) == sections["latency"]["all"][0][count]
