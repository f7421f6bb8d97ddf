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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from elftools.common.exceptions import ELFError
from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from ..errors import KernelError
from .offsets import ENUMERATORS, FUNCTIONS, ROOT, TRACEPOINTS, Types, flag_bits, wanted

NOTES = Path("/sys/kernel/notes")
PLACES = (
    *("usr/lib/debug/boot/vmlinux-{}", "usr/lib/debug/lib/modules/{}/vmlinux", "lib/modules/{}/build/vmlinux"),
    *("usr/lib/debug/boot/vmlinux-*", "usr/lib/debug/lib/modules/*/vmlinux", "lib/modules/*/build/vmlinux"),
)

# Units that are read, and the part each is known by; from 5.18 on build_utility.c includes topology.c.
UNITS = {"kernel/sched/core.c": "core", "kernel/sched/fair.c": "fair", "kernel/cpu.c": "cpu"}
UNITS |= {"kernel/sched/topology.c": "topology", "kernel/sched/build_utility.c": "topology"}

_ALIASES = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_restrict_type")
_STRUCT = ("DW_TAG_structure_type", "DW_TAG_union_type")


def running_kernel(vmlinux: Path | None = None) -> Types:
    """Types of the running kernel: kept from before, or from the vmlinux given, or from the one found installed.

    Raises KernelError if there is none, or the one given is of another build or has no DWARF.
    """
    running = _notes_build_id(NOTES.read_bytes())
    if vmlinux is not None:
        found = build_id(vmlinux)
        if found != running:
            raise KernelError(
                f"{vmlinux} is not the running kernel's: its build id is {found}, the kernel's {running}; "
                "give the vmlinux of this very build"
            )
        return _keep(running, read(vmlinux))
    kept = _kept(running)
    if kept:
        return kept
    for path in candidates():
        if build_id(path) == running:
            return _keep(running, read(path))
    raise KernelError(
        f"this kernel has no BTF, and no vmlinux of build id {running} is installed: install "
        f"linux-image-{platform.release()}-dbg (Debian), linux-image-unsigned-{platform.release()}-dbgsym (Ubuntu) or "
        "kernel-debuginfo (Fedora), or give --vmlinux PATH"
    )


def candidates(root: Path = ROOT) -> Iterator[Path]:
    """Installed vmlinux files, the running release's first."""
    for place in PLACES:
        yield from sorted(root.glob(place.format(platform.release())))


def build_id(vmlinux: Path) -> str:
    """The build id in a vmlinux, as hex digits. Raises KernelError if the file is no ELF file or has none."""
    try:
        with vmlinux.open("rb") as file:
            for section in ELFFile(file).iter_sections("SHT_NOTE"):
                if isinstance(section, NoteSection):
                    for note in section.iter_notes():
                        if note["n_type"] == "NT_GNU_BUILD_ID" and note["n_name"] == "GNU":
                            return str(note["n_desc"])
    except OSError as error:
        raise KernelError(f"{vmlinux} cannot be read: {error.strerror}") from None
    except ELFError as error:
        raise KernelError(f"{vmlinux} is not an ELF file with symbols ({error})") from None
    raise KernelError(f"{vmlinux} has no build id: build the kernel with a linker that gives it one")


def _notes_build_id(data: bytes) -> str:
    """The build id among the ELF notes the kernel shows of itself."""
    at = 0
    while at + 12 <= len(data):
        size, length, kind = struct.unpack_from("<III", data, at)
        name = data[at + 12 : at + 12 + size]
        at += 12 + (size + 3) // 4 * 4
        if kind == 3 and name == b"GNU\0":  # NT_GNU_BUILD_ID
            return data[at : at + length].hex()
        at += (length + 3) // 4 * 4
    return ""


def read(vmlinux: Path) -> Types:
    """Types from a vmlinux. Raises KernelError if it has no DWARF, or none of the scheduler."""
    with vmlinux.open("rb") as file:
        elf = ELFFile(file)
        if not (elf.get_section_by_name(".debug_info") or elf.get_section_by_name(".zdebug_info")):
            raise KernelError(f"{vmlinux} has no DWARF: it was stripped, or built without CONFIG_DEBUG_INFO")
        reader, unread = _Reader(Types(str(vmlinux))), set(UNITS.values())
        # Relocations of a linked vmlinux (--emit-relocs) are applied already.
        for unit in elf.get_dwarf_info(relocate_dwarf_sections=False, follow_links=False).iter_CUs():
            top = unit.get_top_DIE()
            part = next((part for path, part in UNITS.items() if _name(top).endswith(path)), None)
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
        for die in top.iter_children():
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
        values = {_name(e): e.attributes["DW_AT_const_value"].value for e in die.iter_children()}
        if any(name.startswith("__SD_") for name in values):
            self.types.flags.update(flag_bits(values))
        self.types.enumerators.update((name, values[name]) for name in ENUMERATORS if name in values)


def _name(die: DIE) -> str:
    attribute = die.attributes.get("DW_AT_name")
    return attribute.value.decode() if attribute else ""


def _type(die: DIE) -> DIE:
    return die.get_DIE_from_attribute("DW_AT_type")


def _parameters(die: DIE) -> int:
    return sum(child.tag == "DW_TAG_formal_parameter" for child in die.iter_children())


def _members(die: DIE, base: int = 0) -> Iterator[tuple[str, tuple[int, int]]]:
    """(name, (offset, bytes)) of a structure's members, also those inside anonymous structures and unions."""
    for child in die.iter_children():
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
    while die.tag in _ALIASES and "DW_AT_type" in die.attributes:
        die = _type(die)
    return die


def _size(die: DIE) -> int:
    if die.tag == "DW_TAG_pointer_type":
        return 8
    if die.tag != "DW_TAG_array_type":
        size = die.attributes.get("DW_AT_byte_size")
        return int(size.value) if size else 0
    count = 1
    for dimension in die.iter_children():
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
    try:
        data = json.loads(_file(number).read_text())
    except (OSError, ValueError):
        return None
    members = {name: {m: tuple(place) for m, place in found.items()} for name, found in data["members"].items()}
    return replace(Types(**data), members=members)
