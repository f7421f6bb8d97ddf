# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
from wakescope.analysis.distance import Distance, distance
from wakescope.tests.maketrace import topology


def test_each_step_of_a_machine_with_all_levels():
    machine = topology(nodes=2, llcs=2, cores=2, threads=2)  # LLCs 0-3, 4-7 in node 0; 8-11, 12-15 in node 1
    far = distance(machine, np.zeros(7, np.int16), np.array([0, 1, 2, 4, 8, -1, 99]))
    assert [Distance(d).name for d in far] == ["CPU", "SMT", "LLC", "NODE", "CROSS", "UNKNOWN", "UNKNOWN"]


def test_a_hole_in_the_numbering_is_unknown():
    machine = topology(cores=4)
    del machine.cpus[2]
    assert distance(machine, np.array([2, 0, 0]), np.array([2, 2, 3])).tolist() == [5, 5, Distance.LLC]
