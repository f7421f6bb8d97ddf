# SPDX-License-Identifier: GPL-2.0-only
"""One source, two ways to run it: compiled by numba, or as the plain Python it is.

`@compiled` compiles a function at its first call and keeps the machine code on disk. numba notices a change of the
file a function stands in, but not of the functions it calls, so the cache directory is named after the text of the
whole model. It lies in NUMBA_CACHE_DIR or the user's cache directory, never beside the sources, so that a read-only
installation works; where nothing is writable the code is compiled anew by every process.

`plain(function)` is the same function without the compiler: its own Python, calling the Python of what it calls.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_KEPT_SECONDS = 7 * 86400  # how long compiled code that nobody uses is kept


def _cache_directory() -> Path | None:
    """The first writable place for compiled code, or None."""
    text = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    name = f"model-{hashlib.sha256(text + numba.__version__.encode()).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    places = (
        [Path(chosen)] if chosen else [cache / "wakescope", Path(tempfile.gettempdir()) / f"wakescope-{os.getuid()}"]
    )
    for place in places:
        directory = place / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK) and directory.stat().st_uid == os.getuid():
            os.utime(directory)
            _prune(place)
            return directory
    return None


def _prune(place: Path) -> None:
    """Remove compiled code of other versions of the model from place, once nobody has used it for a week."""
    for directory in place.glob("model-*"):
        with suppress(OSError):  # another process may be at it
            if directory.stat().st_mtime < time.time() - _KEPT_SECONDS:
                shutil.rmtree(directory, ignore_errors=True)


_CACHE = _cache_directory()


def compiled(function: F) -> F:
    """Compile a function of the model with numba (decorator). With NUMBA_DISABLE_JIT=1 it stays plain Python."""
    if _CACHE is None:
        return cast("F", numba.njit(nogil=True)(function))
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_CACHE)  # read when caching is enabled, that is within njit(cache=True)
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(function))
    finally:
        config.CACHE_DIR = before


def plain(function: F) -> F:
    """The uncompiled twin of a compiled function, all the way down to what it calls."""
    return cast("F", _plain(function, {}))


def _plain(function: Any, known: dict[int, Any]) -> Any:
    python = getattr(function, "py_func", function)
    if id(python) in known:
        return known[id(python)]
    space = dict(python.__globals__)
    twin = FunctionType(python.__code__, space, python.__name__, python.__defaults__, python.__closure__)
    known[id(python)] = twin
    for name, value in python.__globals__.items():
        if name in python.__code__.co_names and hasattr(value, "py_func"):
            space[name] = _plain(value, known)
    return twin
