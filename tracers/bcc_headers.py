# SPDX-License-Identifier: GPL-2.0-only
"""Kernel headers for BCC: any installed ones do, since the probes take no kernel type from them.

BCC looks in one folder. Debian splits headers into one of a flavour and one common to all, tied by the former's
Makefile; the two are merged in a temporary tree of links.
"""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import KernelError
from .host import read
from .offsets import ROOT


def installed(root: Path = ROOT) -> list[list[Path]]:
    """Header trees, best first: the running kernel's, then the newest; each one folder, or Debian's two."""
    found = [*root.glob("lib/modules/*/build"), *root.glob("usr/src/linux-headers-*"), *root.glob("usr/src/kernels/*")]
    trees = {}
    for path in found:
        if (path / "include/generated/autoconf.h").exists():
            trees[path.resolve()] = [path.resolve(), *_common(path, root)]
    running = platform.release()
    return sorted(
        (tree for tree in trees.values() if any((folder / "include/linux/kconfig.h").exists() for folder in tree)),
        key=lambda tree: (running in tree[0].name, _version(tree[0].name)),
        reverse=True,
    )


def _common(path: Path, root: Path) -> list[Path]:
    """The folder that a flavour's Makefile includes."""
    match = re.search(r"^include /(usr/src/\S+)/Makefile$", read(path / "Makefile") or "", re.MULTILINE)
    return [root / match[1]] if match else []


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))


@contextmanager
def header_tree() -> Iterator[Path]:
    """One folder of headers, while the block runs. Raises KernelError if none are installed."""
    trees = installed()
    if not trees:
        raise KernelError(
            "BCC needs kernel headers, of any version: install linux-headers-amd64 (Debian), linux-headers-generic "
            "(Ubuntu) or kernel-devel (Fedora)"
        )
    with tempfile.TemporaryDirectory(prefix="wakescope-headers-") as name:
        merged = Path(name)
        for folder in trees[0]:
            _link(folder / "include", merged / "include")
            for arch in folder.glob("arch/*/include"):
                _link(arch, merged / arch.relative_to(folder))
        yield merged


def _link(folder: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if not (into / entry.name).exists():
            (into / entry.name).symlink_to(entry)
