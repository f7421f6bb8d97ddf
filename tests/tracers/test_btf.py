# SPDX-License-Identifier: GPL-2.0-only
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wakescope import schema
from wakescope.errors import KernelError
from wakescope.tracers import btf
from wakescope.tracers.probes import RECORDS, object_path

OBJECTS = [(True, 64, 1), (False, 64, 1), (True, 512, 8), (False, 512, 8)]


@pytest.mark.parametrize(("typed", "cpus", "words"), OBJECTS)
@pytest.mark.parametrize("table", sorted(RECORDS))
def test_records_are_what_the_schema_says(typed, cpus, words, table):
    """The C structs and schema.py name the same columns with the same types."""
    layout = btf.Btf.of_object(object_path(typed, cpus)).dtype(RECORDS[table])
    expected = schema.dtype(table, words)
    assert layout.names == expected.names
    assert [layout[n] for n in layout.names] == [expected[n] for n in expected.names]


def test_kernel_types_are_found():
    if not btf.VMLINUX.exists():
        pytest.skip("this kernel has no BTF")
    kernel = btf.Btf.kernel()
    assert kernel.member_offset("task_struct", "wakee_flips") > 0
    assert kernel.member_offset("rq", "curr") is not None  # inside an anonymous union from 6.12.y on
    assert kernel.member_offset("task_struct", "no_such_member") is None
    assert kernel.member_offset("no_such_struct", "x") is None
    assert kernel.tracepoint_parameters("sched_waking") == 1
    assert kernel.tracepoint_parameters("no_such_event") is None
    assert "SHARE_CPUCAPACITY" in " ".join(kernel.enum_values("__SD_"))
    assert kernel.enum_values("NO_SUCH_PREFIX_") == {}


def test_offsets_agree_with_bpftool_layout(tmp_path):
    """An object compiled here: offsets, sizes and arrays as the compiler laid them out."""
    layout = btf.Btf.of_object(object_path(True, 64)).dtype("task")
    assert layout.itemsize == 64
    assert layout["comm"] == np.dtype("S16")
    assert layout.fields["ts"][1] == 0
    assert layout.fields["start"][1] == 16


@pytest.mark.parametrize("data", [b"", b"\x9f", b"\0" * 24, b"\x7fELF" + b"\0" * 60])
def test_not_btf_is_one_line(data):
    with pytest.raises(KernelError, match="holds no BTF"):
        btf.Btf(data, "test")


@given(st.binary(max_size=64))
def test_any_bytes_are_refused_by_name(data):
    if data[:2] == struct.pack("<H", 0xEB9F) and len(data) >= 24:
        return
    with pytest.raises(KernelError):
        btf.Btf(data, "test")


def test_an_object_without_btf(tmp_path):
    for content in (b"", b"not an ELF file"):
        path = tmp_path / "x.o"
        path.write_bytes(content)
        with pytest.raises(KernelError):
            btf.Btf.of_object(path)
    with pytest.raises(KernelError):
        btf.Btf.of_object(Path("/nonexistent.o"))
