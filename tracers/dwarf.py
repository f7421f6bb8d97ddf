# SPDX-License-Identifier: GPL-2.0-only
"""A kernel's types from the DWARF of its vmlinux, for kernels without BTF; found once, kept by build id.

A vmlinux has thousands of units; the scheduler's own know every type asked for, so only those are read.
"""

from __future__ import annotations

import json
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zlib import crc32

from elftools.common.exceptions import DWARFError
from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from ..errors import KernelError
from . import host
from .offsets import ENUMERATORS, FUNCTIONS, ROOT, TRACEPOINTS, Types, flag_bits, lack, wanted

NOTES = Path("/sys/kernel/notes")
PLACES = (
    *("usr/lib/debug/boot/vmlinux-{}", "usr/lib/debug/lib/modules/{}/vmlinux", "lib/modules/{}/build/vmlinux"),
    *("usr/lib/debug/boot/vmlinux-*", "usr/lib/debug/lib/modules/*/vmlinux", "lib/modules/*/build/vmlinux"),
)

# Units that are read, and the part each is known by; from 5.18 on build_utility.c includes topology.c.
UNITS = {"kernel/sched/core.c": "core", "kernel/sched/fair.c": "fair", "kernel/cpu.c": "cpu"}
UNITS |= {"kernel/sched/topology.c": "topology", "kernel/sched/build_utility.c": "topology"}

DAMAGED = "has damaged or incomplete DWARF"

_ALIASES = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_restrict_type")
_STRUCT = ("DW_TAG_structure_type", "DW_TAG_union_type")


def running_kernel(vmlinux: Path | None = None) -> Types:
    """Types of the running kernel: kept from before, or from the vmlinux given, or from the one found installed.

    Raises KernelError if there is none, or the one given is of another build or has no whole DWARF.
    """
    running = _running_build_id()
    if vmlinux is not None:
        return _keep(running, _given(vmlinux, running))
    return _kept(running) or _keep(running, _installed(running))


def _given(vmlinux: Path, running: str) -> Types:
    try:
        found = build_id(vmlinux)
        if found == running:
            return _whole(vmlinux)
    except KernelError as error:
        raise KernelError(f"{error}: reinstall {_packages()}, or give another --vmlinux") from None
    raise KernelError(
        f"{vmlinux} is not the running kernel's: its build id is {found}, the kernel's {running}; "
        "give the vmlinux of this very build"
    )


def _installed(running: str) -> Types:
    passed_over = []
    for path in candidates():
        try:
            if build_id(path) == running:
                return _whole(path)
        except KernelError as error:
            passed_over.append(str(error))
    raise KernelError(
        f"this kernel has no BTF, and no vmlinux of build id {running} is installed: install {_packages()}, or give "
        "--vmlinux PATH" + (f" (passed over: {'; '.join(passed_over)})" if passed_over else "")
    )


def _packages() -> str:
    debian, ubuntu = f"linux-image-{platform.release()}-dbg", f"linux-image-unsigned-{platform.release()}-dbgsym"
    return f"{debian} (Debian), {ubuntu} (Ubuntu) or kernel-debuginfo (Fedora)"


def candidates(root: Path = ROOT) -> Iterator[Path]:
    """Installed vmlinux files, each once, the running release's first."""
    yield from dict.fromkeys(p for place in PLACES for p in sorted(root.glob(place.format(platform.release()))))


def build_id(vmlinux: Path) -> str:
    """The build id in a vmlinux, as hex digits. Raises KernelError if the file is no ELF file or has none."""
    with _elf(vmlinux, "is not a whole ELF file") as elf:
        for section in elf.iter_sections("SHT_NOTE"):
            if isinstance(section, NoteSection):
                for note in section.iter_notes():
                    if note["n_type"] == "NT_GNU_BUILD_ID" and note["n_name"] == "GNU":
                        return str(note["n_desc"])
    raise KernelError(f"{vmlinux} has no build id, by which it could be told to be the running kernel's")


