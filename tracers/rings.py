# SPDX-License-Identifier: GPL-2.0-only
"""BPF ring buffers mapped into numpy: records are spooled as the raw bytes they are, without a look at each.

A ring of the kernel (kernel/bpf/ringbuf.c, v5.8) has a consumer page, a producer page, and its data mapped twice in a
row, so that a record which wraps around is still contiguous. Each record has an 8-byte header whose first word is its
length with a busy bit; ours are all of one size, so the data between consumer and producer is an array.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from . import libbpf

BUSY = np.uint32(1 << 31)
PAGE = mmap.PAGESIZE


class Ring:
    """One mapped ring of fixed-size records; stride is record size plus header, rounded up to 8 bytes."""

    header = 8  # bytes before a record

    def __init__(self, cpu: int, size: int, record_size: int) -> None:
        self.cpu = cpu
        self.size = size
        self.stride = (record_size + 8 + 7) // 8 * 8
        self.fd = libbpf.create_ringbuf(size)
        self._consumer_map = mmap.mmap(self.fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._data_map = mmap.mmap(self.fd, PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
        self._consumer = np.frombuffer(self._consumer_map, np.uint64, 1)
        self._producer = np.frombuffer(self._data_map, np.uint64, 1)
        self._data = np.frombuffer(self._data_map, np.uint8, 2 * size, offset=PAGE)

    @property
    def fill(self) -> float:
        """Share of the ring not yet drained."""
        return float(int(self._producer[0]) - int(self._consumer[0])) / self.size

    def pending(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Bytes of the complete records waiting, as a view into the ring; shape (n * stride,), valid until release."""
        consumer = int(self._consumer[0])
        count = (int(self._producer[0]) - consumer) // self.stride
        start = consumer % self.size
        data = self._data[start : start + count * self.stride]
        if count:
            # A producer publishes its position before it finishes writing: stop at the first record still busy.
            busy = data.view(np.uint32)[:: self.stride // 4] & BUSY
            if busy.any():
                data = data[: int(busy.argmax()) * self.stride]
        return data

    def release(self, size: int) -> None:
        """Give the first size bytes of what pending() returned back to the producer."""
        self._consumer[0] += np.uint64(size)
