# SPDX-License-Identifier: GPL-2.0-only
import pytest
from wakescope.analysis.balance import Mover, Undone, df_crossings, df_migrations, df_moved, df_undone, df_undone_counts
from wakescope.analysis.wakeups import DECISIONS
from wakescope.schema import NumaEvent, Outcome
from wakescope.tests.maketrace import task, topology, wake

TASKS = [task(1, b"a"), task(2, b"b"), task(3, b"c"), task(90, b"migration/1")]
MS = 1_000_000


def migrate(ts, pid, by, orig, dest, **more):
    return {"ts": ts, "cpu": 0, "pid": pid, "by_pid": by, "orig_cpu": orig, "dest_cpu": dest, **more}


def test_who_moved_it(trace):
    made = trace(
        topology(nodes=2, cores=2),
        tasks=TASKS,
        migrations=[
            migrate(1 * MS, 2, 0, 0, 1),
            migrate(2 * MS, 2, 1, 1, 0),
            migrate(3 * MS, 2, 90, 0, 1),
            migrate(4 * MS, 2, 2, 1, 2),
            migrate(5 * MS, 2, 90, 2, 0),
            migrate(6 * MS, 3, 90, 0, 2),
            migrate(40 * MS, 2, 90, 0, 1),
        ],
        numa=[
            {"ts": 5 * MS - 10, "pid": 2, "event": NumaEvent.SWAP, "dst_pid": 3, "src_cpu": 2, "dst_cpu": 0},
        ],
    )
    assert [Mover(m).name for m in df_moved(made)["mover"]] == [
        "BALANCE", "BALANCE", "STOPPER", "SELF", "NUMA", "NUMA", "STOPPER",
    ]  # fmt: skip
    table = df_migrations(made).set_index("mover")
    assert table["migrations"].to_dict() == {"numa": 2, "balance": 2, "stopper": 2, "self": 1}
    assert table.loc["numa", "cross"] == 2
    assert df_migrations(made, task="c")["migrations"].tolist() == [1]


def test_migrations_are_as_many_as_the_tracepoint_fired(trace):
    made = trace(
        topology(cores=4),
        tasks=TASKS,
        wakeups=[
            wake(100, 0, 1, 2, 1, 3, wakee_cpu=1),  # fires
            wake(200, 0, 1, 2, 3, 3, wakee_cpu=3),  # does not
            wake(300, 0, 1, 3, 0, 2, wakee_cpu=0, outcome=Outcome.FORK),  # does not: the child has no CPU to leave
            wake(400, 0, 1, 2, 3, 2, wakee_cpu=3),  # chose 2, which select_task_rq() replaced by 1: fires once
        ],
        migrations=[migrate(410, 2, 1, 3, 1, in_wakeup=1)],
    )
    table = df_migrations(made)
    assert table[["mover", "migrations", "llc"]].to_numpy().tolist() == [["wakeup", 2, 2]]


def test_crossings_are_the_migrations_to_another_node(trace):
    made = trace(
        topology(nodes=2, cores=2),
        meta={"start_ts": 1 * MS, "stop_ts": 9 * MS},
        tasks=TASKS,
        wakeups=[wake(4 * MS, 0, 1, 2, 2, 1, wakee_cpu=2), wake(5 * MS, 0, 1, 3, 1, 0, wakee_cpu=1)],
        migrations=[migrate(2 * MS, 2, 0, 0, 2), migrate(6 * MS, 2, 90, 1, 3), migrate(7 * MS, 99, 0, 1, 3)],
    )
    assert df_crossings(made).drop(columns="code").to_numpy().tolist() == [
        ["b:2", 1.0, "balance", 0, 1], ["b:2", 3.0, "wakeup", 1, 0], ["b:2", 5.0, "stopper", 0, 1],
    ]  # fmt: skip
    assert df_crossings(made, task="c").empty


def test_what_undid_a_wakeup(trace):
    made = trace(
        topology(nodes=2, llcs=2, cores=2),  # LLCs 0-1, 2-3 in node 0; 4-5, 6-7 in node 1
        tasks=TASKS,
        wakeups=[wake(i * 100 * MS, 0, 1, 2, 4, 1) for i in range(1, 8)],
        migrations=[
            migrate(101 * MS, 2, 0, 1, 4),  # back to prev_cpu
            migrate(202 * MS, 2, 0, 1, 5),  # to its LLC
            migrate(303 * MS, 2, 0, 1, 6),  # to its node
            migrate(404 * MS, 2, 0, 1, 0),  # elsewhere
            migrate(505 * MS, 2, 0, 3, 4),  # not off the chosen CPU
            migrate(611 * MS, 2, 0, 1, 4),  # too late
            migrate(705 * MS, 3, 0, 1, 4),  # not woken at all
        ],
    )
    undone = df_undone(made)
    assert [Undone(u).name for u in undone["undone"]] == ["BACK", "BACK_LLC", "BACK_NODE", "AWAY"]
    assert undone["after"].tolist() == [1000, 2000, 3000, 4000]
    assert len(df_undone(made, within_ms=20)) == 5
    table = df_undone_counts(made).set_index("undone")
    assert table["migrations"].to_dict() == {"back": 1, "back_llc": 1, "back_node": 1, "away": 1}
    assert table.loc["back", "share"] == pytest.approx(1 / 7)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in DECISIONS])
def test_a_wakeup_that_decides_nothing_leaves_the_choice_standing(trace, outcome):
    made = trace(
        topology(),
        tasks=TASKS,
        wakeups=[wake(MS, 0, 1, 2, 0, 1), wake(2 * MS, 0, 1, 2, 1, 1, outcome=outcome, wakee_cpu=1)],
        migrations=[migrate(3 * MS, 2, 0, 1, 0)],
    )
    assert df_undone(made)[["row", "after"]].to_numpy().tolist() == [[0, 2000]]


def test_an_empty_trace(trace):
    assert df_migrations(trace()).empty
    assert df_undone_counts(trace()).empty
