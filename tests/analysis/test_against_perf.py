# SPDX-License-Identifier: GPL-2.0-only
"""Latencies and migrations against perf's, which records the same run beside us and knows nothing of this code."""

import re
import subprocess
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from wakescope.analysis.balance import df_migrations
from wakescope.analysis.inputs import switches, unseen_switches
from wakescope.analysis.latency import Wait, df_waits
from wakescope.tests.conftest import WAKESCOPE
from wakescope.trace import Trace
from wakescope.tracers import host

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("live")]

TIMEHIST = re.compile(r"\s*(\d+)\.(\d{6}) \[\d+\] .*\[(\d+)(?:/\d+)?\]\s+[\d.]+\s+([\d.]+)\s+([\d.]+)")


@pytest.fixture(scope="module")
def both(live, perf, tmp_path_factory):
    """A trace and a perf.data of one hackbench run, on one clock."""
    folder = tmp_path_factory.mktemp("perf")
    trace, data = folder / "a.wake", folder / "perf.data"
    beside = [perf, "sched", "record", "-k", "CLOCK_MONOTONIC", "-m", "16M", "-o", data]
    run = [*WAKESCOPE, "record", "-o", trace, "--", *beside, "--", "hackbench", "-g", "2", "-l", "6000"]
    subprocess.run(run, check=True, capture_output=True)
    return Trace.open(trace), data


def perf_waits(data):
    """Each run of a task that timehist gives a scheduling delay: pid, run_ts and wait (ns, to a microsecond)."""
    text = subprocess.run(
        [host.perf(), "sched", "timehist", "-i", data], check=True, capture_output=True, text=True
    ).stdout
    rows = []
    for seconds, micros, pid, delay, ran in (m.groups() for m in map(TIMEHIST.match, text.splitlines()) if m):
        out = int(seconds) * 10**9 + int(micros) * 1000
        rows.append((int(pid), out - round(float(ran) * 1e6), round(float(delay) * 1e6)))
    table = pd.DataFrame(rows, columns=["pid", "run_ts", "wait"])
    return table[table["wait"] > 0].sort_values("run_ts", ignore_index=True)


def test_waits_are_timehists(both):
    trace, data = both
    perf, waits, switched = perf_waits(data), df_waits(trace), switches(trace)
    waits = waits[waits["state"] == Wait.RUN]
    mine = pd.DataFrame(
        {
            "pid": switched["next_pid"].to_numpy(np.int64)[waits["run"]],
            "run_ts": switched["ts"].to_numpy(np.int64)[waits["run"]],
            "mine": waits["wait"].to_numpy(),
        }
    ).sort_values("run_ts")
    assert len(perf) > 20_000
    found = pd.merge_asof(perf, mine, on="run_ts", by="pid", direction="nearest", tolerance=100_000)
    matched = found.dropna()
    # Not matched: forks, which tier tracepoint does not see, and tasks stopped between the two tracers' probes.
    assert len(matched) > 0.99 * len(perf)
    apart = (matched["mine"] - matched["wait"]).abs()
    assert apart.median() < 2_000
    assert (apart > 20_000).mean() < 0.005
    assert matched["mine"].quantile(0.9) == pytest.approx(matched["wait"].quantile(0.9), rel=0.01)


def migrations(trace):
    """Every sched_migrate_task of a trace: ts, pid, orig, dest; those of wakeups from the wakeups table."""
    rows = trace.df("wakeups", ["ts", "wakee_pid", "wakee_cpu", "chosen_cpu"]).query("chosen_cpu != wakee_cpu")
    moved = trace.df("migrations", ["ts", "pid", "orig_cpu", "dest_cpu"])
    columns = ["ts", "pid", "orig", "dest"]
    both = pd.concat([rows.set_axis(columns, axis=1), moved.set_axis(columns, axis=1)])
    return both.sort_values("ts", ignore_index=True)


def test_every_migration_perf_saw_is_counted(both):
    """perf throttles a tracepoint that fires in bursts, so it may have fewer, but none that is missing here."""
    trace, data = both
    command = [host.perf(), "script", "-i", data, "--ns", "-F", "comm,time,event,trace"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = re.compile(r"\s*hackbench\s.*sched_migrate_task:.* pid=(\d+) prio=-?\d+ orig_cpu=(\d+) dest_cpu=(\d+)")
    seen = Counter(tuple(map(int, m.groups())) for m in map(line.match, text.splitlines()) if m)
    mine = Counter(migrations(trace)[["pid", "orig", "dest"]].itertuples(index=False, name=None))
    assert seen.total() > 50
    assert not seen - mine
    assert df_migrations(trace)["migrations"].sum() == mine.total()


def test_a_tasks_migrations_form_a_chain(both):
    """Each begins where the one before ended: none is missing but for what is hidden from BPF, and none is made up."""
    moved = migrations(both[0])
    earlier = moved.groupby("pid")
    moved["since"], moved["before"] = earlier["ts"].shift(), earlier["dest"].shift()
    broken = moved[moved["before"].notna() & (moved["before"] != moved["orig"])]
    hidden = unseen_switches(both[0]).tolist()
    for since, ts in zip(broken["since"], broken["ts"], strict=True):
        assert any(start < ts and end > since for start, end in hidden)
