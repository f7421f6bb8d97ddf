# SPDX-License-Identifier: GPL-2.0-only
"""The machine as the model sees it: a Topology turned into arrays that compiled code can take.

Arrays of records and not objects, because compiled code passes a record as one pointer and copies everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import TraceError
from ..topology import Domain, Topology
from .compiled import compiled

# Bits of sd_flags below. Names are the kernel's; the numbers are ours, because the kernel renumbers them.
SD_BALANCE_WAKE = 1
SD_WAKE_AFFINE = 2
SD_BALANCE_EXEC = 4
SD_BALANCE_FORK = 8
SD_NUMA = 16
_BITS = {"BALANCE_WAKE": SD_BALANCE_WAKE, "WAKE_AFFINE": SD_WAKE_AFFINE, "NUMA": SD_NUMA}
_BITS |= {"BALANCE_EXEC": SD_BALANCE_EXEC, "BALANCE_FORK": SD_BALANCE_FORK}

MAX_THREADS = 8  # of a core; POWER has 8
LEVELS = 8  # domains of a CPU that the probes read, and whose groups a fork or exec can be placed by
MAX_DOMAINS = 16  # of a CPU: SMT, CLS, MC, PKG and one for each NUMA distance

Array = np.ndarray[Any, np.dtype[Any]]
Row = Any  # one record of a structured array


def cpu_dtype(words: int) -> np.dtype[Any]:
    """One CPU of a Machine whose masks have that many words."""
    fields = [
        ("siblings", "<i4", (MAX_THREADS,)),  # cpu_smt_mask(cpu) in ascending order, filled up with -1
        ("llc", "<i4"),  # 1 if sd_llc is there
        ("llc_id", "<i4"),  # sd_llc_id
        ("llc_level", "<i4"),  # of sd_llc in this CPU's chain
        ("llc_size", "<i4"),  # sd_llc_size
        ("llc_groups", "<i4"),  # groups of sd_llc, -1 if not known
        ("share_id", "<i4"),  # sd_share_id: the cluster's first CPU, or sd_llc_id
        ("cluster", "<i4"),  # 1 if sd_llc's own group has SD_CLUSTER
        ("node", "<i4"),
        ("core", "<i4"),
        ("domains", "<i4"),  # levels in this CPU's chain
        ("sd_flags", "<i4", (MAX_DOMAINS,)),
        ("sd_pct", "<i4", (MAX_DOMAINS,)),  # imbalance_pct
        ("sd_weight", "<i4", (MAX_DOMAINS,)),  # span_weight
        ("sd_imb", "<i4", (MAX_DOMAINS,)),  # imb_numa_nr
        ("sd_ring", "<i4", (MAX_DOMAINS,)),  # where its groups begin in Groups.rings
        ("sd_groups", "<i4", (MAX_DOMAINS,)),  # how many they are, 0 if they are not known
        ("sd_span", "<u8", (MAX_DOMAINS, words)),
        ("llc_span", "<u8", (words,)),  # span of sd_llc
        ("cluster_span", "<u8", (words,)),  # span of sd_llc's own group
    ]
    return np.dtype((np.record, fields))


def group_dtype(words: int) -> np.dtype[Any]:
    """One sched_group whose mask has that many words."""
    fields = [
        ("weight", "<i8"),  # group_weight
        ("first", "<i4"),  # lowest CPU of its span
        ("cpu", "<i4"),  # a CPU, and a level of its domains, whose own group shares this one's sgc; -1 if there is none
        ("level", "<i4"),
        ("span", "<u8", (words,)),
    ]
    return np.dtype((np.record, fields))


class Machine(NamedTuple):
    """CPUs and scheduling domains, and the static keys that depend on them."""

    cpus: Array  # cpu_dtype, (n,), by CPU number
    smt_active: int  # sched_smt_present: some core has more than one CPU online
    cluster_active: int  # sched_cluster_active: some domain has SD_CLUSTER
    asym_active: int  # sched_asym_cpucapacity: some domain has SD_ASYM_CPUCAPACITY


class Groups(NamedTuple):
    """Groups of the domains. Apart from the Machine, because every array more costs each call that takes it."""

    sgs: Array  # group_dtype, (n,): every group once
    rings: Array  # int64, (n,): their numbers, domain by domain in the order of the rings


@compiled
def cpumask_test_cpu(cpu: int, mask: Array) -> bool:
    """Whether a CPU is in a mask of 64-bit words."""
    return bool(mask[cpu >> 6] >> np.uint64(cpu & 63) & np.uint64(1))


@compiled
def cpumask_clear_cpu(cpu: int, mask: Array) -> None:
    """Take a CPU out of a mask."""
    mask[cpu >> 6] &= ~(np.uint64(1) << np.uint64(cpu & 63))


@compiled
def cpumask_intersects(one: Array, other: Array) -> bool:
    """Whether two masks have a CPU in common."""
    common = np.uint64(0)
    for word in range(len(one)):
        common |= one[word] & other[word]
    return bool(common != 0)


@compiled
def cpumask_weight_and(one: Array, other: Array) -> int:
    """How many CPUs two masks have in common."""
    weight = 0
    for word in range(len(one)):
        common = one[word] & other[word]
        while common:
            common &= common - np.uint64(1)
            weight += 1
    return weight


@compiled
def cpus_share_cache(machine: Machine, this_cpu: int, that_cpu: int) -> bool:
    """Whether two CPUs have one LLC. They share it with themselves even when there is none (42dc938a590c, v5.16)."""
    return this_cpu == that_cpu or machine.cpus[this_cpu].llc_id == machine.cpus[that_cpu].llc_id


@compiled
def cpus_share_resources(machine: Machine, this_cpu: int, that_cpu: int) -> bool:
    """Whether two CPUs share the cluster, or the LLC where there are no clusters (b95303e0aeaf, v6.7)."""
    return this_cpu == that_cpu or machine.cpus[this_cpu].share_id == machine.cpus[that_cpu].share_id


def mask_of(cpus: list[int], words: int) -> Array:
    """CPU numbers as a mask of shape (words,), uint64."""
    mask = np.zeros(words, np.uint64)
    for cpu in cpus:
        mask[cpu >> 6] |= np.uint64(1 << (cpu & 63))
    return mask


def machine(topology: Topology) -> Machine:
    """The Machine of a Topology. Raises TraceError if a core or a domain chain is larger than any known.

    sd_llc is the highest domain that has SHARE_LLC and sd_share_id the lowest that has CLUSTER, as in the kernel's
    update_top_cache_domain().
    """
    n = topology.nr_cpus
    cpus = np.zeros(n, cpu_dtype(topology.words)).view(np.recarray)
    cpus["siblings"] = -1
    cpus["siblings"][:, 0] = cpus["llc_id"] = cpus["share_id"] = np.arange(n)
    cpus["llc_size"] = cpus["llc_groups"] = 1
    cpus["node"], cpus["core"] = topology.by_cpu("node"), topology.by_cpu("core")
    for cpu in range(n):
        _set_domains(cpus[cpu], topology.chain(cpu), topology.words)
    start = 0
    for cpu, level, ring in _rings(topology):
        cpus[cpu]["sd_ring"][level], cpus[cpu]["sd_groups"][level] = start, len(ring)
        start += len(ring)
    widest = _set_siblings(cpus, topology)
    flags = {flag for sd in topology.domains for flag in sd.flags}
    return Machine(cpus, int(widest > 1), int("CLUSTER" in flags), int("ASYM_CPUCAPACITY" in flags))


def _set_domains(cpu: Any, chain: list[Domain], words: int) -> None:
    if len(chain) > MAX_DOMAINS:
        raise TraceError(f"topology.json gives a CPU {len(chain)} scheduling domains; {MAX_DOMAINS} are the most known")
    cpu["domains"] = len(chain)
    for level, sd in enumerate(chain):
        cpu["sd_flags"][level] = sum(_BITS.get(flag, 0) for flag in sd.flags)
        cpu["sd_pct"][level] = sd.imbalance_pct
        cpu["sd_span"][level] = mask_of(sd.span, words)
        cpu["sd_weight"][level] = len(sd.span)
        cpu["sd_imb"][level] = sd.imb_numa_nr or _imb_numa_nr(chain, level)
    sharing = [sd for sd in chain if "SHARE_LLC" in sd.flags]
    if sharing:
        sd = sharing[-1]
        cpu["llc"] = 1
        cpu["llc_id"] = cpu["share_id"] = min(sd.span)
        cpu["llc_level"] = chain.index(sd)
        cpu["llc_size"] = len(sd.span)
        cpu["llc_groups"] = sd.groups or -1
        cpu["llc_span"] = mask_of(sd.span, words)
        cpu["cluster"] = int("CLUSTER" in sd.groups_flags)
        cpu["cluster_span"] = mask_of(sd.group_span, words)
    clusters = [sd for sd in chain if "CLUSTER" in sd.flags]
    if clusters:
        cpu["share_id"] = min(clusters[0].span)


def _imb_numa_nr(chain: list[Domain], level: int) -> int:
    """What imb_numa_nr would be on a kernel that has none (before 5.18), by update_numa_imbalance of v6.0 and later.

    The domain right above the LLC, a node's, is not in the chain if it has the LLC's CPUs: then the LLC is the node.
    """
    llcs = [i for i, sd in enumerate(chain) if "SHARE_LLC" in sd.flags]
    numa = [i for i, sd in enumerate(chain) if "NUMA" in sd.flags]
    if not llcs or level <= llcs[-1]:
        return 0
    node = llcs[-1] + (numa[:1] != [llcs[-1] + 1])
    ratio = len(chain[node].span) // len(chain[llcs[-1]].span)
    imb = max(1, ratio if ratio > 1 else len(chain[node].span) >> 3)
    first = len(chain[numa[0] if numa else node].span)
    return imb * max(1, len(chain[level].span) // first)


def groups(topology: Topology) -> Groups:
    """The Groups of a Topology, their rings as machine() numbers them."""
    sgs = np.zeros(max(1, len(topology.groups)), group_dtype(topology.words)).view(np.recarray)
    sgc: dict[int, tuple[int, int]] = {}
    for cpu, level, ring in _rings(topology):
        if ring and level < LEVELS:  # the first group is the one that holds the CPU
            sgc.setdefault(topology.groups[ring[0]].sgc, (cpu, level))
    for number, sg in enumerate(topology.groups):
        sgs[number]["weight"], sgs[number]["first"] = sg.weight, min(sg.span)
        sgs[number]["cpu"], sgs[number]["level"] = sgc.get(sg.sgc, (-1, -1))
        sgs[number]["span"] = mask_of(sg.span, topology.words)
    rings = [number for _, _, ring in _rings(topology) for number in ring]
    return Groups(sgs, np.array(rings or [0], np.int64))


def _rings(topology: Topology) -> Iterator[tuple[int, int, list[int]]]:
    """(CPU, level, ring) of each domain."""
    for cpu in range(topology.nr_cpus):
        for level, sd in enumerate(topology.chain(cpu)):
            yield cpu, level, sd.ring


def _set_siblings(cpus: Array, topology: Topology) -> int:
    """Fill in the siblings; returns the threads of the widest core."""
    cores: dict[int, list[int]] = {}
    for cpu in sorted(topology.cpus, key=lambda c: c.cpu):
        if cpu.online:
            cores.setdefault(cpu.core, []).append(cpu.cpu)
    widest = max((len(core) for core in cores.values()), default=1)
    if widest > MAX_THREADS:
        raise TraceError(f"topology.json gives a core {widest} threads; {MAX_THREADS} are the most known")
    for core in cores.values():
        cpus["siblings"][core, : len(core)] = core
    return widest
