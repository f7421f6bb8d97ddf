# SPDX-License-Identifier: GPL-2.0-only
"""Flips derived over a trace under another record_wakee."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wakescope.model import variants_flips
from wakescope.model.compiled import plain
from wakescope.model.flips import record_both
from wakescope.model.kernels import kernel
from wakescope.model.policy import Flips
from wakescope.model.variants import patched
from wakescope.model.variants_flips import derive_flips, same_flips
from wakescope.schema import NEVER, Outcome
from wakescope.tests.maketrace import make_trace, task, topology, wake
from wakescope.trace import Trace

HZ = 250
STOCK = kernel("6.12")
J = 1_000_000
MACHINE = topology(nodes=1, cores=2, threads=2)  # an LLC of 4 CPUs, 2 cores


class Kernel:
    """Makes wakeups whose flips are what a stock kernel's record_wakee makes of them."""

    def __init__(self) -> None:
        self.state: dict[int, tuple[int, int, int]] = {}
        self.rows: list[Any] = []

    def of(self, pid: int) -> tuple[int, int, int]:
        return self.state.get(pid, (0, J, 0))

    def wakes(self, waker: int, wakee: int, jiffies: int = J, outcome: int = Outcome.PLACED) -> None:
        before, its = self.of(waker), self.of(wakee)
        after = before
        if outcome == Outcome.PLACED:
            after = plain(record_both)(int(Flips.WAKER), 4, jiffies, HZ, before, its[:2], wakee)[:3]
        if outcome == Outcome.FORK:
            self.state[wakee] = before
            its = before
        self.state[waker] = after
        columns = {}
        for name, values in (("waker", before), ("wakee", its)):
            columns |= {f"{name}_flips": values[0], f"{name}_decay_ts": values[1], f"{name}_last_wakee": values[2]}
        exits = {"waker_flips_exit": after[0], "waker_decay_ts_exit": after[1], "waker_last_wakee_exit": after[2]}
        more = {"llc_size": 4, **columns, **exits, "jiffies": jiffies}
        self.rows.append(wake(len(self.rows), 0, waker, wakee, 1, 1, outcome, **more))

    def trace(self, path: Path) -> Trace:
        tasks = [task(pid) for pid in sorted({row[who] for row in self.rows for who in ("waker_pid", "wakee_pid")})]
        return make_trace(path / "t.wake", {"wakeups": self.rows, "tasks": tasks}, MACHINE)


def busy(seed: int = 1, n: int = 300) -> Kernel:
    """Random wakeups of a few tasks, some of them not placed, over several seconds."""
    rng = np.random.default_rng(seed)
    made, jiffies = Kernel(), J
    for _ in range(n):
        jiffies += int(rng.choice([0, 1, 300], p=[0.6, 0.35, 0.05]))
        waker, wakee = (int(pid) for pid in rng.choice([1, 2, 3, 4], 2, replace=False))
        made.wakes(waker, wakee, jiffies, Outcome.PLACED if rng.random() < 0.9 else Outcome.PINNED)
    return made


def flips(trace: Trace, *patches: str) -> list[tuple[int, int]]:
    """Waker's and wakee's flips at each wakeup."""
    rows = derive_flips(trace, patched(STOCK, list(patches)), HZ).rows
    return list(zip(rows["waker_flips"].tolist(), rows["wakee_flips"].tolist(), strict=True))


def test_the_kernels_own_rule_gives_the_kernels_own_flips(tmp_path):
    made = busy()
    trace = made.trace(tmp_path)
    found = derive_flips(trace, STOCK, HZ)
    wakeups = trace.array("wakeups")
    for name in found.rows.dtype.names:
        assert (found.rows[name] == wakeups[name]).all(), name
    assert found.unexplained == 0
    assert found.followed > len(wakeups)  # waker and wakee of each, but for their first records


def test_coupled_flips_come_from_their_own_history(tmp_path):
    made = Kernel()
    for wakee in (2, 3, 2, 3):  # 1 wakes two others in turn, which wake nobody
        made.wakes(1, wakee)
    assert flips(made.trace(tmp_path)) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert flips(Trace.open(tmp_path / "t.wake"), "couple-wakee-flips") == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_coupled_flips_decay_with_the_wakee(tmp_path):
    made = Kernel()
    for _ in range(4):
        made.wakes(1, 2)
        made.wakes(1, 3)
    made.wakes(1, 2, J + 251)
    made.wakes(1, 3, J + 252)
    found = flips(made.trace(tmp_path), "couple-wakee-flips")
    assert found[7] == (7, 3)  # 2 and 3 have had four flips each after this one
    assert found[8] == (8, 4)
    assert found[9] == (5, 4)  # 8 >> 1, + 1; 3 did not decay yet
    rows = derive_flips(Trace.open(tmp_path / "t.wake"), patched(STOCK, ["couple-wakee-flips"]), HZ).rows
    assert rows["wakee_decay_ts"][8] == J
    assert rows["waker_decay_ts"][9] == J + 251


