# SPDX-License-Identifier: GPL-2.0-only
"""model/flickers.py: readings that changed and changed back, known from other records of the trace."""

import numpy as np
import pytest
from wakescope.model.flickers import FLICKERED, mark_flickers
from wakescope.schema import NEVER
from wakescope.tests.maketrace import mask, records, switch, topology, wake

BOX = topology(nodes=2, cores=2, threads=2)  # LLCs of CPUs 0-3 and 4-7
KNOWN = {"this_has_idle_cores": 0, "prev_has_idle_cores": 0, "has_masks": 1, "this_nr_running": 2}
OWN = {**KNOWN, "ts_exit": 200, "this_has_idle_cores_exit": 0, "prev_has_idle_cores_exit": 0}


def marked(own=None, others=(), switches=(), migrations=()):
    """The row of a decision from 100 to 200 on CPU 0, prev 2, after marking."""
    rows = records("wakeups", [wake(100, 0, 1, 2, 2, 2, **{**OWN, "this_nr_running_exit": 2, **(own or {})}), *others])
    moved = records("migrations", migrations)
    mark_flickers(rows, records("switches", switches), moved, BOX)
    return rows[0]


def test_nothing_else_recorded_marks_nothing():
    row = marked()
    assert (row["idle"] == row["idle_exit"]).all()
    assert (row["this_has_idle_cores_exit"], row["prev_has_idle_cores_exit"], row["this_nr_running_exit"]) == (0, 0, 2)


@pytest.mark.parametrize(("prev", "following"), [(0, 9), (9, 0)])
def test_a_cpu_that_began_or_ceased_to_idle(prev, following):
    for was in ([], [3]):
        own = {"idle": mask(was), "idle_exit": mask(was)}
        row = marked(own, switches=[switch(150, 3, prev, following)])
        assert row["idle"][0] ^ row["idle_exit"][0] == 1 << 3


@pytest.mark.parametrize("change", [switch(99, 3, 9, 0), switch(201, 3, 9, 0), switch(150, 3, 9, 8)])
def test_switches_at_other_times_or_between_tasks_mark_nothing(change):
    row = marked(switches=[change])
    assert row["idle_exit"][0] == 0
    assert row["this_has_idle_cores_exit"] == 0


@pytest.mark.parametrize(("cpu", "had", "this"), [(3, 0, FLICKERED), (3, 1, 0), (5, 0, 0)])
def test_an_idle_core_may_appear_where_a_cpu_goes_idle_and_none_was(cpu, had, this):
    row = marked({"this_has_idle_cores": had}, switches=[switch(150, cpu, 9, 0)])
    assert row["this_has_idle_cores_exit"] == this


@pytest.mark.parametrize(("cpu", "read", "this"), [(1, 1, FLICKERED), (1, 0, 0), (1, -1, 0), (5, 1, 0)])
def test_another_decision_that_read_something_else_of_the_llc(cpu, read, this):
    other = wake(150, cpu, 3, 4, cpu, cpu, ts_exit=160, has_masks=1, this_has_idle_cores=read, prev_has_idle_cores=read)
    assert marked(others=[other])["this_has_idle_cores_exit"] == this


def test_a_decisions_own_readings_do_not_mark_it():
    """A search that fails clears has_idle_cores itself."""
    row = marked({"this_has_idle_cores": 1, "prev_has_idle_cores": 1})
    assert row["this_has_idle_cores_exit"] == 0


@pytest.mark.parametrize(("end", "chosen", "nr_running"), [(150, 0, 3), (150, 1, 2), (250, 0, 2)])
def test_another_decision_that_chose_the_wakers_cpu(end, chosen, nr_running):
    row = marked(others=[wake(140, 5, 3, 4, 5, chosen, ts_exit=end, has_masks=1)])
    assert row["this_nr_running_exit"] == nr_running


@pytest.mark.parametrize(("orig", "dest", "nr_running"), [(0, 5, 3), (5, 0, 3), (5, 6, 2)])
def test_a_task_moved_from_or_to_the_wakers_cpu(orig, dest, nr_running):
    moves = [{"ts": 150, "cpu": 7, "pid": 9, "orig_cpu": orig, "dest_cpu": dest}]
    assert marked(migrations=moves)["this_nr_running_exit"] == nr_running


def test_words_not_read_from_runqueues_are_left_alone():
    row = marked({"has_masks": 2, "this_nr_running_exit": NEVER}, switches=[switch(150, 3, 9, 0)])
    assert (row["idle_exit"][0], row["this_has_idle_cores_exit"], row["this_nr_running_exit"]) == (0, 0, NEVER)


def test_no_records_at_all():
    rows = records("wakeups", [])
    mark_flickers(rows, records("switches", []), None, BOX)
    assert np.array_equal(rows, records("wakeups", []))
