# SPDX-License-Identifier: GPL-2.0-only
"""topology.py: what topology.json says, and what it cannot say."""

import json

import pytest
from wakescope.tests.maketrace import topology
from wakescope.topology import Topology

BOX = topology(nodes=2, cores=2, threads=2)


def test_a_machine_written_and_read_is_the_same():
    assert Topology.from_json(BOX.to_json()) == BOX


def test_traces_from_before_groups_were_recorded_have_none():
    data = json.loads(BOX.to_json())
    del data["groups"]
    for domain in data["domains"]:
        del domain["ring"]
    assert Topology.from_json(json.dumps(data)).groups == []


@pytest.mark.parametrize("group", [-1, 10_000])
def test_a_ring_of_a_group_that_is_not_there_is_refused(group):
    data = json.loads(BOX.to_json())
    data["domains"][0]["ring"] = [group]
    with pytest.raises(ValueError, match="group that is not there"):
        Topology.from_json(json.dumps(data))


@pytest.mark.parametrize("span", [[], [3, 64]])
def test_a_group_of_cpus_that_are_not_there_is_refused(span):
    data = json.loads(BOX.to_json())
    data["groups"][0]["span"] = span
    with pytest.raises(ValueError, match="no CPUs, or such as are not there"):
        Topology.from_json(json.dumps(data))
