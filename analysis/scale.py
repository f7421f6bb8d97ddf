# SPDX-License-Identifier: GPL-2.0-only
"""Make a large trace of a small one: `python -m wakescope.analysis.scale TRACE OUT --events N`.

The trace is repeated end to end until it holds N wakeups, switches and migrations. Times, jiffies and sequence numbers
go on where the repetition before ended; every task is a new one there, with the old pid.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OutputError
from ..meta import write_meta
from ..schema import NEVER64, TABLES, TaskEvent, dtype
from ..trace import RINGS, Trace, write_table

COUNTED = ("wakeups", "switches", "migrations")
TIMES = ("ts", "ts_exit")
STARTS = ("start", "waker_start", "wakee_start")
DECAYS = ("waker_decay_ts", "wakee_decay_ts", "waker_decay_ts_exit")
JIFFIES = ("jiffies", "migrate_retry", "waker_migrate_retry", "wakee_migrate_retry", *DECAYS)


def scale(trace: Trace, out: Path, events: int) -> int:
    """Write the repeated trace; returns its wakeups, switches and migrations. Raises OutputError if out exists."""
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise OutputError(f"cannot create {out}: {error.strerror}") from None
    rows = {table: trace.array(table) for table in TABLES if trace.has(table)}
    once = sum(len(rows[table]) for table in COUNTED if table in rows)
    times = max(1, -(-events // max(1, once)))
    for ring in RINGS.values():
        tables = [table for table in ring.values() if table in rows]
        tried = _tried(trace, [rows[table] for table in tables])
        for table in tables:
            parts = [_repeated(trace, table, rows[table], tried, number) for number in range(times)]
            write_table(out, table, np.concatenate(parts))
    begin, end = trace.span
    rings = [{**r, "tried": r["tried"] * times, "lost": r["lost"] * times} for r in trace.meta.get("rings", [])]
    span = {"start_ts": begin, "stop_ts": begin + times * (end - begin + 1)}
    write_meta(out, {**trace.meta, **span, "rings": rings})
    (out / "topology.json").write_text(trace.topology.to_json())
    return once * times


def _tried(trace: Trace, tables: list[Any]) -> Any:
    """Records each CPU tried to write to a ring, as far as its tables tell, by CPU number."""
    tried = np.zeros(trace.topology.nr_cpus, np.uint32)
    for rows in tables:
        np.maximum.at(tried, rows["cpu"], rows["seq"] + np.uint32(1))
    return tried


def _repeated(trace: Trace, table: str, rows: Any, tried: Any, number: int) -> Any:
    """A repetition of a table's rows, as records that write_table() takes."""
    begin, end = trace.span
    length = end - begin + 1
    ticks = -(-length * int(trace.meta.get("hz") or 250) // 10**9)
    out = np.empty(len(rows), dtype(table, rows["idle"].shape[1] if table == "wakeups" else 1))
    for name in out.dtype.names or ():
        out[name] = [c.encode() for c in rows[name]] if name == "comm" else rows[name]
        if name in TIMES:
            out[name] += np.uint64(number * length)
        elif name in STARTS and number:  # born, as far as that is possible, when the repetition begins
            out[name] = np.maximum(out[name], np.uint64(begin)) + np.uint64(number * length)
        elif name in JIFFIES:
            out[name][(out[name] != 0) & (out[name] != NEVER64)] += np.uint64(number * ticks)
    out["seq"] += np.uint32(number) * tried[out["cpu"]]
    if "wakeup_seq" in (out.dtype.names or ()):
        out["wakeup_seq"] += np.uint32(number) * _tried(trace, [trace.array("wakeups", ["cpu", "seq"])])[out["cpu"]]
    if table == "tasks" and number:
        out["event"][out["event"] == TaskEvent.SNAPSHOT] = TaskEvent.NEW
    return out


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m wakescope.analysis.scale", description="Repeat a trace.")
    parser.add_argument("trace")
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=int, default=10_000_000, help="wakeups, switches and migrations to reach")
    options = parser.parse_args()
    print(f"{scale(Trace.open(options.trace), options.out, options.events):,} events")


if __name__ == "__main__":
    main()
