# SPDX-License-Identifier: GPL-2.0-only
"""The probe programs on this kernel: which tier it allows, loading, attaching, counters.

A plan is made first, from types and symbols alone, so that doctor can say what would be attached and why not; what the
kernel then refuses at load time moves the plan down one tier, and the reason is kept.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import KernelError
from ..trace import RINGS
from . import bcc, host, libbpf
from .btf import Btf
from .offsets import Types
from .perf_rings import PerfRing
from .rings import Ring

HERE = Path(__file__).parent
LEVELS = 8  # domains of one CPU that are read (records.h)
TIERS = ("deep", "decision", "tracepoint")
LOADERS = ("libbpf", "bcc")
RECORDS = {"wakeups": "wakeup", "switches": "switched", "consults": "consult", "migrations": "migration"}
RECORDS |= {"numa": "numa", "tasks": "task", "hotplugs": "hotplug", "loads": "load"}

# Programs of every tier, and of one. flush and domains are run by hand, snapshot is an iterator.
EVENTS = ["sched_switch", "migrate_task", "move_numa", "stick_numa", "swap_numa", "task_new", "task_rename"]
EVENTS += ["task_exit", "cpu_hotplug"]
DECISION = ["waking_decision", "wakeup_decision", "select_enter", "select_exit", "numa_fault", "numa_find"]
DEEP = ["available_idle", "idle", "share_cache", "task_h_load"]
BY_TIER = {
    "deep": [*DECISION, *DEEP],
    "decision": DECISION,
    "tracepoint": ["waking_tracepoint", "wakeup_tracepoint"],
}
# What a program hooks, where the kernel may lack it: tracepoints, and functions that may be inlined.
TRACEPOINTS = {"move_numa": "sched_move_numa", "stick_numa": "sched_stick_numa", "swap_numa": "sched_swap_numa"}
FUNCTIONS = {"numa_fault": "task_numa_fault", "available_idle": "available_idle_cpu", "idle": "idle_cpu"}
FUNCTIONS |= {"numa_find": "task_numa_find_cpu", "share_cache": "cpus_share_cache", "task_h_load": "task_h_load"}


@dataclass
class Plan:
    """What will be attached, and how.

    typed: the probes read through typed pointers (loader libbpf only). why: what decided for the loader. refused: what
    cannot be attached, by tier or program, and the reason.
    """

    tier: str
    loader: str
    why: str
    typed: bool
    constants: dict[str, int]
    programs: list[str]
    types: Types
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def rings(self) -> list[str]:
        """The rings that its programs write to."""
        rings = ["wakeup", "switch", "event"]
        if self.tier != "tracepoint" and self.loader == "libbpf":
            rings.append("load")
        return [*rings, "consult"] if self.tier == "deep" else rings


def plan(types: Types, wanted: str | None = None, loader: str | None = None) -> Plan:
    """The best plan for this kernel, or for the wanted tier and loader. Raises KernelError if nothing can work."""
    if "SHARE_LLC" not in types.flags:
        raise KernelError(f"{types.origin} does not number the domain flags: kernels before 5.3 are not supported")
    loader, why = _loader(types, loader)
    if wanted == "deep" and loader == "bcc":
        raise KernelError("tier deep needs the loader libbpf: kretprobes do not see a function's arguments")
    arity = types.functions.get("select_task_rq_fair")
    symbols = host.symbols()
    refused: dict[str, str] = {}
    if arity is None or "select_task_rq_fair" not in symbols:
        refused["decision"] = "select_task_rq_fair is not a function of its own on this kernel"
    elif not symbols.get("runqueues"):
        refused["decision"] = "the address of runqueues cannot be had (CONFIG_KALLSYMS_ALL off, or kptr_restrict)"
    if wanted in ("decision", "deep") and "decision" in refused:
        raise KernelError(f"tier {wanted} is not possible here: {refused['decision']}")
    tier = wanted or ("tracepoint" if "decision" in refused else "decision")
    # BTF is without per-cpu variables where pahole was before 1.18
    typed = loader == "libbpf" and types.typed and (tier == "tracepoint" or types.per_cpu)
    constants = {
        "sd_share_llc": 1 << types.flags["SHARE_LLC"],
        "sd_balance_exec": 1 << types.flags["BALANCE_EXEC"],
        "sd_balance_fork": 1 << types.flags["BALANCE_FORK"],
        "select_has_sd_flag": int(arity == 4),
        "compares_runnable": int(host.series() < (5, 5)),
        "switch_has_state": int(types.tracepoints.get("sched_switch") == 4),
        "stick_has_dst": int(types.tracepoints.get("sched_stick_numa") == 4),
        "decision_tier": int(tier != "tracepoint"),
        "hardirq_shift": 24 if "local_interrupt_disable_state" in symbols else 16,
        "schedstats": int(host.sysctls().get("kernel.sched_schedstats") == "1"),
    }
    if not typed and tier != "tracepoint":
        constants["runqueues_offset"] = symbols["runqueues"]
        constants["per_cpu_offset_address"] = symbols["__per_cpu_offset"]
        constants["preempt_count_offset"] = _preempt_count(types, symbols)
    if loader == "bcc" and tier != "tracepoint":
        constants["bpf_prog_active_offset"] = symbols.get("bpf_prog_active", 0)
        constants["current_kprobe_offset"] = symbols.get("current_kprobe", 0)
    programs = [*EVENTS, *BY_TIER[tier]]
    for program in list(programs):
        reason = _missing(types, symbols, program, loader)
        if reason:
            programs.remove(program)
            refused[program] = reason
    if loader == "bcc" and "numa_fault" in programs:
        programs.insert(programs.index("numa_fault"), "numa_fault_enter")
    return Plan(tier, loader, why, typed, constants, programs, types, refused)


def _loader(types: Types, asked: str | None) -> tuple[str, str]:
    """The loader to use, and why."""
    if not types.btf:
        need = f"types are from {types.origin}, not from BTF"
    elif bcc.BY_HAND not in host.symbols():
        need = "this kernel cannot run raw tracepoint programs by hand (before 5.10)"
    else:
        return asked or "libbpf", "asked for" if asked else "this kernel has BTF"
    if asked == "libbpf":
        raise KernelError(f"the loader libbpf cannot be used, {need}: use --loader bcc")
    return "bcc", "asked for" if asked else need


def _preempt_count(types: Types, symbols: dict[str, int]) -> int:
    """Where preempt_count lies in a CPU's area: a symbol of its own, from 6.2 to 6.14 a member of pcpu_hot; else 0."""
    member = types.members.get("pcpu_hot", {}).get("preempt_count")
    if member and "pcpu_hot" in symbols:
        return symbols["pcpu_hot"] + member[0]
    return symbols.get("__preempt_count", 0)


