# SPDX-License-Identifier: GPL-2.0-only
"""Draining a perf buffer: made of memory, which wraps and says what it lost as the kernel does, and a real one."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wakescope.tracers import libbpf
from wakescope.tracers.perf_rings import ATTR, PAGE, SAMPLE, PerfRing

LOST = 2  # PERF_RECORD_LOST: id and count follow the header


class MemoryRing(PerfRing):
    """A perf buffer of ordinary memory, written to as the kernel would."""

    def __init__(self, size, record_size):
        self.cpu, self.size, self._seen = 0, size, 0
        self.record_size = record_size
        self.stride = 8 + (4 + record_size + 7) // 8 * 8
        self._head, self._tail = np.zeros((2, 1), np.uint64)
        self._data = np.zeros(size, np.uint8)
        self.missed = 0

    def produce(self, value):
        """Write a record, first the count of those that found no room since the last."""
        record = struct.pack("<IHHI", SAMPLE, 0, self.stride, self.stride - 12) + bytes([value]) * self.record_size
        record += b"\xee" * (self.stride - len(record))
        if self.missed:
            record = struct.pack("<IHHQQ", LOST, 0, 24, 1, self.missed) + record
        at = int(self._head[0])
        if at + len(record) - int(self._tail[0]) > self.size:
            self.missed += 1
            return False
        self.missed = 0
        self._data[(at + np.arange(len(record))) % self.size] = np.frombuffer(record, np.uint8)
        self._head[0] += np.uint64(len(record))
        return True


def drained(ring):
    data = ring.pending().copy()
    ring.release(len(data))
    rows = data.reshape(-1, ring.stride)[:, ring.header : ring.header + ring.record_size]
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


@pytest.mark.parametrize("record_size", [32, 64, 320, 328])
@given(bursts=st.lists(st.integers(1, 90), min_size=1, max_size=40))
def test_everything_that_found_room_comes_out_once_and_in_order(record_size, bursts):
    ring, sent, got, value = MemoryRing(PAGE, record_size), [], [], 0
    for burst in bursts:
        for _ in range(burst):
            value += 1
            if ring.produce(value % 251):
                sent.append(value % 251)
        got += drained(ring)
    assert got == sent
    assert ring.fill == 0


def test_a_count_of_lost_records_amid_others_is_skipped():
    ring = MemoryRing(PAGE, 1000)
    assert [ring.produce(value) for value in range(5)] == [True, True, True, True, False]
    first = ring.stride
    ring._tail[0] += np.uint64(2 * first)  # a reader that left two behind
    assert ring.produce(5)
    assert drained(ring) == [2, 3, 5]
    assert drained(ring) == []


def test_attributes_are_those_of_the_first_published_size():
    assert len(ATTR) == struct.unpack_from("<II", ATTR)[1] == 72  # PERF_ATTR_SIZE_VER1


@pytest.mark.live
@pytest.mark.usefixtures("live")
def test_the_kernel_makes_one():
    ring = PerfRing(0, 1 << 16, 64)
    assert ring.fill == 0
    assert len(ring.pending()) == 0
    with pytest.raises(libbpf.KernelError, match="create a perf buffer for CPU 4095"):
        PerfRing(4095, 1 << 16, 64)
