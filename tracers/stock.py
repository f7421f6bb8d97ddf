# SPDX-License-Identifier: GPL-2.0-only
"""Whether this kernel's placement is the one the model knows for its release."""

from __future__ import annotations

import platform

from ..errors import WakescopeError
from ..model.kernels import known, stable_release
from . import host


def stock_reasons() -> list[str]:
    """Why this kernel's placement is not what the model knows; [] if it is."""
    try:
        release, _ = stable_release(platform.release(), host.version())
    except WakescopeError:
        release = platform.release()
    return host.not_stock(release, known(release))
