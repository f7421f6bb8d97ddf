# SPDX-License-Identifier: GPL-2.0-only
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wakescope.topology import Group, Topology
from wakescope.tracers.domains import _Groups, mask_cpus
from wakescope.tracers.host import cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", [0]), ("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]), ("", []), ("\n", [])]
)
def test_cpu_list(text, cpus):
    assert cpu_list(text) == cpus


@given(st.sets(st.integers(0, 511)))
def test_mask_cpus_is_the_inverse_of_setting_bits(cpus):
    words = np.zeros(8, np.uint64)
    for cpu in cpus:
        words[cpu // 64] |= np.uint64(1) << np.uint64(cpu % 64)
    assert mask_cpus(words, 512) == sorted(cpus)
    assert mask_cpus(words, 64) == sorted(c for c in cpus if c < 64)


@pytest.mark.live
@pytest.mark.usefixtures("live")
def test_this_machine_is_read_as_sysfs_has_it():
    done = subprocess.run([sys.executable, "-m", "wakescope", "topology", "--json"], capture_output=True, check=True)
    topology = Topology.from_json(done.stdout.decode())
    assert len([c for c in topology.cpus if c.online]) == os.sysconf("SC_NPROCESSORS_ONLN")
    for domain in topology.domains:
        assert domain.cpu in domain.span
        assert set(domain.group_span) <= set(domain.span)
        assert 100 <= domain.imbalance_pct <= 150
        assert set(domain.flags) <= set(topology.flag_order)
    for cpu in topology.cpus:
        shared = [d for d in topology.chain(cpu.cpu) if "SHARE_LLC" in d.flags]
        assert not shared or cpu.llc == min(shared[-1].span)
    assert json.loads(topology.to_json()) == json.loads(done.stdout)


def test_groups_are_numbered_once_and_end_with_the_last_possible_cpu():
    """A mask of 512 CPUs is read of a kernel that has fewer: what follows its own is not part of the span."""

    class Flags:
        def flag_names(self, bits):
            return [f"FLAG{bits}"]

    dtype = np.dtype([("weight", "u4"), ("flags", "u4"), ("sgc", "u8"), ("span", "u8", (8,))])
    rows = np.zeros(3, dtype)
    rows["weight"], rows["flags"], rows["sgc"] = 2, 1, [0xFFFF888000000040, 0xFFFF888000000040, 0xFFFF888000000080]
    rows["span"][:, 0], rows["span"][:, 1] = [0b11, 0b11, 0b1100], [1 << 60, 7 << 50, 0]
    groups = _Groups()
    assert [groups.number(Flags(), row, 72) for row in rows] == [0, 0, 1]
    assert groups.found == [Group([0, 1], 2, ["FLAG1"], 0), Group([2, 3], 2, ["FLAG1"], 1)]
