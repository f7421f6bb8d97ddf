# SPDX-License-Identifier: GPL-2.0-only
"""A Topology becomes the arrays the model reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wakescope.errors import TraceError
from wakescope.model.topo import (
    SD_WAKE_AFFINE,
    cpumask_clear_cpu,
    cpumask_test_cpu,
    cpus_share_cache,
    cpus_share_resources,
    machine,
    mask_of,
)
from wakescope.tests.maketrace import topology
from wakescope.topology import Cpu, Topology

from .test_idle import clusters


def test_llc_is_the_highest_domain_that_shares_one():
    m = machine(topology(nodes=2, cores=2, threads=2))
    assert m.cpus["llc_id"].tolist() == [0, 0, 0, 0, 4, 4, 4, 4]
    assert set(m.cpus["llc_size"]) == {4}
    assert m.cpus["llc_span"][5].tolist() == [0b11110000]
    assert m.cpus["siblings"][5, :3].tolist() == [4, 5, -1]
    assert (m.smt_active, m.cluster_active, m.asym_active) == (1, 0, 0)


def test_without_llc_domain_a_cpu_shares_with_itself_alone():
    m = machine(topology(nodes=2, cores=1))
    assert m.cpus["llc"].tolist() == [0, 0]
    assert cpus_share_cache(m, 1, 1)
    assert not cpus_share_cache(m, 0, 1)


def test_clusters_are_shared_resources():
    m = machine(clusters())
    assert m.cluster_active == 1
    assert cpus_share_resources(m, 1, 3)
    assert not cpus_share_resources(m, 3, 4)
    assert cpus_share_cache(m, 3, 4)
    assert m.cpus["cluster_span"][6].tolist() == [0b11110000]


def test_offline_siblings_do_not_count():
    full = topology(cores=1, threads=2)
    half = Topology([full.cpus[0], replace(full.cpus[1], online=False)], [])
    assert machine(half).smt_active == 0


def test_domain_flags_by_name():
    m = machine(topology(nodes=2, cores=2, affine_nodes=False))
    assert m.cpus["domains"][0] == 2
    assert (m.cpus["sd_flags"][0, :2] & SD_WAKE_AFFINE).tolist() == [SD_WAKE_AFFINE, 0]


def test_masks_beyond_a_word():
    mask = mask_of([0, 63, 64, 100], 2)
    assert [cpu for cpu in range(128) if cpumask_test_cpu(cpu, mask)] == [0, 63, 64, 100]
    cpumask_clear_cpu(64, mask)
    assert mask.tolist() == [1 | 1 << 63, 1 << 36]
    assert mask.dtype == np.uint64


def test_a_core_of_more_threads_than_any_has_is_refused():
    with pytest.raises(TraceError, match="9 threads"):
        machine(Topology([Cpu(cpu, 0, 0, 0, 0) for cpu in range(9)], []))
