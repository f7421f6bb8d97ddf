# SPDX-License-Identifier: GPL-2.0-only
"""How measurements are put into docs/benchmarks.md: one section each, with machine and command."""

from __future__ import annotations

import platform
import re
import statistics
from collections.abc import Iterable
from pathlib import Path


def middle(values: list[float], form: str) -> str:
    """Median, range and number of rounds as text, each number in the format form."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}}, {len(values)} rounds)"


def publish(document: Path, section: str, rows: Iterable[tuple[str, str]]) -> None:
    """Put rows (what, measured) in place of the machine and table under the heading; the prose stays.

    Raises SystemExit if the document has no such section: nothing is measured then.
    """
    place = re.compile(rf"(## {re.escape(section)}\n\n)Machine: [^|]*(\|.*\n)+")
    if not place.search(document.read_text()):
        raise SystemExit(f"{document} has no section {section!r} that begins with the machine and a table")
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    lines = [f"Machine: {cpu[1] if cpu else 'unknown CPU'}, kernel {platform.release()}. Command: `make bench`.", ""]
    lines += ["| what | measured |", "|---|---|", *(f"| {what} | {measured} |" for what, measured in rows)]
    print("\n".join(lines))
    text = "\n".join(lines) + "\n"
    document.write_text(place.sub(lambda found: found[1] + text, document.read_text()))
