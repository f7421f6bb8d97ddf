# SPDX-License-Identifier: GPL-2.0-only
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wakescope import schema, trace
from wakescope.errors import OutputError, TraceError
from wakescope.meta import FORMAT, write_meta
from wakescope.tests.maketrace import make_trace
from wakescope.topology import Cpu, Topology
from wakescope.trace import RINGS, Trace, finish, layout_from_json, layout_to_json, loss_windows

BOX = Topology([Cpu(0, 0, 0, 0, 0), Cpu(1, 1, 0, 0, 0)], [])
STRIDE = 8 + 8 * ((max(schema.dtype(t).itemsize for t in schema.TABLES) + 7) // 8)


def layout(table):
    packed = schema.dtype(table)
    return np.dtype(
        {
            "names": list(packed.names),
            "formats": [packed.fields[n][0] for n in packed.names],
            "offsets": [packed.fields[n][1] + 8 for n in packed.names],
            "itemsize": STRIDE,
        }
    )


def spooled(path, records):
    """A bundle as a killed recorder leaves it. records: {ring: {table: n}}."""
    (path / "raw").mkdir(parents=True)
    (path / "topology.json").write_text(BOX.to_json())
    write_meta(path, {"format": FORMAT, "state": "recording"})
    layouts = {ring: {t: layout_to_json(layout(t)) for t in tables.values()} for ring, tables in RINGS.items()}
    (path / "raw/layout.json").write_text(json.dumps(layouts))
    for ring, tables in {**{ring: {} for ring in RINGS}, **records}.items():
        with (path / f"raw/{ring}.spool").open("wb") as spool:
            for table, count in tables.items():
                rows = np.zeros(count, layout(table))
                rows["ts"] = np.arange(count)[::-1] + 100
                rows["seq"] = np.arange(count)[::-1]
                rows["kind"] = next(kind for kind, name in RINGS[ring].items() if name == table)
                rows.tofile(spool)
    return path


def test_finish_sorts_and_tells_the_event_ring_apart(tmp_path):
    path = spooled(tmp_path / "a.wake", {"wakeup": {"wakeups": 5}, "event": {"tasks": 3, "numa": 2}})
    rows = finish(path)
    assert {t: n for t, n in rows.items() if n} == {"wakeups": 5, "tasks": 3, "numa": 2}
    found = Trace.open(path)
    assert found.array("wakeups")["ts"].tolist() == [100, 101, 102, 103, 104]
    assert found.array("tasks")["kind"].tolist() == [3, 3, 3]
    assert not (path / "raw").exists()


@given(st.integers(0, STRIDE - 1), st.integers(0, 4))
def test_a_spool_cut_anywhere_loses_only_its_last_record(tmp_path_factory, cut, whole):
    path = spooled(tmp_path_factory.mktemp("x") / "a.wake", {"switch": {"switches": whole + 1}})
    file = path / "raw/switch.spool"
    with file.open("rb+") as spool:
        spool.truncate(whole * STRIDE + cut)
    assert finish(path)["switches"] == whole
    shutil.rmtree(path)


def test_a_failed_conversion_keeps_the_spools(tmp_path, monkeypatch):
    path = spooled(tmp_path / "a.wake", {"wakeup": {"wakeups": 5}})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace.pq, "ParquetWriter", full)
    with pytest.raises(OutputError, match="recover"):
        finish(path)
    monkeypatch.undo()
    assert finish(path)["wakeups"] == 5


@pytest.mark.parametrize(
    "damage", [lambda raw: (raw / "layout.json").write_text("{}"), lambda raw: (raw / "switch.spool").unlink()]
)
def test_damaged_spools_are_refused_and_kept(tmp_path, damage):
    path = spooled(tmp_path / "a.wake", {ring: {} for ring in RINGS})
    damage(path / "raw")
    with pytest.raises(TraceError, match="damaged"):
        finish(path)
    assert (path / "raw").exists()


@pytest.mark.parametrize("column", ["chosen_cpu", "cpu", "outcome"])
def test_cpus_and_outcomes_that_there_are_not_are_refused(tmp_path, column):
    path = spooled(tmp_path / "a.wake", {"wakeup": {"wakeups": 5}})
    rows = np.memmap(path / "raw/wakeup.spool", layout("wakeups"), "r+")
    rows[column][2] = 77
    rows.flush()
    finish(path)
    with pytest.raises(TraceError, match=column):
        Trace.open(path).array("wakeups")
    with pytest.raises(TraceError, match=column):
        list(Trace.open(path).chunks("wakeups"))


@pytest.mark.parametrize("cpu", [77, -3])
def test_figures_of_cpus_that_there_are_not_are_refused(tmp_path, cpu):
    path = spooled(tmp_path / "a.wake", {"load": {"loads": 5}})
    rows = np.memmap(path / "raw/load.spool", layout("loads"), "r+")
    rows["asked_cpu"][2] = cpu
    rows.flush()
    finish(path)
    with pytest.raises(TraceError, match=f"CPU {cpu} as asked_cpu"):
        Trace.open(path).array("loads")


