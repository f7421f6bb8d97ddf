# SPDX-License-Identifier: GPL-2.0-only
"""NUMA balancing's events against bpftrace's own count of them, in the box, where a load makes it search and move."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from wakescope.analysis.numa import df_attempts, df_retries, df_searches
from wakescope.errors import WakescopeError
from wakescope.schema import NumaEvent
from wakescope.testbox.kernels import find
from wakescope.tests.analysis.naive import Rows
from wakescope.tests.conftest import WAKESCOPE
from wakescope.trace import Trace

pytestmark = pytest.mark.box

HOG = Path(__file__).with_name("numa_hog.py")
# NUMA balancing acts in its task's own time, so tid is the task; bpftrace 0.17 cannot read a tracepoint's pid on 5.10.
COUNT = """
kprobe:task_numa_find_cpu { @["find", tid] = count(); }
kprobe:task_numa_fault { @["fault", tid] = count(); }
tracepoint:sched:sched_move_numa { @["move", tid] = count(); printf("moved %d\\n", tid); }
tracepoint:sched:sched_stick_numa { @["stick", tid] = count(); }
tracepoint:sched:sched_swap_numa { @["swap", tid] = count(); printf("moved %d\\n", tid); }
BEGIN { printf("ready\\n"); }
"""
MIGRATIONS = 'tracepoint:sched:sched_migrate_task { @["migrate", args->pid] = count(); }'
# Counting begins while the recording runs, and the hog lives while both do.
LOAD = """
bpftrace -e "$1" > /out/counts &
counter=$!
for i in $(seq 120); do grep -q ready /out/counts && break; sleep 1; done
"$2" "$3" /out/counts > /out/pids
kill -INT $counter
wait $counter
"""


LONG = [pytest.param(release, marks=pytest.mark.long) for release in ("5.10", "6.1", "7.3")]


@pytest.fixture(scope="module", params=["6.12", *LONG])
def both(request, tmp_path_factory):
    """A trace, and Counters of what bpftrace saw of the hog's threads, by event and pid."""
    if shutil.which("bpftrace") is None:
        pytest.skip("bpftrace is not installed")
    try:
        find(request.param, lambda _: None)
    except WakescopeError as error:
        pytest.skip(str(error))
    out = tmp_path_factory.mktemp("numa")
    box = [*WAKESCOPE, "box", "run", "--kernel", request.param, "--topology", "2s2c2t", "--out", out]
    count = COUNT if request.param == "5.10" else COUNT + MIGRATIONS
    load = ["sh", "-c", LOAD, "-", count, sys.executable, HOG]
    record = [*WAKESCOPE, "record", "--tier", "decision", "-o", "/out/numa.wake", "--", *load]
    done = subprocess.run([*map(str, box), "--", *map(str, record)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pids = {int(pid) for pid in (out / "pids").read_text().split()}
    counts = re.findall(r"@\[(\w+), (\d+)\]: (\d+)", (out / "counts").read_text())
    seen = Counter({(event, int(pid)): int(count) for event, pid, count in counts if int(pid) in pids})
    return Trace.open(out / "numa.wake"), pids, seen


def test_every_event_of_numa_balancing_is_a_row(both):
    trace, pids, seen = both
    rows = trace.df("numa")
    rows = rows[rows["pid"].isin(pids)]
    mine = Counter((NumaEvent(e).name.lower(), pid) for e, pid in zip(rows["event"], rows["pid"], strict=True))
    assert {key: n for key, n in seen.items() if key[0] != "migrate"} == mine
    assert sum(n for (event, _), n in mine.items() if event == "find") >= 5
    assert any(event in ("move", "swap") for event, _ in mine)
    searched = df_searches(trace)
    assert searched[searched["task"].str.split(":").str[1].isin(map(str, pids))]["searches"].sum() == sum(
        n for (event, _), n in seen.items() if event == "find"
    )


def test_every_migration_is_counted(both):
    trace, pids, seen = both
    if trace.meta["kernel"].startswith("5.10"):
        pytest.skip("bpftrace 0.17 cannot read the pid there")
    labels = Rows(trace.path)
    moved = Counter(task for _, task, *_ in labels.migrations)
    for pid in pids:
        assert moved[labels.holder(pid, trace.span[1])] == seen["migrate", pid]


def test_a_search_belongs_to_an_attempt(both):
    """The deadline a search shows is one that df_attempts derived, and its result is what the event after it says."""
    trace, pids, _ = both
    rows = trace.df("numa")
    finds = rows[(rows["event"] == NumaEvent.FIND) & rows["pid"].isin(pids)]
    attempts = df_attempts(trace)
    assert set(finds["migrate_retry"]) <= set(attempts["retry"])
    assert (attempts["seen_late"][attempts["own"]] >= 0).all()
    assert df_retries(trace)["off_rule"].sum() == 0
