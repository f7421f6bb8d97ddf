# SPDX-License-Identifier: GPL-2.0-only
"""What the probes must know of a kernel's types: where members lie, how functions are called, how flags are numbered.

It comes from the running kernel's BTF, or, where there is none, from the DWARF of its vmlinux (dwarf.py). kernel.h says
which members; for BCC, which relocates nothing, lay_out() writes its structures as they are on this kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..model.kernels import NEEDS
from . import host
from .btf import ENUM, STRUCT, VAR, VMLINUX, Btf

HERE = Path(__file__).parent
ROOT = Path("/")

# Members whose presence decides a feature of the model (model/kernels.py, NEEDS).
MEMBERS = sorted(NEEDS.values())
FUNCTIONS = (
    *("select_task_rq_fair", "task_numa_fault", "task_numa_find_cpu", "available_idle_cpu"),
    *("idle_cpu", "cpus_share_cache", "task_h_load"),
)
TRACEPOINTS = ("sched_switch", "sched_move_numa", "sched_stick_numa", "sched_swap_numa")
ENUMERATORS = ("CPUHP_AP_ACTIVE",)

# What the probes read of every kernel that can be recorded, whatever its configuration: types without it are not whole.
STEADY = {
    "task_struct": ("thread_info", "wake_cpu", "wakee_flips", "last_wakee", "cpus_ptr", "se", "pid", "comm"),
    "sched_entity": ("avg",),
    "sched_avg": ("load_avg", "util_avg"),
    "cfs_rq": ("avg",),
    "rq": ("nr_running", "curr", "idle", "cfs", "sd"),
    "sched_domain": ("parent", "groups", "flags", "span_weight"),
}
STEADY_FLAGS = ("SHARE_LLC", "BALANCE_EXEC", "BALANCE_FORK")

_STRUCT = re.compile(r"^struct (\w+) \{\n((?:\t.+;\n)+)\};$", re.MULTILINE)
_MEMBER = re.compile(r"^\t(?:volatile )?(.+?[ *])(\w+)(\[\d*\])?;$", re.MULTILINE)


@dataclass(frozen=True)
class Types:
    """The answers of one kernel; what is absent from a table does not exist there.

    members: struct, member to (byte offset, bytes); functions and tracepoints: number of (raw) arguments; flags: bit
    numbers of the domain flags, by name without SD_.
    """

    origin: str
    sizes: dict[str, int] = field(default_factory=dict)
    members: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)
    enumerators: dict[str, int] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    tracepoints: dict[str, int] = field(default_factory=dict)
    btf: bool = False  # the kernel itself knows its types
    typed: bool = False  # and hands out typed tasks (bpf_get_current_task_btf, v5.11)
    per_cpu: bool = False  # and per-cpu variables

    def has(self, member: str) -> bool:
        """Whether "struct.member" exists."""
        owner, _, name = member.partition(".")
        return name in self.members.get(owner, {})


def wanted() -> dict[str, list[str]]:
    """Members by struct that kernel.h and the model ask for, flavours (struct___x) merged."""
    found: dict[str, list[str]] = {}
    pairs = [
        (name.partition("___")[0], str(member[2]))
        for name, body in _STRUCT.findall((HERE / "kernel.h").read_text())
        if not name.startswith("bpf_iter_")  # only where there is BTF
        for member in _MEMBER.finditer(body)
    ]
    for name, member in [*pairs, *((m.split(".")[0], m.split(".")[1]) for m in MEMBERS)]:
        found.setdefault(name, [])
        if member not in found[name]:
            found[name].append(member)
    return found


def lack(types: Types, series: tuple[int, int]) -> str | None:
    """What shows that the types of a kernel of this series were not read whole or not right, or None.

    None for kernels before 5.3, too: those are refused for what they are (probes.plan).
    """
    if series < (5, 3):
        return None
    needed = [(f"{owner}.{name}", types.has(f"{owner}.{name}")) for owner, names in STEADY.items() for name in names]
    needed += [(name, name in types.enumerators) for name in ENUMERATORS]
    needed += [("select_task_rq_fair", "select_task_rq_fair" in types.functions)]
    if series >= (5, 10):  # before, flags were macros; tracepoints have been types since 5.5
        needed += [(f"SD_{name}", name in types.flags) for name in STEADY_FLAGS]
        needed += [("btf_trace_sched_switch", "sched_switch" in types.tracepoints)]
    absent = next((f"no {name}" for name, found in needed if not found), None)
    outside = (
        f"{owner}.{name} lies outside of its structure"
        for owner, members in types.members.items()
        for name, (offset, size) in members.items()
        if offset + size > types.sizes.get(owner, 0)
    )
    beyond = (f"SD_{name} is bit {bit} of 32" for name, bit in types.flags.items() if not 0 <= bit < 32)
    return absent or next(outside, None) or next(beyond, None)


def from_btf(btf: Btf) -> Types:
    """What a kernel's BTF says."""
    types = Types(str(VMLINUX), btf=True)
    for name, members in wanted().items():
        number = btf.find(STRUCT, name)
        if number is None:
            continue
        types.sizes[name] = btf.type(number).size_or_type
        places = {member: btf.member(number, member) for member in members}
        types.members[name] = {member: place for member, place in places.items() if place}
    types.flags.update(flag_bits(btf.enum_values("__SD_")))
    values = btf.enum_values("CPUHP_INVALID")
    types.enumerators.update((name, values[name]) for name in ENUMERATORS if name in values)
    for table, names, ask in (
        (types.functions, FUNCTIONS, btf.parameters),
        (types.tracepoints, TRACEPOINTS, btf.tracepoint_parameters),
    ):
        table.update((name, count) for name in names if (count := ask(name)) is not None)
    helpers = btf.enum_values("BPF_FUNC_") if btf.find(ENUM, "bpf_func_id") is not None else {}
    typed = "BPF_FUNC_get_current_task_btf" in helpers
    return Types(**{**vars(types), "typed": typed, "per_cpu": btf.find(VAR, "runqueues") is not None})


