# SPDX-License-Identifier: GPL-2.0-only
"""find_idlest_group's step across nodes, with and without numa-idlest-stay-local, by its definition."""

from __future__ import annotations

from typing import Any

import pytest
from wakescope.model.compiled import plain
from wakescope.model.contrast import contrast
from wakescope.model.forks import Leaves, find_idlest_group, forks
from wakescope.model.kernels import kernel
from wakescope.model.variants import patched
from wakescope.schema import Outcome
from wakescope.tests.maketrace import make_trace, mask, switch, task, topology, wake

S, G, O = Leaves.STAYS, Leaves.GOES, Leaves.OPEN  # noqa: E741
BASE = kernel("4.15")
PATCHED = patched(BASE, ["numa-idlest-stay-local"])

# this node's runnable load, the least of the others -> without, with the patch; the imbalance of 125 is 256
TABLE = [
    (0, 0, O, S),
    (255, 0, O, S),  # without it the averages decide
    (256, 0, G, S),  # one busy CPU of four: the fork of a shell script
    (257, 0, G, G),
    (1024, 500, G, G),
    (756, 500, G, S),
    (100, 356, O, S),
    (100, 357, S, S),  # the other node is clearly busier
]


@pytest.mark.parametrize("function", [find_idlest_group, plain(find_idlest_group)])
@pytest.mark.parametrize(("this", "least", "without", "with_patch"), TABLE)
def test_find_idlest_group(function, this, least, without, with_patch):
    assert function(0, 125, this, least) == without
    assert function(1, 125, this, least) == with_patch


def test_the_patch_only_keeps_forks():
    for this in range(0, 1200, 50):
        for least in range(0, 1200, 50):
            without, with_patch = (find_idlest_group(rule, 125, this, least) for rule in (0, 1))
            assert with_patch in (without, Leaves.STAYS)


def trace(tmp_path: Any, rows: list[Any], nodes: int = 2) -> Any:
    switches = [switch(0, cpu, 0, 0) for cpu in range(4 * nodes)] + [switch(1, 0, 0, 1)]
    tables = {"wakeups": rows, "tasks": [task(1, b"sh"), task(2, b"child")], "switches": switches}
    return make_trace(tmp_path / "t.wake", tables, topology(nodes=nodes, cores=2, threads=2))


def fork(ts: int, load: int, outcome: Outcome = Outcome.FORK, **more: Any) -> Any:
    idle = mask([1, 2, 3])  # of the LLC of CPU 0, which the record covers; the rest is known from switches
    return wake(ts, 0, 1, 2, 0, 0, outcome, **{"this_load": load, "has_masks": 1, "idle": idle, **more})


def test_forks_from_the_one_busy_cpu(tmp_path):
    """A full load of 1024 on one CPU of four is 256 per capacity: this is what the patch keeps on its node."""
    rows = [fork(10, 1024), fork(20, 1028), fork(30, 500), fork(40, 1024, outcome=Outcome.EXEC)]
    rows += [fork(50, 1024, idle=mask([1, 2])), fork(60, 1024, allowed=mask([0, 1, 2, 3]))]
    made = trace(tmp_path, rows)
    without, with_patch = forks(made, BASE), forks(made, PATCHED)
    assert (without.stays, without.goes, without.undecided) == (1, 2, 3)
    assert (with_patch.stays, with_patch.goes, with_patch.undecided) == (3, 1, 2)


def test_without_nodes_there_is_nothing_to_keep(tmp_path):
    """'There is no difference on UMA': no domain has SD_NUMA."""
    made = trace(tmp_path, [fork(10, 1024)], nodes=1)
    assert forks(made, BASE) == forks(made, PATCHED)
    assert forks(made, BASE).stays == 1


def test_contrast_shows_forks_when_asked_to_approximate(tmp_path):
    made = trace(tmp_path, [fork(10, 1024), wake(20, 0, 1, 2, 0, 0, has_masks=1)])
    policies = [("4.15", BASE), ("patched", PATCHED), ("6.12", kernel("6.12"))]
    data = contrast(made, policies, approximate=True).to_json()["policies"]
    assert data["4.15"]["forks"] == {"stays": 0, "goes": 1, "undecided": 0}
    assert data["patched"]["forks"] == {"stays": 1, "goes": 0, "undecided": 0}
    assert data["6.12"]["forks"] is None
    assert any(note.startswith("APPROXIMATION: it places forks") for note in data["4.15"]["notes"])
    assert contrast(made, policies).to_json()["policies"]["4.15"]["forks"] is None
