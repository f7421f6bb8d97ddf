# SPDX-License-Identifier: GPL-2.0-only
"""Perf buffers behind the interface of rings.Ring, for kernels before the BPF ring buffer (5.8).

A perf buffer (perf_event_open(2), PERF_COUNT_SW_BPF_OUTPUT) belongs to one CPU. After a control page it holds records
with an 8-byte header of type and length; a record may wrap around its end. Ours are all of one length, but where some
found no room the kernel puts in a record that counts them: it is skipped, since the probes count losses themselves.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from typing import Any

import numpy as np

from .libbpf import fail

PAGE = mmap.PAGESIZE
SAMPLE = 9  # PERF_RECORD_SAMPLE
SYSCALL = {"x86_64": 298, "aarch64": 241}  # perf_event_open

# struct perf_event_attr up to bp_len: a software event of BPF's output, each sample its raw bytes, and a reader that is
# woken only when a whole buffer was written: waking takes locks that the probes may run under.
ATTR = struct.pack("<IIQQQQQIIQQ", 1, 72, 10, 1, 1 << 10, 0, 1 << 14, 0xFFFFFFFF, 0, 0, 0)


class PerfRing:
    """One mapped perf buffer of fixed-size records; stride is a record with its header, length and padding."""

    header = 12  # bytes before a record: the header, and the record's own length

    def __init__(self, cpu: int, size: int, record_size: int) -> None:
        """Raises KernelError if the kernel refuses."""
        self.cpu = cpu
        self.size = size
        self.stride = 8 + (4 + record_size + 7) // 8 * 8
        self.fd = _open(cpu)
        self._map = mmap.mmap(self.fd, PAGE + size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._head, self._tail = np.frombuffer(self._map, np.uint64, 2, offset=1024).reshape(2, 1)
        self._data = np.frombuffer(self._map, np.uint8, size, offset=PAGE)
        self._seen = 0

    @property
    def fill(self) -> float:
        """Share of the buffer not yet drained."""
        return float(int(self._head[0]) - int(self._tail[0])) / self.size

    def pending(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Bytes of the complete records waiting; shape (n * stride,), valid until release."""
        self._seen, tail = int(self._head[0]), int(self._tail[0])
        start, length = tail % self.size, self._seen - tail
        data = self._data[start : start + length]
        if start + length > self.size:
            data = np.concatenate([data, self._data[: start + length - self.size]])
        parts = []
        while len(data):
            rows = len(data) // self.stride
            others = np.flatnonzero(data[: rows * self.stride].view(np.uint32)[:: self.stride // 4] != SAMPLE)
            end = (int(others[0]) if len(others) else rows) * self.stride
            parts.append(data[:end])
            data = data[end:]
            if len(data):  # one of another kind
                data = data[int(data[6:8].view(np.uint16)[0]) :]
        return parts[0] if len(parts) == 1 else np.concatenate([data, *parts])

    def release(self, size: int) -> None:
        """Give what pending() returned back to the kernel; size must be all of it."""
        self._tail[0] = self._seen


def _open(cpu: int) -> int:
    attr = ctypes.create_string_buffer(ATTR, len(ATTR))
    number = SYSCALL.get(platform.machine(), -1)
    fd = ctypes.CDLL(None, use_errno=True).syscall(number, attr, -1, cpu, -1, 8)  # PERF_FLAG_FD_CLOEXEC
    if fd < 0:
        raise fail(f"create a perf buffer for CPU {cpu}", ctypes.get_errno())
    return int(fd)