def flags_before_5_10(series: tuple[int, int]) -> dict[str, int]:
    """The domain flags while they were macros, which types do not tell (include/linux/sched/topology.h, v5.4, v5.8).

    Until d54a9658a756 (v5.10) made them enumerators. SD_LOAD_BALANCE came first until 36c5bdc43870 (v5.8). {} for
    kernels before 5.3, which cannot be recorded: they refuse programs with loops.
    """
    names = ["BALANCE_NEWIDLE", "BALANCE_EXEC", "BALANCE_FORK", "BALANCE_WAKE", "WAKE_AFFINE", "ASYM_CPUCAPACITY"]
    names += ["SHARE_CPUCAPACITY", "SHARE_POWERDOMAIN", "SHARE_LLC", "SERIALIZE", "ASYM_PACKING", "PREFER_SIBLING"]
    names += ["OVERLAP", "NUMA"]
    if series < (5, 8):
        names.insert(0, "LOAD_BALANCE")
    return {name: bit for bit, name in enumerate(names)} if (5, 3) <= series < (5, 10) else {}


def flag_bits(values: dict[str, int]) -> dict[str, int]:
    """The domain flags from the kernel's enumerators __SD_*, under their names of v6.9 and later."""
    flags = {name.removeprefix("__SD_"): bit for name, bit in values.items() if not name.endswith("FLAG_CNT")}
    if "SHARE_PKG_RESOURCES" in flags:  # renamed SD_SHARE_LLC in v6.9
        flags["SHARE_LLC"] = flags.pop("SHARE_PKG_RESOURCES")
    return flags


def lay_out(source: str, types: Types) -> str:
    """kernel.h with each structure's members where this kernel has them; those it lacks become __int128 (bcc.h).

    Structures go by names of their own, for BCC's headers may define some: pcpu_hot in those of 6.2 to 6.14.
    """
    bodies = dict(_STRUCT.findall(source))

    def structure(match: re.Match[str]) -> str:
        name = match[1].partition("___")[0]
        lines = [_place(member, types.members.get(name, {}).get(member[2]), bodies) for member in _members(match[2])]
        size = types.sizes.get(name, 0)
        return f"struct {match[1]} {{ union {{\n" + "".join(lines) + f"\tchar whole[{size}];\n}}; }};"

    own_names = "".join(f"#define {name} wakescope_{name}\n" for name in bodies)
    return own_names + _STRUCT.sub(structure, source)


def _members(body: str) -> list[re.Match[str]]:
    return list(_MEMBER.finditer(body))


def _place(member: re.Match[str], place: tuple[int, int] | None, bodies: dict[str, str]) -> str:
    """One member of a union of members, each behind padding of its own."""
    declared, name, array = member[1].strip(), member[2], member[3] or ""
    if place is None:
        return _absent(member, bodies)
    offset, size = place
    if not array and "*" not in declared and not declared.startswith("struct"):
        signed = declared.startswith(("int", "long", "__s"))
        declared = f"__{'s' if signed else 'u'}{8 * size}"
    return f"\tstruct {{ char before_{name}[{offset}]; {declared} {name}{array}; }} __attribute__((packed));\n"


def _absent(member: re.Match[str], bodies: dict[str, str]) -> str:
    body = bodies.get(member[1].strip().removeprefix("struct "), "")
    if "*" in member[1] or not body:
        return f"\t__int128 {member[2]} __attribute__((packed));\n"
    return "\tstruct {\n" + "".join(_absent(inner, bodies) for inner in _members(body)) + f"\t}} {member[2]};\n"


def kernel_types(vmlinux: Path | None = None) -> Types:
    """The running kernel's types: from its BTF, or from a vmlinux with DWARF, the one given or one that is found.

    Raises KernelError if there is neither.
    """
    from .dwarf import running_kernel

    types = from_btf(Btf.kernel()) if vmlinux is None and VMLINUX.exists() else running_kernel(vmlinux)
    types.flags.update({} if types.flags else flags_before_5_10(host.series()))
    return types
