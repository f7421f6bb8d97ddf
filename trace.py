# SPDX-License-Identifier: GPL-2.0-only
"""The trace bundle: a directory NAME.wake with meta.json, topology.json and one Parquet file per table.

While recording the bundle holds raw/ spool files, one per ring: the ring's own bytes, an 8-byte ring header before
each fixed-size record, and raw/layout.json that says how to read them. finish() turns the spools into Parquet and
removes them; recover does the same for a recorder that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as pq

from . import schema
from .errors import NotRecordedError, OutputError, TraceError
from .meta import FORMAT, read_meta, write_meta
from .topology import Topology

ROW_GROUP = 1 << 18  # rows: a group of wakeups is then about 80 MB in memory
BLOCK = 1 << 12  # rows: of wakeups about 1.5 MB
CHUNK = 1 << 14  # rows: small enough that the allocator gives the same pages again

# Which ring carries which table; the event ring is told apart by its records' kind.
RINGS: dict[str, dict[int, str]] = {
    "wakeup": {0: "wakeups"},
    "switch": {0: "switches"},
    "consult": {0: "consults"},
    "load": {0: "loads"},
    "event": {1: "migrations", 2: "numa", 3: "tasks", 4: "hotplugs"},
}

Array = np.ndarray[Any, np.dtype[Any]]


class Trace:
    """A finished trace. Tables are read from Parquet on demand and not kept."""

    def __init__(self, path: Path, meta: dict[str, Any], topology: Topology) -> None:
        self.path = path
        self.meta = meta
        self.topology = topology

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Trace:
        """Open a bundle. Raises TraceError if it is missing, unfinished, damaged or of another format."""
        path = Path(path)
        meta = read_meta(path)
        if (path / "raw").exists():
            raise TraceError(f"{path} was not finished: run 'wakescope recover {path}' first")
        for table, rows in meta.get("rows", {}).items():
            if not (path / f"{table}.parquet").exists():
                raise TraceError(f"{path}/{table}.parquet is missing, with {rows:,} rows: the trace is damaged")
        try:
            topology = Topology.load(path / "topology.json")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TraceError(f"{path}/topology.json cannot be read ({error}): the trace is damaged") from None
        return cls(path, meta, topology)

    def has(self, table: str) -> bool:
        """Whether the trace holds this table (it may still have no rows)."""
        return (self.path / f"{table}.parquet").exists()

    def require(self, *tables: str) -> None:
        """Raise NotRecordedError, a TraceError, naming the first of these tables that the trace lacks."""
        for table in tables:
            if not self.has(table):
                tier = self.meta.get("tier", "unknown")
                raise NotRecordedError(f"{self.path} has no {table} table (tier {tier}): record again with it enabled")

    def rows(self, table: str) -> int:
        """Number of rows of a table, 0 if it is absent."""
        return int(self._file(table).metadata.num_rows) if self.has(table) else 0

    def array(self, table: str, columns: list[str] | None = None) -> Array:
        """Rows of a table in time order as a structured array, masks of shape (words,); all columns by default."""
        self.require(table)
        return _to_array(self._read(table, columns))

    def chunks(self, table: str, columns: list[str] | None = None) -> Iterator[Array]:
        """The same array in pieces of at most CHUNK rows."""
        self.require(table)
        file = self._file(table)
        for group in range(file.num_row_groups):
            rows = self._sane(table, columns, partial(file.read_row_group, group, columns=columns))
            for start in range(0, rows.num_rows, CHUNK):
                yield _to_array(rows.slice(start, CHUNK))

    def columns(self, table: str, names: list[str]) -> dict[str, Array]:
        """These columns in time order, each an array of its own: what array gives, without making rows of it."""
        self.require(table)
        return _columns(self._read(table, names))

    def df(self, table: str, columns: list[str] | None = None) -> pd.DataFrame:
        """Rows of a table in time order as a DataFrame; masks and other arrays are left out (see array)."""
        self.require(table)
        if columns is None:
            columns = [c.name for c in schema.TABLES[table] if not c.is_array]
        frame: pd.DataFrame = self._read(table, columns).to_pandas()
        return frame

    @cached_property
    def span(self) -> tuple[int, int]:
        """First and last moment recorded, ns: the recorder's own marks, else the records'."""
        if "start_ts" in self.meta and "stop_ts" in self.meta:
            return int(self.meta["start_ts"]), int(self.meta["stop_ts"])
        ends = [self._bounds(table) for table in schema.TABLES if self.rows(table)]
        return (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else (0, 0)

    def loss(self, table: str) -> pd.DataFrame:
        """Loss windows of a table: cpu, start, end (ns), missing (records), from gaps in each CPU's sequence.

        A window opens at the last record before the gap and closes at the first after it. Records lost after a
        CPU's last one are known from the ring's own counter and close at the end of the span.
        """
        ring, kinds = _ring_of(table)
        parts = [self.array(t, ["ts", "seq", "cpu"]) for t in kinds if self.has(t)]
        rows = np.concatenate(parts) if parts else np.empty(0, [("ts", "u8"), ("seq", "u4"), ("cpu", "u2")])
        return loss_windows(rows, self.span, {r["cpu"]: r["tried"] for r in self._ring_meta(ring)})

    def clean_share(self, table: str = "wakeups") -> float:
        """Fraction of the span in which no CPU was inside a loss window of this table (definitions.md, clean)."""
        start, stop = self.span
        if stop <= start:
            return 1.0
        dirty = _union_length(self.loss(table)[["start", "end"]].to_numpy(np.int64))
        return 1.0 - dirty / (stop - start)

    def _ring_meta(self, ring: str) -> list[dict[str, Any]]:
        return [r for r in self.meta.get("rings", []) if r["ring"] == ring]

    def _file(self, table: str) -> pq.ParquetFile:
        try:
            file = pq.ParquetFile(self.path / f"{table}.parquet")
        except (OSError, pa.ArrowInvalid) as error:
            raise TraceError(f"{self.path}/{table}.parquet cannot be read: {error}") from None
        lacking = {c.name for c in schema.TABLES[table]} - set(file.schema_arrow.names) - schema.ADDED
        if lacking:
            made = f"recorded by wakescope {self.meta.get('wakescope', 'unknown')}, record again"
            raise NotRecordedError(f"{self.path}/{table}.parquet has no column {min(lacking)}: {made}")
        return file

    def _read(self, table: str, columns: list[str] | None) -> pa.Table:
        return self._sane(table, columns, lambda: self._file(table).read(columns=columns))

    def _sane(self, table: str, columns: list[str] | None, read: Callable[[], pa.Table]) -> pa.Table:
        """What read() gives, filled up and its strings cut at NUL.

        Raises TraceError if it cannot, or names CPUs or outcomes there are not.
        """
        try:
            rows = _cut(_filled(table, columns, read()))
        except (OSError, pa.ArrowInvalid) as error:
            raise TraceError(f"{self.path}/{table}.parquet cannot be read: {error}") from None
        limits = dict.fromkeys(("cpu", "prev_cpu", "chosen_cpu", "wakee_cpu", "asked_cpu"), self.topology.nr_cpus)
        limits["outcome"] = len(schema.Outcome)
        for name in set(limits) & set(rows.column_names) if rows.num_rows else ():
            ends = compute.min_max(rows.column(name)).as_py()
            wrong = ends["max"] if ends["max"] >= limits[name] else ends["min"]
            if not -1 <= wrong < limits[name]:  # -1: none
                what = f"outcome {wrong}" if name == "outcome" else f"CPU {wrong} as {name}"
                raise TraceError(f"{self.path}/{table}.parquet has {what}, which there is not: the trace is damaged")
        return rows

    def _bounds(self, table: str) -> tuple[int, int]:
        ts = self.array(table, ["ts"])["ts"]
        return int(ts[0]), int(ts[-1])


def layout_to_json(dtype: np.dtype[np.void]) -> dict[str, Any]:
    """A structured dtype as plain data: names, formats, offsets, itemsize."""
    fields: dict[str, Any] = dict(dtype.fields or {})
    formats = [[f[0].base.str, list(f[0].shape)] for f in fields.values()]
    return {
        "names": list(fields),
        "formats": formats,
        "offsets": [f[1] for f in fields.values()],
        "itemsize": dtype.itemsize,
    }


def layout_from_json(data: dict[str, Any]) -> np.dtype[np.void]:
    """The dtype layout_to_json described."""
    formats = [(base, tuple(shape)) for base, shape in data["formats"]]
    names, offsets, itemsize = data["names"], data["offsets"], data["itemsize"]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})


def finish(path: Path, progress: Callable[[str, int], None] | None = None) -> dict[str, int]:
    """Turn raw/ into Parquet and remove it; returns rows per table.

    A spool cut short by a full disk or a kill loses at most its last, partial record. progress(table, rows) is
    called as rows are written. Raises TraceError if raw/ is unreadable, OutputError if the disk is full; raw/ is
    removed only after every table is written.
    """
    raw = path / "raw"
    meta = read_meta(path)
    if "rings" not in meta:
        meta["ended_early"] = "the recorder was killed: what its rings still held, and what they lost, is unknown"
    rows: dict[str, int] = {}
    try:
        with claim(raw) as layouts:
            for ring, tables in layouts.items():
                spool = _read_spool(raw / f"{ring}.spool", tables)
                for table, part in spool.items():
                    rows[table] = write_table(path, table, part, meta.get("provenance", {}).get(table, {}), progress)
            write_meta(path, {**meta, "state": "complete", "rows": rows})
            done = path / "raw.done"
            raw.rename(done)  # in one step: a raw/ is always whole
    except OSError as error:
        raise OutputError(
            f"cannot write {path} ({error.strerror or error}): what was recorded is kept in {raw}; "
            f"make room and run 'wakescope recover {path}'"
        ) from None
    shutil.rmtree(done, ignore_errors=True)
    return rows


@contextmanager
def claim(raw: Path) -> Iterator[dict[str, Any]]:
    """The layouts of raw/, held for this process alone: a recorder holds them while it writes, finish while it reads.

    Raises TraceError if another process holds them, or they cannot be read.
    """
    try:
        with (raw / "layout.json").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            layouts = json.load(file)
            if not isinstance(layouts, dict) or not layouts:
                raise ValueError("no layouts")
            missing = [ring for ring in layouts if not (raw / f"{ring}.spool").exists()]
            if missing:
                raise ValueError(f"{missing[0]}.spool is missing")
            yield layouts
    except BlockingIOError:
        raise TraceError(f"{raw.parent} is still being recorded or recovered by another process: wait for it") from None
    except (FileNotFoundError, ValueError) as error:
        raise TraceError(f"{raw} is damaged ({error}): nothing can be recovered from it") from None


def write_table(
    path: Path,
    table: str,
    records: Array,
    provenance: dict[str, str] | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> int:
    """Write records (structured, at least the table's columns) as TABLE.parquet in time order; returns rows."""
    order = np.argsort(records["ts"], kind="stable")
    words = records["idle"].shape[1] if "idle" in (records.dtype.names or ()) else 1
    target = path / f"{table}.parquet"
    arrow = _arrow_schema(table, words, provenance or {})
    with pq.ParquetWriter(f"{target}.new", arrow, compression="zstd") as writer:
        for start in range(0, len(order), ROW_GROUP):
            part = records[order[start : start + ROW_GROUP]]
            writer.write_table(pa.Table.from_arrays([_to_arrow(part[f.name], f) for f in arrow], schema=arrow))
            if progress:
                progress(table, len(part))
    os.replace(f"{target}.new", target)
    return len(order)


def loss_windows(rows: Array, span: tuple[int, int], tried: dict[int, int]) -> pd.DataFrame:
    """Loss windows from (ts, seq, cpu) rows and the number of records each CPU tried; see Trace.loss."""
    windows: list[tuple[int, int, int, int]] = []
    for cpu in sorted({*np.unique(rows["cpu"]).tolist(), *tried}):
        mine = rows[rows["cpu"] == cpu]
        mine = mine[np.argsort(mine["seq"], kind="stable")]
        seq = np.concatenate(
            ([-1], mine["seq"].astype(np.int64), [max(tried.get(cpu, 0), mine["seq"].max(initial=0) + 1)])
        )
        if not len(mine):
            seq[-1] = tried.get(cpu, 0)
        ts = np.concatenate(([span[0]], mine["ts"].astype(np.int64), [span[1]]))
        missing = np.diff(seq) - 1
        for i in np.flatnonzero(missing > 0):
            windows.append((cpu, int(ts[i]), int(ts[i + 1]), int(missing[i])))
    return pd.DataFrame(windows, columns=["cpu", "start", "end", "missing"])


def _ring_of(table: str) -> tuple[str, list[str]]:
    for ring, tables in RINGS.items():
        if table in tables.values():
            return ring, list(tables.values())
    raise TraceError(f"there is no table {table}; tables are {', '.join(schema.TABLES)}")


def _union_length(windows: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    total, reached = 0, -1
    for start, end in sorted(map(tuple, windows.tolist())):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _read_spool(file: Path, tables: dict[str, Any]) -> dict[str, Array]:
    """Rows of one spool, by table. Every table's layout has the same itemsize: the ring's."""
    layouts = {name: layout_from_json(layout) for name, layout in tables.items()}
    first = next(iter(layouts.values()))
    size = file.stat().st_size if file.exists() else 0
    data = (
        np.memmap(file, np.uint8, "r", shape=(size - size % first.itemsize,))
        if size >= first.itemsize
        else np.empty(0, np.uint8)
    )
    records = data.view(first)
    kinds = {name: kind for ring in RINGS.values() for kind, name in ring.items()}
    return {
        name: records.view(layout)[records["kind"] == kinds[name]] if len(layouts) > 1 else records.view(layout)
        for name, layout in layouts.items()
    }


def _filled(table: str, columns: list[str] | None, rows: pa.Table) -> pa.Table:
    """Rows with 0 in the wanted columns of schema.ADDED that the file is too old to have."""
    for column in schema.TABLES[table]:
        wanted = column.name in schema.ADDED and (columns is None or column.name in columns)
        if wanted and column.name not in rows.column_names:
            rows = rows.append_column(column.name, pa.array(np.zeros(rows.num_rows, column.dtype)))
    return rows


def _cut(rows: pa.Table) -> pa.Table:
    """Rows with strings that end at their first NUL: older traces hold what was in the task's comm behind it."""
    for i, column in enumerate(rows.schema):
        if pa.types.is_string(column.type) and compute.any(compute.match_substring(rows.column(i), "\0")).as_py():
            rows = rows.set_column(i, column, compute.replace_substring_regex(rows.column(i), r"(?s)\x00.*", ""))
    return rows


def _arrow_schema(table: str, words: int, provenance: dict[str, str]) -> pa.Schema:
    fields = []
    for column in schema.TABLES[table]:
        if column.dtype == schema.MASK:
            kind: pa.DataType = pa.list_(pa.uint64(), words)
        elif column.dtype.startswith("S"):
            kind = pa.string()
        else:
            base, shape = np.dtype(column.dtype).base, np.dtype(column.dtype).shape
            kind = pa.list_(pa.from_numpy_dtype(base), *shape) if shape else pa.from_numpy_dtype(base)
        metadata = {"unit": column.unit, "doc": column.doc, "provenance": provenance.get(column.name, "measured")}
        fields.append(pa.field(column.name, kind, nullable=False, metadata=metadata))
    return pa.schema(fields, metadata={"wakescope_table": table, "wakescope_format": str(FORMAT)})


def _to_arrow(values: Array, arrow_field: pa.Field) -> pa.Array:
    if pa.types.is_fixed_size_list(arrow_field.type):
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, arrow_field.type.list_size).cast(arrow_field.type)
    if pa.types.is_string(arrow_field.type):  # a comm may hold any bytes but NUL
        return pa.array([bytes(v).split(b"\0")[0].decode("utf-8", "replace") for v in values], arrow_field.type)
    return pa.array(np.ascontiguousarray(values), arrow_field.type)


def _columns(table: pa.Table) -> dict[str, Array]:
    """Each column as an array of its own, masks of shape (rows, words), strings as objects."""
    columns: dict[str, Array] = {}
    for f in table.schema:
        column = table.column(f.name).combine_chunks()
        if pa.types.is_fixed_size_list(f.type):
            columns[f.name] = column.flatten().to_numpy().reshape(-1, f.type.list_size)
        else:
            columns[f.name] = column.to_numpy(zero_copy_only=False)
    return columns


def _to_array(table: pa.Table) -> Array:
    columns = _columns(table)
    dtype = np.dtype([(name, values.dtype, values.shape[1:]) for name, values in columns.items()])
    out = np.empty(table.num_rows, dtype)
    for start in range(0, len(out), BLOCK):  # rows that stay in cache while every column is written into them
        for name, values in columns.items():
            out[name][start : start + BLOCK] = values[start : start + BLOCK]
    return out