def test_columns_carry_unit_meaning_and_provenance(tmp_path):
    path = spooled(tmp_path / "a.wake", {"wakeup": {"wakeups": 1}})
    meta = trace.read_meta(path)
    write_meta(path, {**meta, "provenance": {"wakeups": {"wake_flags": "unknown"}}})
    finish(path)
    fields = pq.read_schema(path / "wakeups.parquet")
    assert fields.field("ts").metadata[b"unit"] == b"ns"
    assert fields.field("wake_flags").metadata[b"provenance"] == b"unknown"
    assert fields.field("waker_flips").metadata[b"provenance"] == b"measured"
    assert all(fields.field(c.name).metadata[b"doc"] for c in schema.WAKEUPS)


def test_layouts_survive_json():
    for table in schema.TABLES:
        assert layout_from_json(json.loads(json.dumps(layout_to_json(layout(table))))) == layout(table)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "meta.json").unlink(), "is not a trace"),
        (lambda p: (p / "meta.json").write_text("{"), "cannot be read"),
        (lambda p: (p / "meta.json").write_text("[]"), "format None"),
        (lambda p: (p / "meta.json").write_text('{"format": 99}'), "format 99"),
        (lambda p: (p / "topology.json").write_text("{}"), "damaged"),
        (lambda p: (p / "topology.json").unlink(), "damaged"),
        (lambda p: (p / "wakeups.parquet").write_bytes(b"PAR1"), "cannot be read"),
        (lambda p: (p / "wakeups.parquet").unlink(), "wakeups.parquet is missing, with 5 rows: the trace is damaged"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path, damage, message):
    path = spooled(tmp_path / "a.wake", {"wakeup": {"wakeups": 5}})
    finish(path)
    damage(path)
    with pytest.raises(TraceError, match=message) as raised:
        Trace.open(path).array("wakeups")
    assert "\n" not in str(raised.value)


def test_an_older_trace_is_refused_by_the_column_it_lacks(tmp_path):
    path = spooled(tmp_path / "a.wake", {"wakeup": {"wakeups": 5}})
    finish(path)
    table = pq.read_table(path / "wakeups.parquet").drop_columns(["llc_size"])
    pq.write_table(table, path / "wakeups.parquet")
    with pytest.raises(TraceError, match="no column llc_size"):
        Trace.open(path).array("wakeups")


def test_a_column_added_later_reads_as_nothing_in_an_older_trace(tmp_path):
    path = make_trace(tmp_path / "a.wake", {"numa": [{"ts": 1, "pid": 7, "task_imp": 5}]}).path
    assert Trace.open(path).df("numa")["task_imp"].tolist() == [5]
    table = pq.read_table(path / "numa.parquet").drop_columns(["task_imp"])
    pq.write_table(table, path / "numa.parquet")
    old = Trace.open(path)
    assert old.columns("numa", ["task_imp", "pid"]) == {"task_imp": [0], "pid": [7]}
    assert [rows["task_imp"].tolist() for rows in old.chunks("numa")] == [[0]]
    assert "task_imp" not in old.df("numa", ["pid"])


@pytest.mark.parametrize("names", [["a\0old", "\0", "b\0\n\0", "whole"], ["none", "", "of", "these"]])
def test_names_end_at_their_first_nul_in_an_older_trace(tmp_path, names):
    path = make_trace(tmp_path / "a.wake", {"tasks": [{"ts": n, "pid": n, "comm": b"x"} for n in range(4)]}).path
    table = pq.read_table(path / "tasks.parquet")
    at = table.schema.get_field_index("comm")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(names)), path / "tasks.parquet")
    old, cut = Trace.open(path), [name.split("\0")[0] for name in names]
    assert old.df("tasks")["comm"].tolist() == cut
    assert old.array("tasks")["comm"].tolist() == cut
    assert old.columns("tasks", ["comm"])["comm"].tolist() == cut
    assert [rows["comm"].tolist() for rows in old.chunks("tasks")] == [cut]
    assert old.df("tasks", ["pid"])["pid"].tolist() == [0, 1, 2, 3]


def rows_of(*rows):
    return np.array(list(rows), [("ts", "<u8"), ("seq", "<u4"), ("cpu", "<u2")])


def test_loss_windows_are_the_gaps_in_each_cpus_sequence():
    rows = rows_of((10, 0, 0), (20, 1, 0), (50, 4, 0), (15, 2, 1))
    found = loss_windows(rows, (0, 100), {0: 7, 1: 3})
    assert found.to_dict("records") == [
        {"cpu": 0, "start": 20, "end": 50, "missing": 2},
        {"cpu": 0, "start": 50, "end": 100, "missing": 2},
        {"cpu": 1, "start": 0, "end": 15, "missing": 2},
    ]


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_every_missing_record_is_in_one_window(kept):
    rows = rows_of(*((10 * i, i, 0) for i, keep in enumerate(kept) if keep))
    found = loss_windows(rows, (0, 10 * len(kept)), {0: len(kept)})
    assert found["missing"].sum() == kept.count(False)
    assert (found["start"] <= found["end"]).all()
