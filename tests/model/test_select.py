# SPDX-License-Identifier: GPL-2.0-only
"""select_task_rq_fair: the domain walk and what comes before it."""

from __future__ import annotations

from dataclasses import replace

from wakescope.model.affine import Affine
from wakescope.model.idle import Path
from wakescope.model.kernels import kernel
from wakescope.model.replay import Certainty
from wakescope.model.wakeup import Doubt
from wakescope.tests.maketrace import topology

from .decisions import BOX, decide

NEW = kernel("6.12")


def test_current_cpu_comes_first_where_the_kernel_heeds_it():
    what = {"wake_flags": 0x48, "idle": [2]}
    assert (decide(NEW, **what)["cpu"], decide(NEW, **what)["path"]) == (0, Path.CURRENT_CPU)
    assert decide(kernel("6.1"), **what)["path"] == Path.TARGET
    assert decide(NEW, allowed=[1, 2], **what)["cpu"] == 2


def test_the_lowest_domain_that_holds_prev_gives_the_bias():
    """SMT has imbalance_pct 110, so a bias of 105: the sibling keeps what another core would lose."""
    domains = [replace(sd, imbalance_pct=110 if sd.name == "SMT" else 117) for sd in BOX.domains]
    machine = replace(BOX, domains=domains)
    loads = {"this_load": 1100, "prev_load": 2000, "wakee_h_load": 500}  # 1600 against 1500 * 1.05 or 1.08
    assert decide(NEW, machine, prev=1, **loads)["affine"] == Affine.WEIGHT_PREV
    assert decide(NEW, machine, prev=2, **loads)["affine"] == Affine.WEIGHT_THIS


def test_a_domain_without_wake_affine_is_walked_past():
    domains = [
        replace(sd, flags=[f for f in sd.flags if f != "WAKE_AFFINE" or sd.name == "NUMA"]) for sd in BOX.domains
    ]
    machine = replace(BOX, domains=domains)
    assert decide(NEW, machine, prev=2, this_load=0)["affine"] == Affine.WEIGHT_THIS


def test_balance_wake_goes_the_slow_way_only_without_an_affine_domain():
    domains = [replace(sd, flags=[*sd.flags, "BALANCE_WAKE"]) for sd in BOX.domains]
    machine = replace(BOX, domains=domains)
    assert decide(NEW, machine, idle=[2])["path"] == Path.TARGET
    slow = decide(NEW, machine, idle=[2], waker_flips=100, wakee_flips=10)
    assert (slow["path"], slow["certainty"]) == (Path.SLOW, Certainty.UNDECIDABLE)


def test_cpus_of_different_capacity_are_not_decided():
    domains = [replace(sd, flags=[*sd.flags, "ASYM_CPUCAPACITY"]) for sd in BOX.domains]
    result = decide(NEW, replace(BOX, domains=domains), idle=[2])
    assert (result["certainty"], result["doubt"]) == (Certainty.UNDECIDABLE, Doubt.CAPACITY)


def test_a_machine_of_one_cpu():
    result = decide(NEW, topology(cores=1), cpu=0, prev=0)
    assert (result["cpu"], result["path"]) == (0, Path.NO_LLC)


def test_more_than_64_cpus():
    machine = topology(nodes=2, cores=40)
    what = {"prev": 70, "llc_size": 40, "recent_used_cpu": 70, "waker_flips": 4000, "wakee_flips": 60}
    assert machine.words == 2
    assert decide(NEW, machine, idle=[79], prev_nr_idle_scan=40, **what)["cpu"] == 79
    assert decide(NEW, machine, idle=[41], prev_nr_idle_scan=40, **what)["cpu"] == 41
    assert decide(NEW, machine, idle=[41], prev_nr_idle_scan=8, **what)["cpu"] == 70
