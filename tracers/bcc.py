# SPDX-License-Identifier: GPL-2.0-only
"""The loader for kernels without BTF: BCC compiles the probes on the machine, at offsets found beforehand.

The maps are made by libbpf from the prebuilt object, none of whose programs is loaded, so that everything but the
programs is the same under both loaders. BCC's clang gets their descriptors, the constants and kernel.h as this kernel
has it (offsets.py). Functions are followed by a kprobe and a kretprobe, tracepoints by raw tracepoints.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import KernelError
from . import host, libbpf
from .bcc_headers import header_tree
from .offsets import Types, lay_out

HERE = Path(__file__).parent
PACKAGES = "/usr/lib/python3/dist-packages"  # where Debian and Ubuntu put modules for the system's own Python

QUIET = ("-w", "-Wno-int-conversion")  # arguments arrive as u64; an error from clang 16 on

MAPS = {"numa_faults": (libbpf.MAP_TYPE_LRU_HASH, 12, 1024), "cursors": (libbpf.MAP_TYPE_ARRAY, 32, 1)}

# What a kernel lacks without the function: its output goes through perf buffers (before 5.8), kernel memory is read as
# user memory is (5.5), jiffies are read from memory (5.6).
HELPERS = {"HAS_RINGBUF": "bpf_ringbuf_output", "HAS_READ_KERNEL": "bpf_probe_read_kernel"}
HELPERS |= {"HAS_JIFFIES64": "bpf_jiffies64"}
BY_HAND = "bpf_prog_test_run_raw_tp"  # 1b4d60ec162f, v5.10

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_PROGRAM = re.compile(r'^SEC\("(\w+)/(\w+)"\)\nint (?:BPF_PROG\()?(\w+)', re.MULTILINE)
_MAP = re.compile(r"^(?:RING_)?ARRAY\((\w+)", re.MULTILINE)
_RINGS = re.compile(r"^RING_ARRAY\((\w+)", re.MULTILINE)
_CONSTANT = re.compile(r"^CONSTANT\(\w+, (\w+)\);", re.MULTILINE)


def module() -> Any:
    """The Python module bcc, also from outside a virtual environment. Raises KernelError if it does not work."""
    sys.path.append(PACKAGES)
    try:
        import bcc
        from bcc import BPF  # noqa: F401 - an empty folder left behind passes for a module, but has none
    except Exception as error:  # of libbcc in another version, for one
        raise KernelError(f"BCC cannot be used ({error}): install the package python3-bpfcc (or python3-bcc)") from None
    finally:
        sys.path.pop()
    return bcc


def source(types: Types) -> str:
    """probes.bpf.c with its own headers in place, kernel.h as the kernel has it: BCC compiles one file."""

    def included(match: re.Match[str]) -> str:
        text = (HERE / match[1]).read_text()
        return _INCLUDE.sub(included, lay_out(text, types) if match[1] == "kernel.h" else text)

    return _INCLUDE.sub(included, (HERE / "probes.bpf.c").read_text())


class Object(libbpf.Object):
    """The probes as BCC compiles them, behind the interface of libbpf.Object."""

    def __init__(self, path: Path, types: Types, words: int) -> None:
        super().__init__(path, btf=path)  # nothing is relocated, but libbpf insists on some BTF
        self._bcc = module()
        self._types = types
        self._words = words
        self._text = source(types)
        self._hooks = {name: (kind, target) for kind, target, name in _PROGRAM.findall(self._text)}
        self._selected: set[str] = set()
        self._constants = dict.fromkeys(_CONSTANT.findall(self._text), 0)
        self._has = {name: symbol in host.symbols() for name, symbol in HELPERS.items()}
        self.has_ringbuf = self._has["HAS_RINGBUF"]
        self._own = {name: libbpf.create_map(*shape) for name, shape in MAPS.items()}
        if not self.has_ringbuf:
            shape = (libbpf.MAP_TYPE_PERF_EVENT_ARRAY, 4, libbpf.possible_cpus())
            for name in _RINGS.findall(self._text):
                self.leave_out(name)
                self._own[name] = libbpf.create_map(*shape)
        self._attached: list[tuple[str, str, str]] = []
        self._by_hand = BY_HAND in host.symbols()
        self._module: Any = None

    def select(self, names: set[str]) -> None:
        """Load only these programs."""
        super().select(set())
        self._selected = names

    def set_constants(self, values: dict[str, int]) -> None:
        """Set constants by name, before load()."""
        self._constants.update(values)

    def load(self) -> None:
        """Make the maps, compile, and load. Raises KernelError if BCC or the kernel refuses."""
        super().load()
        constants = {**self._constants, **self._types.enumerators}
        flags = ["-DBCC", f"-DWORDS={self._words}", *QUIET]
        flags += [f"-D{name}={int(has)}" for name, has in self._has.items()]
        flags += [f"-DJIFFIES={host.symbols().get('jiffies_64', 0):#x}"]
        flags += [f"-DCONST_{name}={value:#x}" for name, value in constants.items()]
        flags += [f"-DMAP_{name}={self.map_fd(name)}" for name in _MAP.findall(self._text)]
        with _stderr() as said, header_tree() as tree:
            os.environ["BCC_KERNEL_SOURCE"] = str(tree)
            try:
                self._module = self._bcc.BPF(text=self._text.encode(), cflags=flags)
                for name in self._selected:
                    self._module.load_func(name.encode(), self._type(name))
            except Exception as error:
                reason = next((line for line in said() if "error" in line), str(error))
                raise KernelError(f"BCC cannot load the probes: {reason}") from None
            finally:
                del os.environ["BCC_KERNEL_SOURCE"]

    def _type(self, name: str) -> int:
        kind = self._hooks[name][0]
        kprobe = kind in ("fentry", "fexit") or (kind == "raw_tp" and not self._by_hand)
        return int(self._bcc.BPF.KPROBE if kprobe else self._bcc.BPF.RAW_TRACEPOINT)

    def attach(self, name: str) -> int:
        """Attach a loaded program; it stays attached until close()."""
        kind, target = self._hooks[name]
        try:
            if kind == "fentry":
                self._module.attach_kprobe(event=target.encode(), fn_name=name.encode())
            elif kind == "fexit":
                self._module.attach_kretprobe(event=target.encode(), fn_name=name.encode())
            else:
                self._module.attach_raw_tracepoint(tp=target.encode(), fn_name=name.encode())
        except Exception as error:
            raise KernelError(f"cannot attach {name}: {error}") from None
        self._attached.append((kind, target, name))
        return 0

    def run_iterator(self, name: str) -> None:
        """Run a walk to its end (bcc.bpf.h)."""
        for _ in range(100_000):
            self.run_on(name, None)
            _, _, thread, _ = struct.unpack("<4Q", libbpf.lookup(self.map_fd("cursors"), 0, 32))
            if not thread:
                return

    def run_on(self, name: str, cpu: int | None) -> None:
        """Run a program once on a CPU, or as this thread; as a uprobe of our own call where it cannot be by hand."""
        if self._by_hand:
            return super().run_on(name, cpu)
        allowed = os.sched_getaffinity(0)
        try:
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})
            self._call(name)
        except OSError as error:
            raise KernelError(f"cannot run {name} on CPU {cpu}: {error.strerror}") from None
        finally:
            os.sched_setaffinity(0, allowed)
        return None

    def _call(self, name: str) -> None:
        path, symbol = libbpf.place(), "libbpf_major_version"
        thread = threading.get_native_id()
        try:
            self._module.attach_uprobe(name=path, sym=symbol, fn_name=name.encode(), pid=thread)
        except Exception as error:
            raise KernelError(f"cannot run {name}: this kernel has no uprobes ({error})") from None
        libbpf.lib().libbpf_major_version()
        self._module.detach_uprobe(name=path, sym=symbol, pid=thread)

    def program_fd(self, name: str) -> int:
        """File descriptor of a loaded program."""
        return int(self._module.load_func(name.encode(), self._type(name)).fd)

    def map_fd(self, name: str) -> int:
        """File descriptor of a map."""
        return self._own[name] if name in self._own else super().map_fd(name)

    def detach(self) -> None:
        """Detach every attached program; maps and counters stay readable."""
        while self._attached:
            kind, target, name = self._attached.pop()
            if kind == "fentry":
                self._module.detach_kprobe(event=target.encode(), fn_name=name.encode())
            elif kind == "fexit":
                self._module.detach_kretprobe(event=target.encode(), fn_name=name.encode())
            else:
                self._module.detach_raw_tracepoint(tp=target.encode())

    def close(self) -> None:
        """Detach and unload everything."""
        self.detach()
        if self._module:
            self._module.cleanup()
            self._module = None
        while self._own:
            os.close(self._own.popitem()[1])
        super().close()


@contextmanager
def _stderr() -> Iterator[Any]:
    """Catch what libbcc prints; yields a function that gives its lines."""
    saved = os.dup(2)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 2)

        def said() -> list[str]:
            file.seek(0)
            return file.read().splitlines()

        try:
            yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)
