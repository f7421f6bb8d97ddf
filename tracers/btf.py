# SPDX-License-Identifier: GPL-2.0-only
"""Reading BTF: of the running kernel, and of the probe object, whose record layouts become numpy dtypes.

BTF is documented in the kernel tree (Documentation/bpf/btf.rst). No maintained Python library reads it; pyelftools
finds the section and this module reads what Wakescope needs of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from ..errors import KernelError

VMLINUX = Path("/sys/kernel/btf/vmlinux")

INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FUNC_PROTO = range(1, 14)
VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = range(14, 20)

# Bytes that follow the 12-byte header of a type, by kind: fixed, and per member.
_EXTRA = {INT: (4, 0), ARRAY: (12, 0), STRUCT: (0, 12), UNION: (0, 12), ENUM: (0, 8), FUNC_PROTO: (0, 8), VAR: (4, 0)}
_EXTRA |= {DATASEC: (0, 12), DECL_TAG: (4, 0), ENUM64: (0, 12)}
_ALIASES = (TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG)


@dataclass(frozen=True)
class Type:
    """One BTF type: name, kind, member count, kind_flag, size (or the id it refers to), where its members are."""

    name: str
    kind: int
    vlen: int
    kind_flag: bool
    size_or_type: int
    members_at: int


class Btf:
    """The types of one BTF blob. Raises KernelError if the bytes are not BTF."""

    def __init__(self, data: bytes, origin: str) -> None:
        try:
            magic, _, _, header, type_off, type_len, str_off, str_len = struct.unpack_from("<HBBIIIII", data)
        except struct.error:
            raise KernelError(f"{origin} holds no BTF (too short)") from None
        if magic != 0xEB9F:
            raise KernelError(f"{origin} holds no BTF (magic {magic:#x})")
        self.origin = origin
        self._types = data[header + type_off : header + type_off + type_len]
        self._strings = data[header + str_off : header + str_off + str_len]

    @classmethod
    def kernel(cls, path: Path = VMLINUX) -> Btf:
        """BTF of the running kernel. Raises KernelError if it has none."""
        try:
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            raise KernelError(f"this kernel has no readable BTF ({path}: {error.strerror})") from None

    @classmethod
    def of_object(cls, path: Path) -> Btf:
        """BTF of an ELF file's .BTF section. Raises KernelError if there is none."""
        try:
            with path.open("rb") as file:
                section = ELFFile(file).get_section_by_name(".BTF")
                data = section.data() if section else b""
        except (OSError, ELFError) as error:
            raise KernelError(f"{path} cannot be read: {error}") from None
        return cls(data, str(path))

    @cached_property
    def _offsets(self) -> list[int]:
        """Where each type begins, by id; id 0 is void."""
        offsets, at, unpack = [-1], 0, struct.Struct("<I").unpack_from
        while at < len(self._types):
            offsets.append(at)
            (info,) = unpack(self._types, at + 4)
            fixed, each = _EXTRA.get(info >> 24 & 0x1F, (0, 0))
            at += 12 + fixed + each * (info & 0xFFFF)
        return offsets

    @cached_property
    def _by_name(self) -> dict[tuple[int, int], int]:
        """(kind, name offset) to type id; the first wins."""
        unpack, found = struct.Struct("<II").unpack_from, {}
        for number in range(len(self._offsets) - 1, 0, -1):
            name, info = unpack(self._types, self._offsets[number])
            found[info >> 24 & 0x1F, name] = number
        return found

    def __len__(self) -> int:
        return len(self._offsets)

    def string(self, offset: int) -> str:
        """The string at an offset of the string section."""
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def type(self, number: int) -> Type:
        """The type with this id (not void)."""
        at = self._offsets[number]
        name, info, size = struct.unpack_from("<III", self._types, at)
        return Type(self.string(name), info >> 24 & 0x1F, info & 0xFFFF, bool(info >> 31), size, at + 12)

    def find(self, kind: int, name: str) -> int | None:
        """Id of the first type of this kind and name, or None."""
        at = self._strings.find(b"\0" + name.encode() + b"\0")
        while at >= 0:
            number = self._by_name.get((kind, at + 1))
            if number is not None:
                return number
            at = self._strings.find(b"\0" + name.encode() + b"\0", at + 1)
        return None

    def resolve(self, number: int) -> int:
        """Follow typedefs and qualifiers to what they name."""
        while number and self.type(number).kind in _ALIASES:
            number = self.type(number).size_or_type
        return number

    def members(self, number: int) -> list[tuple[str, int, int]]:
        """Members of a struct or union: (name, type id, bit offset)."""
        t = self.type(number)
        rows = [struct.unpack_from("<III", self._types, t.members_at + 12 * i) for i in range(t.vlen)]
        mask = 0xFFFFFF if t.kind_flag else 0xFFFFFFFF
        return [(self.string(name), kind, bits & mask) for name, kind, bits in rows]

    def member_offset(self, struct_name: str, member: str) -> int | None:
        """Byte offset of a member, also one inside anonymous structs and unions; None if there is no such member."""
        number = self.find(STRUCT, struct_name)
        found = None if number is None else self.member(number, member)
        return found and found[0]

    def member(self, number: int, member: str) -> tuple[int, int] | None:
        """Byte offset and size of a struct's member, also one inside anonymous structs and unions, or None."""
        for name, kind, bits in self.members(number):
            if name == member:
                return bits // 8, self.size(kind)
            inner = self.resolve(kind)
            if not name and inner and self.type(inner).kind in (STRUCT, UNION):
                within = self.member(inner, member)
                if within is not None:
                    return bits // 8 + within[0], within[1]
        return None

    def size(self, number: int) -> int:
        """Bytes of a variable of this type."""
        t = self.type(self.resolve(number))
        if t.kind == PTR:
            return 8
        if t.kind == ARRAY:
            element, _, count = struct.unpack_from("<III", self._types, t.members_at)
            return int(count) * self.size(element)
        return t.size_or_type

    def parameters(self, function: str) -> int | None:
        """Number of parameters of a function, or None if the kernel has no such function in its BTF."""
        number = self.find(FUNC, function)
        return None if number is None else self.type(self.type(number).size_or_type).vlen

    def tracepoint_parameters(self, event: str) -> int | None:
        """Number of a tracepoint's raw arguments, or None if there is no such tracepoint."""
        number = self.find(TYPEDEF, f"btf_trace_{event}")
        if number is None:
            return None
        pointer = self.type(self.resolve(number))
        return self.type(self.resolve(pointer.size_or_type)).vlen - 1  # the first is the event's own data

    def enum_values(self, prefix: str) -> dict[str, int]:
        """Enumerators of the first enum with one that begins with prefix (it may be anonymous)."""
        for number in range(1, len(self._offsets)):
            t_info = struct.unpack_from("<I", self._types, self._offsets[number] + 4)[0]
            if t_info >> 24 & 0x1F != ENUM or not t_info & 0xFFFF:
                continue
            t = self.type(number)
            (first,) = struct.unpack_from("<I", self._types, t.members_at)
            if self._strings.startswith(prefix.encode(), first):
                rows = [struct.unpack_from("<Ii", self._types, t.members_at + 8 * i) for i in range(t.vlen)]
                return {self.string(name): value for name, value in rows}
        return {}

    def dtype(self, struct_name: str) -> np.dtype[np.void]:
        """The structured dtype of a struct of integers and arrays of them; bytes called comm or name become S."""
        number = self.find(STRUCT, struct_name)
        if number is None:
            raise KernelError(f"{self.origin} has no struct {struct_name}: it belongs to another wakescope")
        names, formats, offsets = [], [], []
        for name, kind, bits in self.members(number):
            if name.startswith("pad"):
                continue
            names.append(name)
            formats.append(self._format(kind, name))
            offsets.append(bits // 8)
        itemsize = self.type(number).size_or_type
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})

    def _format(self, number: int, name: str) -> Any:
        t = self.type(self.resolve(number))
        if t.kind == INT:
            (encoding,) = struct.unpack_from("<I", self._types, t.members_at)
            return f"<{'i' if encoding >> 24 & 1 else 'u'}{t.size_or_type}"
        if t.kind == ARRAY:
            element, _, count = struct.unpack_from("<III", self._types, t.members_at)
            inner = self._format(element, "")
            return f"S{count}" if name in ("comm", "name") else (inner, (count,))
        raise KernelError(f"{self.origin}: member {name} is neither an integer nor an array of them")
