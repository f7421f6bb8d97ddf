# SPDX-License-Identifier: GPL-2.0-only
"""`python -m wakescope.testbox` is `wakescope box`."""

from __future__ import annotations

import sys

from ..errors import WakescopeError
from .commands import app

if __name__ == "__main__":
    try:
        app()
    except WakescopeError as error:
        print(f"wakescope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
