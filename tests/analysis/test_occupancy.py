# SPDX-License-Identifier: GPL-2.0-only
import pytest
from wakescope.analysis.occupancy import idle_words
from wakescope.schema import Outcome
from wakescope.tests.maketrace import mask, switch, task, topology, wake

TASKS = [task(p) for p in range(1, 6)]


def idle_cpus(trace):
    return [[c for c in range(64) if int(row[0]) >> c & 1] for row in idle_words(trace)[0]]


@pytest.fixture
def machine():
    return topology(llcs=2, cores=2)  # LLCs 0-1 and 2-3


def test_rebuilt_from_switches_and_wakeups_under_way(trace, machine):
    made = trace(
        machine,
        tasks=TASKS,
        wakeups=[
            wake(100, 0, 1, 2, 1, 1),  # CPU 1 idle before this
            wake(110, 0, 1, 3, 2, 2),  # 2 is on its way to CPU 1
            wake(200, 0, 1, 4, 0, 0, outcome=Outcome.QUEUED),  # both run by now; CPU 3 never switched: unknown
            wake(300, 0, 1, 5, 3, 3),  # CPU 1 idle again
        ],
        switches=[
            switch(10, 0, 0, 1),
            switch(150, 1, 0, 2),
            switch(160, 2, 0, 3),
            switch(250, 1, 2, 0),
        ],
    )
    assert idle_cpus(made) == [[1, 2], [2], [], [1]]
    assert [int(k[0]) for k in idle_words(made)[1]] == [0b0111] * 4


def test_a_task_that_ran_elsewhere_is_no_longer_on_its_way(trace, machine):
    made = trace(
        machine,
        tasks=TASKS,
        wakeups=[wake(100, 0, 1, 2, 1, 1), wake(200, 0, 1, 3, 1, 1)],
        switches=[switch(10, 1, 4, 0), switch(20, 2, 5, 0), switch(150, 2, 0, 2)],  # pulled from 1 to 2
    )
    assert idle_cpus(made) == [[1, 2], [1]]


def test_an_offline_cpu_is_not_idle(trace, machine):
    made = trace(
        machine,
        tasks=TASKS,
        wakeups=[wake(t, 0, 1, 2, 1, 0) for t in (100, 200, 300)],
        switches=[switch(10, 3, 5, 0)],
        hotplugs=[{"ts": 150, "target_cpu": 3, "online": 0}, {"ts": 250, "target_cpu": 3, "online": 1}],
    )
    assert idle_cpus(made) == [[3], [], [3]]


def test_measured_words_win_where_they_reach(trace, machine):
    switches = [switch(10, c, 5, 0) for c in range(4)]
    wakeups = [
        wake(100, 0, 1, 2, 1, 1, has_masks=1, idle=mask([1])),  # says CPU 0 is busy; 2 and 3 are rebuilt
        wake(200, 0, 1, 2, 2, 2, has_masks=1, idle=mask([2])),  # both LLCs measured
        wake(300, 0, 1, 2, 1, 1, has_masks=2, idle=mask([3])),  # all CPUs measured
    ]
    made = trace(machine, tasks=TASKS, wakeups=wakeups, switches=switches)
    assert idle_cpus(made) == [[1, 2, 3], [2], [3]]


def test_more_cpus_than_a_word_holds(trace):
    made = trace(
        topology(cores=70),
        tasks=TASKS,
        wakeups=[wake(100, 0, 1, 2, 66, 66), wake(110, 0, 1, 3, 66, 66)],
        switches=[switch(10, 66, 5, 0)],
    )
    assert [[int(w) for w in row] for row in idle_words(made)[0]] == [[0, 1 << 2], [0, 0]]
