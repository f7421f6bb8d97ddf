# SPDX-License-Identifier: GPL-2.0-only
import pandas as pd
import pytest
from wakescope.analysis.affine import Affine, Source, counts_only_pulls, df_affine, df_affine_verdicts, df_pulls
from wakescope.tests.maketrace import mask, task, topology, wake

TASKS = [task(1, b"a"), task(2, b"b")]
MACHINE = {"nodes": 2, "cores": 2}  # LLC and node 0: CPUs 0-1; node 1: CPUs 2-3


def verdicts(made):
    return [(Affine(v).name, Source(s).name) for v, s in df_affine(made)[["verdict", "source"]].to_numpy()]


def test_why_it_was_not_called(trace):
    wide = {"waker_flips": 99, "wakee_flips": 9, "llc_size": 2, "waker_decay_ts": 1_000_000}
    wakeups = [
        wake(10, 0, 1, 2, 2, 0, **wide),
        wake(20, 0, 1, 2, 2, 2, llc_size=2, allowed=mask([2, 3])),
        wake(30, 0, 1, 2, 0, 0, llc_size=2),
        wake(40, 0, 1, 2, 2, 2, llc_size=2),
    ]
    made = trace(topology(**MACHINE, affine_nodes=False), tasks=TASKS, wakeups=wakeups)
    assert [v for v, _ in verdicts(made)] == ["WIDE", "DISALLOWED", "SAME_CPU", "NO_DOMAIN"]
    assert {s for _, s in verdicts(made)} == {"RULES"}


def test_the_llc_chosen_tells_across_llcs_and_not_within(trace):
    made = trace(
        topology(**MACHINE),
        tasks=TASKS,
        wakeups=[
            wake(10, 0, 1, 2, 2, 1, llc_size=2),
            wake(20, 0, 1, 2, 2, 3, llc_size=2),
            wake(30, 0, 1, 2, 1, 0, llc_size=2),
            wake(40, 0, 1, 2, 2, -1, llc_size=2),
        ],
    )
    assert verdicts(made) == [("GRANTED", "LLC"), ("REFUSED", "LLC"), ("UNKNOWN", "NONE"), ("UNKNOWN", "NONE")]


def test_schedstats_come_first(trace):
    def one(kernel, attempts, moves):
        wakeup = wake(10, 0, 1, 2, 2, 2, llc_size=2, affine_attempts=attempts, affine_moves=moves)
        return verdicts(trace(topology(**MACHINE), {"kernel": kernel}, tasks=TASKS, wakeups=[wakeup]))[0]

    assert one("6.12.8", 1, 1) == ("GRANTED", "SCHEDSTATS")
    assert one("6.12.8", 1, 0) == ("REFUSED", "SCHEDSTATS")
    assert one("6.1.4", 1, 1) == ("REFUSED", "LLC")  # a pick of prev_cpu counts there
    assert one("6.12.8", 0, 0) == ("UNKNOWN", "NONE")  # was not called, and no rule says why


def test_a_replay_fills_in_what_is_unknown_where_it_agrees(trace):
    made = trace(
        topology(**MACHINE),
        tasks=TASKS,
        wakeups=[wake(10 * i, 0, 1, 2, 1, 0, llc_size=2) for i in range(4)] + [wake(90, 0, 1, 2, 2, 1, llc_size=2)],
    )
    rule = pd.Categorical(["this idle", "weight prev", "sync", "none", "prev idle"])
    replay = pd.DataFrame({"rule": rule, "grant": [1, 0, 1, -1, 0], "cpu": [0, 0, 1, 0, 1]})
    rows = df_affine(made, replay)
    found = [(Affine(v).name, Source(s).name, r) for v, s, r in zip(rows.verdict, rows.source, rows.rule, strict=True)]
    assert found == [
        ("GRANTED", "REPLAY", "this idle"),
        ("REFUSED", "REPLAY", "weight prev"),
        ("UNKNOWN", "NONE", "unknown"),  # it chose another CPU
        ("UNKNOWN", "NONE", "unknown"),  # it was not asked
        ("GRANTED", "LLC", "unknown"),  # it contradicts what was seen
    ]
    table = df_affine_verdicts(made, replay)
    assert table["wakeups"].tolist() == [1, 1, 1, 2]
    assert table["rule"].tolist() == ["unknown", "this idle", "weight prev", "unknown"]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("6.1.4", False),
        ("6.1.0-57-amd64", False),
        ("6.1.192", True),
        ("5.15.135", True),
        ("5.10.262", False),
        ("7.3.4+deb", True),
        ("", False),
    ],
)
def test_which_kernels_count_only_pulls(kernel, expected):
    assert counts_only_pulls(kernel) is expected


def test_ubuntu_names_its_stable_release_in_its_signature():
    assert counts_only_pulls("5.15.0-139-generic", "#149-Ubuntu SMP (Ubuntu 5.15.0-139.149-generic 5.15.178)")
    assert not counts_only_pulls("5.15.0-60-generic", "#66-Ubuntu SMP (Ubuntu 5.15.0-60.66-generic 5.15.78)")


def test_debian_names_its_stable_release_in_the_version():
    assert counts_only_pulls("6.1.0-57-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (2026-11-26)")
    assert not counts_only_pulls("6.1.0-7-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.20-2 (2023-04-08)")


def test_verdicts_and_pulls_add_up(trace):
    made = trace(
        topology(nodes=2, cores=2, threads=2),  # LLC and node 0: CPUs 0-3; node 1: CPUs 4-7
        tasks=TASKS,
        wakeups=[
            wake(10, 0, 1, 2, 4, 1, llc_size=4),  # cross -> smt
            wake(20, 0, 1, 2, 4, 5, llc_size=4),  # stays across
            wake(30, 0, 1, 2, 2, 0, llc_size=4),  # llc -> cpu
            wake(40, 0, 1, 2, 0, 2, llc_size=4),  # pushed away, no pull
        ],
    )
    pulls = df_pulls(made).set_index("start")
    assert pulls["wakeups"].to_dict() == {"cpu": 1, "smt": 0, "llc": 1, "node": 0, "cross": 2, "unknown": 0}
    assert pulls["pulls"].to_dict() == {"cpu": 0, "smt": 0, "llc": 1, "node": 0, "cross": 1, "unknown": 0}
    assert (pulls.loc["cross", "smt"], pulls.loc["llc", "cpu"]) == (1, 1)
    table = df_affine_verdicts(made).set_index("verdict")
    assert table["wakeups"].to_dict() == {"same_cpu": 1, "granted": 1, "refused": 1, "unknown": 1}
    assert (table.loc["granted", "cross"], table.loc["unknown", "llc"]) == (1, 1)


def test_an_empty_trace(trace):
    assert df_affine_verdicts(trace()).empty
    assert df_pulls(trace())["pulls"].sum() == 0
