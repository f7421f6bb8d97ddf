# SPDX-License-Identifier: GPL-2.0-only
"""Whether this host's KVM boots a kernel: tried once per boot of the host, never assumed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from . import qemu
from .guest import Box
from .kernels import Kernel, cache_dir
from .topology import parse

_PROBE_SECONDS = 10.0  # a guest under working KVM is ready in two; /dev/kvm may exist and still hang every guest
_DEVICE = Path("/dev/kvm")


def accelerator(kernel: Kernel, say: Callable[[str], None]) -> str:
    """ "kvm" if a guest boots with it, else "tcg"; the answer is kept until the host is booted again.

    say gets a line when a trial boot is made.
    """
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return "tcg"
    note = cache_dir() / "kvm.json"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        known = json.loads(note.read_text())
        if known["boot"] == boot:
            return str(known["accelerator"])
    except (OSError, ValueError, KeyError):
        pass
    say(f"trying /dev/kvm, for up to {_PROBE_SECONDS:g} s")
    found = "kvm" if _boots(kernel) else "tcg"
    with suppress(OSError):  # a cache that cannot be written costs a trial each time
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"boot": boot, "accelerator": found}))
    return found


def _boots(kernel: Kernel) -> bool:
    box = Box(kernel, parse("1s2c1t"), (":",), memory=1024, timeout=_PROBE_SECONDS)
    return qemu.run(box, "kvm", lambda _: None, lambda _: None).code == 0
