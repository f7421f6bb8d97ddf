# SPDX-License-Identifier: GPL-2.0-only
"""This machine's Topology: cores, packages, nodes and distances from sysfs, LLCs and domains from the kernel itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..topology import Cpu, Domain, Group, Topology
from .host import cpu_list, read
from .offsets import kernel_types
from .probes import Probes, plan

SYSFS = Path("/sys/devices/system")


def mask_cpus(words: np.ndarray[tuple[int], np.dtype[np.uint64]], limit: int) -> list[int]:
    """CPU numbers below limit set in an array of 64-bit words."""
    return [cpu for cpu in range(min(limit, 64 * len(words))) if int(words[cpu // 64]) >> (cpu % 64) & 1]


def read_topology(probes: Probes) -> Topology:
    """The Topology of the running machine; probes are loaded, of either tier."""
    present = cpu_list(read(SYSFS / "cpu/present") or "0")
    online = set(cpu_list(read(SYSFS / "cpu/online") or "0"))
    nodes = _nodes()
    groups = _Groups()
    domains = [d for cpu in sorted(online) for d in _chain(probes, cpu, groups)]
    cpus = []
    for cpu in present:
        here = SYSFS / f"cpu/cpu{cpu}/topology"
        siblings = cpu_list(read(here / "thread_siblings_list") or str(cpu))
        llc = [d.span for d in domains if d.cpu == cpu and "SHARE_LLC" in d.flags]
        cpus.append(
            Cpu(
                cpu=cpu,
                core=min(siblings),
                llc=min(llc[-1]) if llc else cpu,
                node=next((node for node, members in nodes.items() if cpu in members), 0),
                package=int(read(here / "physical_package_id") or 0),
                online=cpu in online,
            )
        )
    distances = {str(n): [int(d) for d in (read(SYSFS / f"node/node{n}/distance") or "10").split()] for n in nodes}
    smt_active = read(SYSFS / "cpu/smt/active") == "1"
    flags = probes.plan.types.flags
    order = sorted(flags, key=lambda name: flags[name])
    return Topology(cpus, domains, distances, smt_active, order, groups.found)


def this_machine() -> Topology:
    """The Topology of the running machine; loads the probes for a moment. Raises KernelError or PrivilegeError."""
    with Probes(plan(kernel_types())) as probes:
        return read_topology(probes)


def _nodes() -> dict[int, list[int]]:
    numbers = cpu_list(read(SYSFS / "node/online") or "")
    return {n: cpu_list(read(SYSFS / f"node/node{n}/cpulist") or "") for n in numbers}


class _Groups:
    """Groups as they are met, each once."""

    def __init__(self) -> None:
        self.found: list[Group] = []
        self._sgc: dict[int, int] = {}
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, probes: Probes, row: Any, limit: int) -> int:
        """Index in found of a group, a struct group; behind limit its span holds what follows it in memory."""
        span = mask_cpus(row["span"], limit)
        sgc = self._sgc.setdefault(int(row["sgc"]), len(self._sgc))
        key = (sgc, int(row["weight"]), int(row["flags"]), *span)
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            self.found.append(Group(span, key[1], probes.flag_names(key[2]), sgc))
        return self._numbers[key]


def _chain(probes: Probes, cpu: int, groups: _Groups) -> list[Domain]:
    limit = max(cpu_list(read(SYSFS / "cpu/possible") or "0")) + 1
    chain = []
    for row in probes.domains(cpu):
        names = probes.flag_names(int(row["flags"]))
        chain.append(
            Domain(
                cpu=cpu,
                level=int(row["level"]),
                name=row["name"].decode(errors="replace"),
                flags=names,
                imbalance_pct=int(row["imbalance_pct"]),
                span=mask_cpus(row["span"], limit),
                groups=int(row["nr_groups"]),
                group_span=mask_cpus(row["group_span"], limit),
                groups_flags=probes.flag_names(int(row["groups_flags"])),
                imb_numa_nr=int(row["imb_numa_nr"]),
                ring=[groups.number(probes, group, limit) for group in probes.groups(int(row["level"]))],
            )
        )
    return chain
