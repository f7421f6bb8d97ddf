# SPDX-License-Identifier: GPL-2.0-only
"""Shapes of machine a box can have, and the QEMU arguments that give them to the guest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..errors import UsageError

LOCAL_DISTANCE, REMOTE_DISTANCE = 10, 20  # LOCAL_DISTANCE and REMOTE_DISTANCE of include/linux/topology.h
_MAX_DISTANCE = 254  # ACPI 6.5, 5.2.17 SLIT: 255 says unreachable


@dataclass(frozen=True)
class Shape:
    """A machine: sockets of cores of threads, LLCs per socket, NUMA nodes, their distances, CPUs taken offline.

    CPUs are numbered threads first, then cores, then sockets; nodes are equal runs of consecutive CPUs.
    """

    sockets: int
    cores: int  # per socket
    threads: int  # per core
    llcs: int = 1  # per socket
    nodes: int = 1
    distances: tuple[tuple[int, ...], ...] = ((LOCAL_DISTANCE,),)
    offline: tuple[int, ...] = ()

    @property
    def cpus(self) -> int:
        """How many CPUs there are, offline ones included."""
        return self.sockets * self.cores * self.threads

    def _groups(self, count: int) -> list[list[int]]:
        """All CPUs in count equal runs."""
        size = self.cpus // count
        return [list(range(start, start + size)) for start in range(0, self.cpus, size)]

    @property
    def core_cpus(self) -> list[list[int]]:
        """CPUs of each core."""
        return self._groups(self.sockets * self.cores)

    @property
    def llc_cpus(self) -> list[list[int]]:
        """CPUs of each last-level cache."""
        return self._groups(self.sockets * self.llcs)

    @property
    def node_cpus(self) -> list[list[int]]:
        """CPUs of each NUMA node."""
        return self._groups(self.nodes)

    @property
    def package_cpus(self) -> list[list[int]]:
        """CPUs of each socket."""
        return self._groups(self.sockets)


# The distances of "uneven" are those of four sockets linked as a ring: a neighbour is one hop away, the opposite two.
NAMED: dict[str, tuple[str, dict[str, str | int]]] = {
    "uneven": ("4s1c2t", {"distance": "10,16,22,16/16,10,16,22/22,16,10,16/16,22,16,10"}),
    "llcs": ("1s4c2t", {"llcs": 2}),
    "snc": ("2s4c1t", {"nodes": 4, "distance": "10,12,20,20/12,10,20,20/20,20,10,12/20,20,12,10", "llcs": 2}),
    "offline": ("2s2c2t", {"offline": "3"}),
    "offline0": ("2s2c2t", {"offline": "0"}),
}


def parse(
    name: str,
    nodes: int | None = None,
    distance: str | None = None,
    llcs: int | None = None,
    offline: str | None = None,
) -> Shape:
    """The shape of a name in NAMED or of NsNcNt, changed by the options that are given; raises UsageError.

    nodes defaults to one per socket; distance is one number for every pair of nodes or the whole matrix, rows parted
    by "/"; llcs counts per socket; offline is a list of CPUs such as 1,4-5.
    """
    base, preset = NAMED.get(name, (name, {}))
    given = {"nodes": nodes, "distance": distance, "llcs": llcs, "offline": offline}
    options = preset | {key: value for key, value in given.items() if value is not None}
    match = re.fullmatch(r"(\d+)s(\d+)c(\d+)t", base)
    if not match:
        raise UsageError(
            f"no topology {name}: write sockets, cores and threads as 2s4c2t, or one of {', '.join(NAMED)}"
        )
    sockets, cores, threads = (int(number) for number in match.groups())
    shape = Shape(sockets, cores, threads, llcs=int(options.get("llcs", 1)), nodes=int(options.get("nodes", sockets)))
    _check(shape, name)
    return replace(
        shape,
        distances=parse_distances(str(options.get("distance", REMOTE_DISTANCE)), shape.nodes),
        offline=parse_cpus(str(options.get("offline", "")), shape.cpus),
    )


def _check(shape: Shape, name: str) -> None:
    """Raise UsageError for a shape that no machine has."""
    if min(shape.sockets, shape.cores, shape.threads, shape.llcs, shape.nodes) < 1:
        raise UsageError(f"topology {name}: every count must be at least 1")
    if shape.threads > 2:
        raise UsageError(f"topology {name}: x86 has at most 2 threads a core")
    if shape.cpus > 64:
        raise UsageError(f"topology {name}: {shape.cpus} CPUs are more than the 64 an emulated guest can usefully run")
    if shape.cores % shape.llcs:
        raise UsageError(f"topology {name}: {shape.cores} cores cannot share {shape.llcs} LLCs evenly")
    if shape.sockets * shape.cores % shape.nodes:
        raise UsageError(
            f"topology {name}: its {shape.sockets * shape.cores} cores do not divide into {shape.nodes} nodes"
        )


def parse_distances(text: str, nodes: int) -> tuple[tuple[int, ...], ...]:
    """The distance matrix, from one number for every pair or from rows parted by "/"; raises UsageError."""
    if not re.fullmatch(r"\d+([,/]\d+)*", text):
        raise UsageError(f"--distance {text}: give one number, or rows such as 10,20/20,10")
    rows = [tuple(int(number) for number in row.split(",")) for row in text.split("/")]
    if rows == [(rows[0][0],)]:
        remote = rows[0][0]
        rows = [tuple(LOCAL_DISTANCE if a == b else remote for b in range(nodes)) for a in range(nodes)]
    if len(rows) != nodes or any(len(row) != nodes for row in rows):
        raise UsageError(f"--distance {text}: {nodes} nodes need {nodes} rows of {nodes} numbers")
    for a, row in enumerate(rows):
        for b, value in enumerate(row):
            if (value != LOCAL_DISTANCE) if a == b else not LOCAL_DISTANCE < value <= _MAX_DISTANCE:
                raise UsageError(
                    f"--distance {text}: a node is {LOCAL_DISTANCE} from itself and "
                    f"{LOCAL_DISTANCE + 1} to {_MAX_DISTANCE} from another"
                )
    return tuple(rows)


def parse_cpus(text: str, cpus: int) -> tuple[int, ...]:
    """CPU numbers of a list such as 1,4-5, ascending; raises UsageError for others than there are, or for all."""
    chosen: set[int] = set()
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"{text} is not a list of CPUs such as 1,4-5")
        chosen.update(range(first, min(last, max(first, cpus)) + 1))
    if chosen and (max(chosen) >= cpus or len(chosen) == cpus):
        raise UsageError(f"--offline {text}: there are CPUs 0 to {cpus - 1}, and one must stay online")
    return tuple(sorted(chosen))


def smp(shape: Shape) -> str:
    """The value of QEMU's -smp.

    An LLC is a QEMU die: CPUID leaf 4 says that the L3 is shared by the threads of a die (target/i386/cpu.c).
    """
    cores = shape.cores // shape.llcs
    return f"{shape.cpus},sockets={shape.sockets},dies={shape.llcs},cores={cores},threads={shape.threads}"


def node_memory(shape: Shape, memory: int) -> list[int]:
    """MiB of each node, evenly but for what does not divide, which node 0 has."""
    share = memory // shape.nodes
    return [memory - share * (shape.nodes - 1)] + [share] * (shape.nodes - 1)


def qemu_arguments(shape: Shape, memory: int) -> list[str]:
    """QEMU's -smp, -m and -numa arguments for a shape with memory MiB, divided among the nodes."""
    arguments = ["-smp", smp(shape), "-m", f"{memory}M"]
    for node, (cpus, size) in enumerate(zip(shape.node_cpus, node_memory(shape, memory), strict=True)):
        arguments += ["-object", f"memory-backend-ram,id=m{node},size={size}M"]
        arguments += ["-numa", f"node,nodeid={node},cpus={cpus[0]}-{cpus[-1]},memdev=m{node}"]
    for a, row in enumerate(shape.distances):
        for b, value in enumerate(row):
            if a != b:
                arguments += ["-numa", f"dist,src={a},dst={b},val={value}"]
    return arguments