@contextmanager
def _elf(vmlinux: Path, complaint: str) -> Iterator[ELFFile]:
    """The file, open to be read. Raises KernelError with the complaint if it, or the block, stumbles over a damage."""
    try:
        with vmlinux.open("rb") as file:
            yield ELFFile(file)
    except KernelError:
        raise
    except OSError as error:
        raise KernelError(f"{vmlinux} cannot be read ({error.strerror or error})") from None
    except Exception as error:  # there is no end of what pyelftools raises, wherever a damage leads it
        raise KernelError(f"{vmlinux} {complaint} ({type(error).__name__}: {error})") from None


def _running_build_id() -> str:
    try:
        found = _notes_build_id(NOTES.read_bytes())
    except OSError:
        found = ""
    if not found:
        raise KernelError(
            f"{NOTES} gives no build id, by which this kernel's vmlinux would be known: mount sysfs on /sys, or boot a "
            "kernel that was linked with --build-id"
        )
    return found


def _notes_build_id(data: bytes) -> str:
    """The build id among the ELF notes the kernel shows of itself."""
    at = 0
    while at + 12 <= len(data):
        size, length, kind = struct.unpack_from("<III", data, at)
        name = data[at + 12 : at + 12 + size]
        at += 12 + (size + 3) // 4 * 4
        if kind == 3 and name == b"GNU\0":  # NT_GNU_BUILD_ID
            return data[at : at + length].hex() if at + length <= len(data) else ""
        at += (length + 3) // 4 * 4
    return ""


def _whole(vmlinux: Path) -> Types:
    """Types from the running kernel's vmlinux. Raises KernelError unless they are complete."""
    types = read(vmlinux)
    lacks = lack(types, host.series())
    if lacks:
        raise KernelError(f"{vmlinux} {DAMAGED} ({lacks})")
    return types


def read(vmlinux: Path) -> Types:
    """Types from a vmlinux. Raises KernelError if it has no DWARF, or a damaged one, or none of the scheduler."""
    with _elf(vmlinux, DAMAGED) as elf:
        if not (elf.get_section_by_name(".debug_info") or elf.get_section_by_name(".zdebug_info")):
            raise KernelError(f"{vmlinux} has no DWARF (it was stripped, or built without CONFIG_DEBUG_INFO)")
        reader, unread = _Reader(Types(str(vmlinux))), set(UNITS.values())
        # Relocations of a linked vmlinux (--emit-relocs) are applied already.
        for unit in elf.get_dwarf_info(relocate_dwarf_sections=False, follow_links=False).iter_CUs():
            top = unit.get_top_DIE()
            name = top.attributes["DW_AT_name"].value.decode(errors="replace") if "DW_AT_name" in top.attributes else ""
            part = next((part for path, part in UNITS.items() if name.endswith(path)), None)
            if part:
                reader.unit(top)
                unread.discard(part)
            if not unread:
                break
    if not reader.types.members.get("task_struct"):
        raise KernelError(f"{vmlinux} has DWARF, but not of the scheduler (kernel/sched/core.c)")
    return reader.types


class _Reader:
    """Collects what is wanted from one unit after the other."""

    def __init__(self, types: Types) -> None:
        self.types = types
        self._wanted = wanted()
        self._events = {f"btf_trace_{event}": event for event in TRACEPOINTS}

    def unit(self, top: DIE) -> None:
        for die in _children(top):
            name = _name(die)
            if die.tag == "DW_TAG_structure_type" and name in self._wanted and "DW_AT_byte_size" in die.attributes:
                self._structure(name, die)
            elif die.tag == "DW_TAG_enumeration_type":
                self._enumerators(die)
            elif die.tag == "DW_TAG_subprogram" and name in FUNCTIONS:
                self.types.functions[name] = _parameters(die)
            elif die.tag == "DW_TAG_typedef" and name in self._events:
                # the first argument is the event's own data
                self.types.tracepoints[self._events[name]] = _parameters(_type(_type(die))) - 1

    def _structure(self, name: str, die: DIE) -> None:
        if name not in self.types.members:
            members = dict(_members(die))
            self.types.sizes[name] = die.attributes["DW_AT_byte_size"].value
            self.types.members[name] = {m: members[m] for m in self._wanted[name] if m in members}

    def _enumerators(self, die: DIE) -> None:
        values = {_name(e): e.attributes["DW_AT_const_value"].value for e in _children(die)}
        if any(name.startswith("__SD_") for name in values):
            self.types.flags.update(flag_bits(values))
        self.types.enumerators.update((name, values[name]) for name in ENUMERATORS if name in values)


