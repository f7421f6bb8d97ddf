# SPDX-License-Identifier: GPL-2.0-only
"""What an explanation consists of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Source(Enum):
    """Where a statement comes from."""

    MEASURED = "measured"  # read in the kernel at the decision
    DERIVED = "derived"  # follows from what was read by the kernel's own rules
    UNKNOWN = "unknown"  # was not captured


@dataclass(frozen=True)
class Reason:
    """One link of the chain: the kernel function it belongs to, what it found, and where that comes from."""

    function: str
    text: str
    source: Source
