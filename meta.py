# SPDX-License-Identifier: GPL-2.0-only
"""meta.json of a trace bundle: what was recorded, how and when. Checked when read, so that the rest can rely on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import TraceError

FORMAT = 1
SUFFIX = ".wake"

# What the rest of wakescope reads, by type: [of items], {"*": of values}, {name: of that member}.
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("kernel", "kernel_version", "tier", "loader", "loader_why", "state", "wakescope"), str),
    **dict.fromkeys(("hz", "start_ts", "stop_ts", "attached_ts", "detach_ts", "recorder_pid"), int),
    **{name: [str] for name in ("not_stock", "command", "sched_features")},
    "rings": [{"ring": str, "cpu": int, "tried": int, "lost": int}],
    "rows": {"*": int},
    "refused": {"*": str},
    "vmstat": {"*": {"*": int}},
    "provenance": {"*": {"*": str}},
    "btf": {"*": bool},
    "ended_early": str,
    "exit_status": int,
}
_NULL = ("hz", "kernel_version", "command", "exit_status", "sched_features", "ended_early")  # may be


def read_meta(path: Path) -> dict[str, Any]:
    """meta.json of a bundle. Raises TraceError if there is none, it is of another format, or damaged."""
    try:
        meta = json.loads((path / "meta.json").read_text())
    except FileNotFoundError:
        what = "does not exist" if not path.exists() else "is not a trace (no meta.json)"
        raise TraceError(f"{path} {what}: give the path of a {SUFFIX} directory") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}/meta.json cannot be read: {error}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        found = meta.get("format") if isinstance(meta, dict) else None
        raise TraceError(f"{path} has trace format {found}; this wakescope reads {FORMAT}")
    for name in meta.keys() & _KINDS.keys():
        if not (_fits(meta[name], _KINDS[name]) or (meta[name] is None and name in _NULL)):
            raise TraceError(f"{path}/meta.json has {meta[name]!r:.40} as {name}: the trace is damaged")
    if (meta.get("hz") or 1) <= 0 or meta.get("start_ts", 0) > meta.get("stop_ts", 1 << 63):
        raise TraceError(f"{path}/meta.json has no sane hz, or ends before it starts: the trace is damaged")
    return meta


def write_meta(path: Path, meta: dict[str, Any]) -> None:
    """Replace meta.json in one step, so a reader never sees half of it."""
    write_json(path / "meta.json", meta)


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file in one step."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, list):
        return isinstance(value, list) and all(_fits(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return False
        members = dict.fromkeys(value, kind["*"]) if "*" in kind else kind
        return all(name in value and _fits(value[name], members[name]) for name in members)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