def _missing(types: Types, symbols: dict[str, int], program: str, loader: str) -> str | None:
    """Why this kernel cannot run a program, or None."""
    event, function = TRACEPOINTS.get(program), FUNCTIONS.get(program)
    if event and event not in types.tracepoints and f"__tracepoint_{event}" not in symbols:
        return f"this kernel has no tracepoint {event}"
    if function and (function not in symbols or function not in types.functions):
        return f"{function} is not a function of its own on this kernel (absent or inlined)"
    if program == "numa_find" and loader == "bcc":
        return "kretprobes do not see a function's arguments"
    return None


def object_path(typed: bool, nr_cpus: int) -> Path:
    """The prebuilt object for a dialect and a number of CPUs. Raises KernelError if it is not built or too small."""
    if nr_cpus > 512:
        raise KernelError(f"this machine has {nr_cpus} possible CPUs; the probes hold 512")
    path = HERE / f"probes{'64' if nr_cpus <= 64 else '512'}{'t' if typed else ''}.bpf.o"
    if not path.exists():
        raise KernelError(f"{path.name} is not built: run 'make setup' in a checkout of wakescope")
    return path


class Probes:
    """The loaded programs of one plan. Use as a context manager; attach() begins recording into rings."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.nr_cpus = libbpf.possible_cpus()
        path = object_path(made.typed, self.nr_cpus)
        self.layout = Btf.of_object(path)
        self.words = 1 if self.nr_cpus <= 64 else 8
        self.object = bcc.Object(path, made.types, self.words) if made.loader == "bcc" else libbpf.Object(path)
        self._kind = "tracepoint" if made.tier == "tracepoint" else "decision"
        by_hand = [f"flush_{self._kind}", f"domains_{self._kind}", "task_snapshot"]
        self.object.select({*made.programs, *by_hand})
        self.object.set_constants({**made.constants, "nr_cpus": self.nr_cpus})
        self.object.load()
        self.rings: dict[str, list[Ring] | list[PerfRing]] = {}

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *_: object) -> None:
        self.object.close()

    def dtypes(self, ring: str) -> dict[str, np.dtype[np.void]]:
        """Record dtypes of a ring by table, from the object's BTF (without the ring's own header)."""
        return {table: self.layout.dtype(RECORDS[table]) for table in RINGS[ring].values()}

    def create_rings(self, sizes: dict[str, int]) -> None:
        """Make a ring of the given size (bytes, a power of two) per kind and possible CPU; perf buffers if online."""
        for kind, size in sizes.items():
            record_size = max(d.itemsize for d in self.dtypes(kind).values())
            fd = self.object.map_fd(f"{kind}_rings")
            online = host.cpu_list(host.read("/sys/devices/system/cpu/online") or "0")
            if self.object.has_ringbuf:
                self.rings[kind] = [Ring(cpu, size, record_size) for cpu in range(self.nr_cpus)]
            else:
                self.rings[kind] = [PerfRing(cpu, size, record_size) for cpu in online]
            for ring in self.rings[kind]:
                libbpf.update(fd, ring.cpu, struct.pack("<I", ring.fd))

    def attach(self) -> None:
        """Snapshot the living tasks and attach every program. Raises KernelError if the kernel refuses one."""
        for program in self.plan.programs:
            self.object.attach(program)
        self.object.run_iterator("task_snapshot")

    def stop(self, online: list[int]) -> None:
        """Detach and write out the wakeups still open on each CPU."""
        self.object.detach()
        self.flush(online)

    def flush(self, online: list[int]) -> None:
        """Write out the wakeups still open on each CPU."""
        for cpu in online:
            self.object.run_on(f"flush_{self._kind}", cpu)

    def stats(self) -> np.ndarray[Any, np.dtype[np.void]]:
        """The probes' own counters, one row per possible CPU: tried and lost per ring, waking, decisions, ..."""
        dtype = self.layout.dtype("stats")
        raw = libbpf.lookup(self.object.map_fd("stats"), 0, dtype.itemsize * self.nr_cpus)
        return np.frombuffer(raw, dtype)

    def domains(self, cpu: int) -> np.ndarray[Any, np.dtype[np.void]]:
        """Levels of a CPU's domain chain, lowest first, dtype of struct domain in records.h."""
        self.object.run_on(f"domains_{self._kind}", cpu)
        rows = self._rows("domains", "domain", range(LEVELS))
        return rows[rows["span_weight"] > 0]

    def groups(self, level: int) -> np.ndarray[Any, np.dtype[np.void]]:
        """Groups of one level of the CPU last given to domains(), in the order of the domain's ring, as struct group.

        At most 64 (machines of up to 64 CPUs) or 256.
        """
        most = 64 if self.words == 1 else 256
        rows = self._rows("groups", "group", range(level * most, (level + 1) * most))
        return rows[: int((rows["weight"] > 0).cumprod().sum())]

    def _rows(self, name: str, record: str, keys: range) -> np.ndarray[Any, np.dtype[np.void]]:
        dtype, fd = self.layout.dtype(record), self.object.map_fd(name)
        return np.concatenate([np.frombuffer(libbpf.lookup(fd, key, dtype.itemsize), dtype) for key in keys])

    def flag_names(self, bits: int) -> list[str]:
        """Names of set domain flags, without SD_, by this kernel's own numbering."""
        return [name for name, bit in sorted(self.plan.types.flags.items(), key=lambda f: f[1]) if bits >> bit & 1]