def _name(die: DIE) -> str:
    """A name, or "" where there is none. No compiler writes an empty one: its string was overwritten."""
    attribute = die.attributes.get("DW_AT_name")
    if attribute and not attribute.value:
        raise DWARFError("empty name")
    return attribute.value.decode() if attribute else ""


def _children(die: DIE) -> Iterator[DIE]:
    """Entries inside an entry, which come one behind the other: a damaged reference may lead in circles."""
    at, end = die.offset, die.cu.cu_offset + die.cu.size
    for child in die.iter_children():
        if not at < child.offset < end:
            raise DWARFError("entries out of order")
        at = child.offset
        yield child


def _type(die: DIE) -> DIE:
    return die.get_DIE_from_attribute("DW_AT_type")


def _parameters(die: DIE) -> int:
    return sum(child.tag == "DW_TAG_formal_parameter" for child in _children(die))


def _members(die: DIE, base: int = 0) -> Iterator[tuple[str, tuple[int, int]]]:
    """(name, (offset, bytes)) of a structure's members, also those inside anonymous structures and unions."""
    for child in _children(die):
        if child.tag != "DW_TAG_member":
            continue
        bits = child.attributes.get("DW_AT_data_bit_offset")
        at = child.attributes.get("DW_AT_data_member_location")
        offset = base + (bits.value // 8 if bits else at.value if at else 0)
        kind = _plain(_type(child))
        if _name(child):
            yield _name(child), (offset, _size(kind))
        elif kind.tag in _STRUCT:
            yield from _members(kind, offset)


def _plain(die: DIE) -> DIE:
    """A type without typedefs and qualifiers."""
    seen = set()
    while die.tag in _ALIASES and "DW_AT_type" in die.attributes:
        seen.add(die.offset)
        die = _type(die)
        if die.offset in seen:
            raise DWARFError("a type that is itself")
    return die


def _size(die: DIE) -> int:
    if die.tag == "DW_TAG_pointer_type":
        return 8
    if die.tag != "DW_TAG_array_type":
        size = die.attributes.get("DW_AT_byte_size")
        return int(size.value) if size else 0
    count = 1
    for dimension in _children(die):
        attributes: dict[str, Any] = dimension.attributes
        if "DW_AT_count" in attributes:
            count *= attributes["DW_AT_count"].value
        else:
            count *= attributes["DW_AT_upper_bound"].value + 1 if "DW_AT_upper_bound" in attributes else 0
    return count * _size(_plain(_type(die)))


def _file(number: str) -> Path:
    """Where types are kept: by build id and by what was asked for, which another Wakescope may change."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    asked = crc32(json.dumps([wanted(), FUNCTIONS, TRACEPOINTS, ENUMERATORS]).encode())
    return base / "wakescope" / "types" / f"{number}-{asked:08x}.json"


def _keep(number: str, types: Types) -> Types:
    file = _file(number)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(asdict(types)))
        new.rename(file)
    except OSError:
        pass  # it is found again next time
    return types


def _kept(number: str) -> Types | None:
    """What _keep() kept, or None: a file that is damaged, or whose types are not whole, is read anew."""
    try:
        types = _types(json.loads(_file(number).read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return None if lack(types, host.series()) else types


def _types(data: Any) -> Types:
    """The reverse of asdict(). Of what is not types it raises ValueError, TypeError, KeyError or AttributeError."""
    tables = ("sizes", "flags", "enumerators", "functions", "tracepoints")
    found: dict[str, Any] = {table: {name: _number(n) for name, n in data[table].items()} for table in tables}
    found["members"] = {
        owner: {name: (_number(offset), _number(size)) for name, (offset, size) in places.items()}
        for owner, places in data["members"].items()
    }
    types = Types(**{**data, **found})
    if not isinstance(types.origin, str) or types.btf or types.typed or types.per_cpu:
        raise ValueError("not from DWARF")
    return types


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
