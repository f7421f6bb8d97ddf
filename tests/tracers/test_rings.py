# SPDX-License-Identifier: GPL-2.0-only
"""Draining a ring, on a ring made of memory: the mapping is the kernel's, the arithmetic is ours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wakescope.tracers.rings import PAGE, Ring


class MemoryRing(Ring):
    """A ring whose pages are ordinary memory, written to as the kernel would."""

    def __init__(self, size, record_size):
        self.cpu, self.size = 0, size
        self.stride = (record_size + 8 + 7) // 8 * 8
        self._consumer = np.zeros(1, np.uint64)
        self._producer = np.zeros(1, np.uint64)
        self._data = np.zeros(2 * size, np.uint8)

    def produce(self, value, busy=False):
        at = int(self._producer[0])
        if at + self.stride - int(self._consumer[0]) > self.size:
            return False
        record = np.zeros(self.stride, np.uint8)
        record.view(np.uint32)[0] = (self.stride - 8) | (1 << 31 if busy else 0)
        record[8:] = value
        for i, byte in enumerate(record):
            for copy in ((at + i) % self.size, (at + i) % self.size + self.size):
                self._data[copy] = byte
        self._producer[0] += np.uint64(self.stride)
        return True

    def commit(self, start):
        for copy in (start % self.size, start % self.size + self.size):
            self._data[copy + 3] &= 0x7F


def drained(ring):
    data = ring.pending().copy()
    ring.release(len(data))
    return data.reshape(-1, ring.stride)[:, 8].tolist()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_everything_comes_out_once_and_in_order(bursts):
    ring, sent, got, value = MemoryRing(PAGE, 316), [], [], 0
    for burst in bursts:
        for _ in range(burst):
            value += 1
            if ring.produce(value % 251):
                sent.append(value % 251)
        got += drained(ring)
    assert got == sent
    assert ring.fill == 0


def test_stops_at_the_first_record_still_being_written():
    ring = MemoryRing(PAGE, 24)
    ring.produce(1)
    ring.produce(2, busy=True)
    ring.produce(3)
    assert drained(ring) == [1]
    assert drained(ring) == []
    ring.commit(ring.stride)
    assert drained(ring) == [2, 3]


@pytest.mark.parametrize("record_size", [24, 32, 316, 320])
def test_stride_is_what_the_kernel_reserves(record_size):
    assert MemoryRing(PAGE, record_size).stride == 8 * ((record_size + 7) // 8) + 8
