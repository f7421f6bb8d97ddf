# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
from wakescope.analysis.fights import df_delay_retry, df_fight_sums, df_fights
from wakescope.schema import NumaEvent
from wakescope.tests.maketrace import task, topology, wake

TASKS = [task(1, b"a"), task(2, b"b"), task(90, b"migration/0")]
MACHINE = {"nodes": 2, "cores": 2}  # node 0: CPUs 0-1; node 1: CPUs 2-3
MS = 1_000_000


def pull(ts, **more):
    """a on CPU 0 pulls b from CPU 2."""
    return wake(ts, 0, 1, 2, 2, 1, llc_size=2, **more)


def back(ts, by=90, orig=1, dest=3):
    return {"ts": ts, "cpu": 0, "pid": 2, "by_pid": by, "orig_cpu": orig, "dest_cpu": dest}


def test_a_pull_taken_back_is_a_cycle(trace):
    made = trace(
        topology(**MACHINE),
        meta={"start_ts": 0, "stop_ts": 5000 * MS},
        tasks=TASKS,
        wakeups=[
            pull(100 * MS),
            wake(120 * MS, 0, 1, 2, 1, 1),  # stays
            pull(300 * MS),
            pull(2000 * MS),
        ],
        migrations=[
            back(150 * MS),  # NUMA balancing, as announced
            back(310 * MS, by=0, orig=0, dest=2),  # the load balancer
            back(3500 * MS),  # too late
        ],
        numa=[
            {"ts": 110 * MS, "pid": 2, "event": NumaEvent.FAULT},
            {"ts": 149 * MS, "pid": 2, "event": NumaEvent.MOVE, "src_cpu": 1, "dst_cpu": 3},
            {"ts": 160 * MS, "pid": 2, "event": NumaEvent.FAULT},
        ],
    )
    fights = df_fights(made)
    assert fights[["task", "waker", "mover", "held_ms", "faults"]].to_numpy().tolist() == [
        ["b:2", "a:1", "numa", 50.0, 1.0],
        ["b:2", "a:1", "balance", 10.0, 0.0],
    ]
    assert fights[["home_nid", "pulled_nid"]].to_numpy().tolist() == [[1, 0], [1, 0]]
    assert len(df_fights(made, within_ms=2000)) == 3
    assert df_fights(made, task="a").empty
    sums = df_fight_sums(made, within_ms=2000).set_index("mover")
    assert sums.loc["numa", ["task", "cycles", "unclean", "held_ms", "faults"]].tolist() == ["b:2", 1, 0, 50.0, 1.0]
    assert sums["cycles"].to_dict() == {"numa": 1, "balance": 1, "stopper": 1}


def test_faults_are_unknown_where_none_are_recorded(trace):
    made = trace(topology(**MACHINE), tasks=TASKS, wakeups=[pull(100 * MS)], migrations=[back(110 * MS)])
    assert np.isnan(df_fights(made)["faults"][0])
    assert np.isnan(df_fight_sums(made)["faults"][0])


def test_what_a_back_off_would_have_suppressed(trace):
    """250 HZ, scan period 1000 ms: a back-off is 4000 ms, 1000 jiffies; an attempt puts the next off by 15."""
    numa = {"wakee_preferred_nid": 1, "wakee_scan_period": 1000, "waker_scan_period": 1000}

    def fault(ts, jiffies):
        return {
            "ts": ts, "pid": 2, "event": NumaEvent.FAULT, "jiffies": jiffies, "migrate_retry": jiffies + 15,
            "scan_period": 1000, "preferred_nid": 1,
        }  # fmt: skip

    made = trace(
        topology(**MACHINE),
        tasks=TASKS,
        wakeups=[pull(50, jiffies=10_000, wakee_migrate_retry=9_015, **numa)],
        numa=[fault(10, 9_000), fault(60, 10_100), fault(70, 10_990), fault(80, 11_500)],
    )
    row = df_delay_retry(made).iloc[0]
    assert (row["task"], row["attempts"], row["back_offs"]) == ("b:2", 4, 1)
    assert row["meant"] == 2  # 10,100 and 10,990 lie before 11,000
    assert row["merged"] == 3  # only 10,100 + 15 is before 11,000


def test_a_wakee_without_a_preferred_node_sets_no_back_off(trace):
    made = trace(topology(**MACHINE), tasks=TASKS, wakeups=[pull(50, jiffies=10_000)], numa=[])
    assert df_delay_retry(made).empty


def test_an_empty_trace(trace):
    assert df_fights(trace()).empty
    assert df_fight_sums(trace()).empty
