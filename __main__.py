# SPDX-License-Identifier: GPL-2.0-only
"""`python -m wakescope`, and the command itself."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _end(number: int, _: FrameType | None) -> None:
    """Leave as Ctrl-C does, through every clean-up on the way."""
    raise SystemExit(128 + number)


def run() -> None:
    """Run the command line with signals and closed streams seen to, from before the first import on."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - stays open until the end
    try:
        from .cli import main

        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        what = f"{error.filename} cannot be used" if error.filename else "cannot write the output"
        print(f"wakescope: {what}: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(6)


if __name__ == "__main__":
    run()