def test_heavy_wakers_give_what_they_have_in_plenty(tmp_path):
    made = Kernel()
    for wakee in (2, 3) * 6:
        made.wakes(1, wakee)
    # a wakee earns one while 1 has more than 8 times its flips: at 1 (2 and 3 have none), then at 9 and more
    found = [wakee for _, wakee in flips(made.trace(tmp_path), "couple-heavy-wakers")]
    assert found == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2]


def test_a_child_starts_with_its_parents_flips(tmp_path):
    made = Kernel()
    for wakee in (2, 3, 2, 3):
        made.wakes(1, wakee)
    made.wakes(2, 5, outcome=Outcome.FORK)
    made.wakes(1, 5)
    found = flips(made.trace(tmp_path), "couple-wakee-flips")
    assert found[4] == (2, 2)  # 2 was woken twice, and 5 is its child
    assert found[5] == (4, 2)


def test_before_4_9_every_wakeup_of_a_fair_task_counts(tmp_path):
    made = Kernel()
    made.wakes(1, 2, outcome=Outcome.PINNED)
    made.wakes(1, 3, outcome=Outcome.QUEUED)
    made.wakes(1, 3, outcome=Outcome.NOT_FAIR)
    made.wakes(1, 2)
    trace = made.trace(tmp_path)
    assert derive_flips(trace, STOCK, HZ).rows["waker_flips"].tolist() == [0, 0, 0, 0]
    assert derive_flips(trace, kernel("4.3"), HZ).rows["waker_flips"].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("release", "delayed", "queued"), [("4.12.0", 1, 1), ("5.4", 1, 1), ("5.10", 1, 0), ("6.6", 1, 0), ("6.12", 0, 0)]
)
def test_kernels_that_placed_a_wakeup_recorded_it(tmp_path, release, delayed, queued):
    """A sleeper whose dequeue is delayed is not placed since 6.12, one that still leaves its CPU not since 5.8."""
    for outcome, counts in ((Outcome.DELAYED, delayed), (Outcome.WAKELIST, queued), (Outcome.QUEUED, 0)):
        made = Kernel()
        made.wakes(1, 2, outcome=outcome)
        made.wakes(1, 3, outcome=outcome)
        made.wakes(1, 4, outcome=outcome)
        made.rows[1]["wakee_nr_allowed"] = 1  # nobody is asked where a pinned task goes
        made.wakes(1, 2)
        folder = tmp_path / outcome.name
        folder.mkdir()
        trace = made.trace(folder)
        assert derive_flips(trace, kernel(release), HZ).rows["waker_flips"].tolist() == [0, counts, counts, 2 * counts]
        assert same_flips(trace, kernel(release), STOCK) == (not counts)


def test_a_factor_in_cores_is_a_factor_of_the_heavy_too(tmp_path):
    """Of an LLC of 4 CPUs and 2 cores: more than 4 times the wakee's flips are plenty then, not more than 8."""
    made = Kernel()
    for wakee in (2, 3) * 6:
        made.wakes(1, wakee)
    found = [wakee for _, wakee in flips(made.trace(tmp_path), "couple-heavy-wakers", "llc-size-cores")]
    assert found == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_what_moved_unseen_is_taken_over_and_counted(tmp_path):
    made = Kernel()
    made.wakes(1, 2)
    made.wakes(1, 3)
    made.state[1] = (7, J, 3)  # five more flips without a record
    made.wakes(1, 2)
    found = derive_flips(made.trace(tmp_path), patched(STOCK, ["couple-wakee-flips"]), HZ)
    assert found.rows["waker_flips"].tolist() == [0, 1, 7]
    assert found.rows["wakee_flips"].tolist() == [0, 0, 1]
    assert found.unexplained == 1


def test_unknown_flips_stay_unknown(tmp_path):
    made = Kernel()
    made.wakes(1, 2)
    made.wakes(1, 3)
    for name in ("waker_flips", "wakee_flips"):
        made.rows[1][name] = NEVER
    trace = made.trace(tmp_path)
    history = derive_flips(trace, patched(STOCK, ["couple-wakee-flips"]), HZ)
    assert history.into(trace.array("wakeups"), 0)["waker_flips"].tolist() == [0, NEVER]


@pytest.mark.parametrize("patches", [["couple-wakee-flips"], ["couple-heavy-wakers"], ["twiddle"]])
def test_compiled_and_plain_agree(tmp_path, monkeypatch, patches):
    trace = busy(2).trace(tmp_path)
    policy = patched(STOCK, patches)
    compiled = derive_flips(trace, policy, HZ)
    monkeypatch.setattr(variants_flips, "_derive", plain(variants_flips._derive))
    assert (derive_flips(trace, policy, HZ).rows == compiled.rows).all()
