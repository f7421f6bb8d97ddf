# SPDX-License-Identifier: GPL-2.0-only
"""CPUs, cores, LLCs, nodes, distances and scheduling domains of the machine a trace was made on.

A Topology is what topology.json holds. Cores, packages and nodes come from sysfs; LLCs and domains come from the
kernel's own domain chain, read by a BPF program, because sysfs says what shares a cache and only the chain says what
the scheduler made of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Cpu:
    """One CPU as sysfs describes it: core, package, node and the CPUs sharing its LLC."""

    cpu: int
    core: int  # lowest-numbered CPU among its SMT siblings
    llc: int  # lowest-numbered CPU of its LLC domain (the kernel's sd_llc_id)
    node: int
    package: int
    online: bool = True


@dataclass
class Domain:
    """One level of a CPU's domain chain: flags by name, imbalance_pct, span (CPU numbers)."""

    cpu: int
    level: int
    name: str
    flags: list[str]
    imbalance_pct: int
    span: list[int]
    groups: int = 0
    group_span: list[int] = field(default_factory=list)  # span of sd->groups, the group holding this CPU
    groups_flags: list[str] = field(default_factory=list)
    imb_numa_nr: int = 0
    ring: list[int] = field(default_factory=list)  # its groups from sd->groups on, by index in Topology.groups


@dataclass
class Group:
    """One sched_group: its span, group_weight and flags; groups with one sgc share capacity and imbalance."""

    span: list[int]
    weight: int
    flags: list[str]
    sgc: int


@dataclass
class Topology:
    """The machine. cpus are ordered by number and may have holes; domains are lowest level first per CPU."""

    cpus: list[Cpu]
    domains: list[Domain]
    distances: dict[str, list[int]] = field(default_factory=dict)  # node -> distances, as sysfs lists them
    smt_active: bool = False
    flag_order: list[str] = field(default_factory=list)  # every domain flag this kernel knows, lowest bit first
    groups: list[Group] = field(default_factory=list)  # of all domains, each once

    @property
    def nr_cpus(self) -> int:
        """One more than the highest CPU number (the kernel's nr_cpu_ids as far as it matters here)."""
        return max(cpu.cpu for cpu in self.cpus) + 1

    @property
    def words(self) -> int:
        """64-bit words a mask of all CPUs takes."""
        return (self.nr_cpus + 63) // 64

    def by_cpu(self, attribute: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Array of shape (nr_cpus,), int64, of a Cpu attribute; -1 where there is no such CPU."""
        values = np.full(self.nr_cpus, -1, np.int64)
        for cpu in self.cpus:
            values[cpu.cpu] = getattr(cpu, attribute)
        return values

    def chain(self, cpu: int) -> list[Domain]:
        """The domains of one CPU, lowest first."""
        return sorted((d for d in self.domains if d.cpu == cpu), key=lambda d: d.level)

    def to_json(self) -> str:
        """The text of topology.json."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """A Topology from topology.json's text. Raises ValueError, KeyError or TypeError if it is not one."""
        data = json.loads(text)
        domains = [Domain(**domain) for domain in data["domains"]]
        groups = [Group(**group) for group in data.get("groups", [])]
        if any(not 0 <= group < len(groups) for domain in domains for group in domain.ring):
            raise ValueError("a domain's ring has a group that is not there")
        there = {cpu["cpu"] for cpu in data["cpus"]}
        if any(not group.span or not there.issuperset(group.span) for group in groups):
            raise ValueError("a group has no CPUs, or such as are not there")
        return cls(
            cpus=[Cpu(**cpu) for cpu in data["cpus"]],
            domains=domains,
            distances=data.get("distances", {}),
            smt_active=data.get("smt_active", False),
            flag_order=data.get("flag_order", []),
            groups=groups,
        )

    @classmethod
    def load(cls, path: Path) -> Topology:
        """Read topology.json."""
        return cls.from_json(path.read_text())
