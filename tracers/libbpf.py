# SPDX-License-Identifier: GPL-2.0-only
"""The few functions of libbpf (1.0 or later) that Wakescope calls, through ctypes.

Errors become KernelError or PrivilegeError with libbpf's last words about it; libbpf itself never prints.
"""

from __future__ import annotations

import ctypes
import errno
import os
from ctypes import POINTER, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from ..errors import KernelError, PrivilegeError

MAP_TYPE_ARRAY, MAP_TYPE_PERF_EVENT_ARRAY, MAP_TYPE_LRU_HASH, MAP_TYPE_RINGBUF = 2, 4, 9, 27
F_TEST_RUN_ON_CPU = 1
STATS_RUN_TIME = 0

_PRINTER = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)


class TestRunOpts(ctypes.Structure):
    """struct bpf_test_run_opts, as libbpf 1.0 has it (sz tells libbpf how much we know)."""

    _fields_ = [
        ("sz", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("ctx_in", c_void_p),
        ("ctx_out", c_void_p),
        ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    ]


class OpenOpts(ctypes.Structure):
    """struct bpf_object_open_opts, as libbpf 1.0 has it."""

    _fields_ = [
        ("sz", c_size_t),
        ("object_name", c_char_p),
        ("relaxed_maps", c_bool),
        ("pin_root_path", c_char_p),
        ("pad", c_uint32),
        ("kconfig", c_char_p),
        ("btf_custom_path", c_char_p),
        ("kernel_log_buf", c_void_p),
        ("kernel_log_size", c_size_t),
        ("kernel_log_level", c_uint32),
    ]


class ProgInfo(ctypes.Structure):
    """struct bpf_prog_info up to recursion_misses (5.12); older kernels leave the tail zero."""

    _fields_ = [
        ("type", c_uint32),
        ("id", c_uint32),
        ("tag", ctypes.c_uint8 * 8),
        ("jited_prog_len", c_uint32),
        ("xlated_prog_len", c_uint32),
        ("pad0", c_uint64 * 3),
        ("uid", c_uint32),
        ("nr_map_ids", c_uint32),
        ("map_ids", c_uint64),
        ("name", ctypes.c_char * 16),
        ("ifindex", c_uint32),
        ("gpl", c_uint32),
        ("pad1", c_uint64 * 2),
        ("pad2", c_uint32 * 2),
        ("pad3", c_uint64 * 2),
        ("btf_id", c_uint32),
        ("func_info_rec_size", c_uint32),
        ("func_info", c_uint64),
        ("nr_func_info", c_uint32),
        ("nr_line_info", c_uint32),
        ("line_info", c_uint64),
        ("jited_line_info", c_uint64),
        ("nr_jited_line_info", c_uint32),
        ("line_info_rec_size", c_uint32),
        ("jited_line_info_rec_size", c_uint32),
        ("nr_prog_tags", c_uint32),
        ("prog_tags", c_uint64),
        ("run_time_ns", c_uint64),
        ("run_cnt", c_uint64),
        ("recursion_misses", c_uint64),
    ]


_SIGNATURES = {
    "bpf_object__open_file": (c_void_p, [c_char_p, c_void_p]),
    "bpf_object__load": (c_int, [c_void_p]),
    "bpf_object__close": (None, [c_void_p]),
    "bpf_object__find_program_by_name": (c_void_p, [c_void_p, c_char_p]),
    "bpf_object__find_map_by_name": (c_void_p, [c_void_p, c_char_p]),
    "bpf_object__next_program": (c_void_p, [c_void_p, c_void_p]),
    "bpf_program__name": (c_char_p, [c_void_p]),
    "bpf_program__set_autoload": (c_int, [c_void_p, c_bool]),
    "bpf_program__attach": (c_void_p, [c_void_p]),
    "bpf_program__fd": (c_int, [c_void_p]),
    "bpf_link__destroy": (c_int, [c_void_p]),
    "bpf_link__fd": (c_int, [c_void_p]),
    "bpf_iter_create": (c_int, [c_int]),
    "bpf_map__fd": (c_int, [c_void_p]),
    "bpf_map__set_autocreate": (c_int, [c_void_p, c_bool]),
    "bpf_map__initial_value": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "bpf_map_create": (c_int, [c_int, c_char_p, c_uint32, c_uint32, c_uint32, c_void_p]),
    "bpf_map_update_elem": (c_int, [c_int, c_void_p, c_void_p, c_uint64]),
    "bpf_map_lookup_elem": (c_int, [c_int, c_void_p, c_void_p]),
    "bpf_prog_test_run_opts": (c_int, [c_int, POINTER(TestRunOpts)]),
    "bpf_obj_get_info_by_fd": (c_int, [c_int, c_void_p, POINTER(c_uint32)]),
    "bpf_enable_stats": (c_int, [c_int]),
    "libbpf_major_version": (c_uint32, []),
    "libbpf_num_possible_cpus": (c_int, []),
    "libbpf_set_print": (c_void_p, [_PRINTER]),
}

messages: list[str] = []  # what libbpf said since the last clear, newest last


@cache
def lib() -> ctypes.CDLL:
    """libbpf.so.1, with argument types set. Raises KernelError if it is not installed."""
    try:
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        raise KernelError("libbpf 1.0 or later is not installed: install the package libbpf1 (or libbpf)") from None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.libbpf_set_print(_printer)
    return library


def place() -> str:
    """The file that libbpf was loaded from."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split(maxsplit=5)[5] for line in maps if "/libbpf.so." in line)


@_PRINTER  # type: ignore[untyped-decorator]
def _printer(level: int, form: bytes, arguments: int) -> int:
    if level <= 1:  # LIBBPF_WARN, LIBBPF_INFO
        buffer = ctypes.create_string_buffer(1 << 22)
        ctypes.CDLL(None).vsnprintf(buffer, c_size_t(len(buffer)), form, c_void_p(arguments))
        messages.append(buffer.value.decode(errors="replace").strip())
    return 0


def fail(what: str, code: int) -> KernelError | PrivilegeError:
    """The error for a libbpf call that returned -code (or set errno)."""
    code = abs(code) or ctypes.get_errno()
    said = next((m for m in reversed(messages) if "failed" in m or "error" in m), "")
    reason = os.strerror(code) if code else "unknown error"
    if code == errno.EPERM:
        return PrivilegeError(f"cannot {what}: {reason}; run as root, with CAP_SYS_ADMIN")
    return KernelError(f"cannot {what}: {reason}" + (f" ({said.splitlines()[0]})" if said else ""))


class Object:
    """One BPF object file, opened; programs may be switched off before load()."""

    has_ringbuf = True

    def __init__(self, path: Path, btf: Path | None = None) -> None:
        """btf: whose types to relocate against instead of the kernel's, which must otherwise exist."""
        messages.clear()
        self.path = path
        opts = OpenOpts(sz=ctypes.sizeof(OpenOpts), btf_custom_path=os.fsencode(btf) if btf else None)
        self._object = lib().bpf_object__open_file(os.fsencode(path), ctypes.byref(opts))
        if not self._object:
            raise fail(f"open {path.name}", ctypes.get_errno())
        self._links: list[int] = []

    def programs(self) -> list[str]:
        """Names of all programs in the object."""
        names, program = [], lib().bpf_object__next_program(self._object, None)
        while program:
            names.append(lib().bpf_program__name(program).decode())
            program = lib().bpf_object__next_program(self._object, program)
        return names

    def select(self, names: set[str]) -> None:
        """Load only these programs."""
        for name in self.programs():
            lib().bpf_program__set_autoload(self._program(name), name in names)

    def set_constants(self, values: dict[str, int]) -> None:
        """Set constants (const volatile globals) by name, before load()."""
        start = lib().bpf_map__initial_value(self._map(".rodata"), ctypes.byref(c_size_t()))
        with self.path.open("rb") as file:
            table = ELFFile(file).get_section_by_name(".symtab")
            for name, value in values.items():
                found = table.get_symbol_by_name(name) if isinstance(table, SymbolTableSection) else None
                if not start or not found:
                    raise KernelError(f"{self.path.name} has no constant {name}: it belongs to another wakescope")
                size = int(found[0]["st_size"])
                ctypes.memmove(start + int(found[0]["st_value"]), value.to_bytes(size, "little"), size)

    def leave_out(self, name: str) -> None:
        """Do not create a map, before load()."""
        lib().bpf_map__set_autocreate(self._map(name), False)

    def load(self) -> None:
        """Verify and load. Raises KernelError or PrivilegeError."""
        result = lib().bpf_object__load(self._object)
        if result:
            raise fail("load the probes", result)

    def attach(self, name: str) -> int:
        """Attach a loaded program and return its link; it stays attached until close()."""
        link = lib().bpf_program__attach(self._program(name))
        if not link:
            raise fail(f"attach {name}", ctypes.get_errno())
        self._links.append(link)
        return int(link)

    def run_iterator(self, name: str) -> None:
        """Run an iterator program over everything it iterates."""
        link = self.attach(name)
        fd = lib().bpf_iter_create(lib().bpf_link__fd(link))
        if fd < 0:
            raise fail(f"run {name}", fd)
        with os.fdopen(fd, "rb", buffering=0) as stream:
            while stream.read(4096):
                pass

    def run_on(self, name: str, cpu: int | None) -> None:
        """Run a raw tracepoint program once on a CPU, or as this thread. Raises KernelError if the CPU is offline."""
        opts = TestRunOpts(sz=ctypes.sizeof(TestRunOpts), flags=0 if cpu is None else F_TEST_RUN_ON_CPU, cpu=cpu or 0)
        result = lib().bpf_prog_test_run_opts(self.program_fd(name), ctypes.byref(opts))
        if result:
            raise fail(f"run {name} on CPU {cpu}", result)

    def program_fd(self, name: str) -> int:
        """File descriptor of a loaded program."""
        return int(lib().bpf_program__fd(self._program(name)))

    def map_fd(self, name: str) -> int:
        """File descriptor of a map."""
        return int(lib().bpf_map__fd(self._map(name)))

    def info(self, name: str) -> ProgInfo:
        """Run count, run time (while statistics are on) and recursion misses of a loaded program."""
        info, size = ProgInfo(), c_uint32(ctypes.sizeof(ProgInfo))
        result = lib().bpf_obj_get_info_by_fd(self.program_fd(name), ctypes.byref(info), ctypes.byref(size))
        if result:
            raise fail(f"read statistics of {name}", result)
        return info

    def detach(self) -> None:
        """Detach every attached program; maps and counters stay readable."""
        while self._links:
            lib().bpf_link__destroy(self._links.pop())

    def close(self) -> None:
        """Detach and unload everything."""
        self.detach()
        if self._object:
            lib().bpf_object__close(self._object)
            self._object = None

    def _program(self, name: str) -> int:
        program = lib().bpf_object__find_program_by_name(self._object, name.encode())
        if not program:
            raise KernelError(f"the probe object has no program {name}: it belongs to another wakescope")
        return int(program)

    def _map(self, name: str) -> int:
        found = lib().bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise KernelError(f"the probe object has no map {name}: it belongs to another wakescope")
        return int(found)


def create_ringbuf(size: int) -> int:
    """A BPF ring buffer of size bytes (a power of two, whole pages); returns its descriptor."""
    fd = lib().bpf_map_create(MAP_TYPE_RINGBUF, b"wakescope", 0, 0, size, None)
    if fd < 0:
        raise fail(f"create a ring of {size >> 10} KiB", fd)
    return int(fd)


def create_map(kind: int, value_size: int, entries: int) -> int:
    """A map with 4-byte keys; returns its descriptor."""
    fd = lib().bpf_map_create(kind, b"wakescope", 4, value_size, entries, None)
    if fd < 0:
        raise fail("create a map", fd)
    return int(fd)


def update(fd: int, key: int, value: bytes) -> None:
    """Set one element of an array map, or one inner map by its descriptor."""
    result = lib().bpf_map_update_elem(fd, ctypes.byref(c_uint32(key)), value, 0)
    if result:
        raise fail("fill a map", result)


def lookup(fd: int, key: int, size: int) -> bytes:
    """Read one element of an array map; of a per-CPU map, the values of all possible CPUs one after the other."""
    buffer = ctypes.create_string_buffer(size)
    result = lib().bpf_map_lookup_elem(fd, ctypes.byref(c_uint32(key)), buffer)
    if result:
        raise fail("read a map", result)
    return buffer.raw


def possible_cpus() -> int:
    """Number of possible CPUs: how many values a per-CPU map holds."""
    return int(lib().libbpf_num_possible_cpus())
