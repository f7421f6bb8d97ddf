# SPDX-License-Identifier: GPL-2.0-only
"""QEMU's and virtme-ng's command lines."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from wakescope.testbox import qemu, vng
from wakescope.testbox.guest import Box
from wakescope.testbox.initrd import BoxSetupError
from wakescope.testbox.kernels import Kernel
from wakescope.testbox.topology import parse

BOX = Box(Kernel("6.1.0-57-amd64", "6.1.192-3", Path("/k/vmlinuz"), None), parse("uneven"), ("true",))
FILES = {name: f"/dev/fd/{number}" for number, name in enumerate(["initrd", "console", "stdout", "stderr", "status"])}


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")


def after(line: list[str], option: str) -> list[str]:
    """The values an option is given."""
    return [value for name, value in pairwise(line) if name == option]


def test_emulation_runs_one_thread_and_shows_an_intel() -> None:
    line = qemu.arguments(BOX, "tcg", FILES)
    assert after(line, "-accel") == ["tcg,thread=single"]
    assert after(line, "-cpu") == ["max,vendor=GenuineIntel"]


def test_the_hosts_root_is_shared_read_only() -> None:
    shares = after(qemu.arguments(BOX, "tcg", FILES), "-fsdev")
    assert len(shares) == 1
    assert "path=/," in shares[0]
    assert "readonly=on" in shares[0]


def test_a_comma_in_outs_path_is_doubled(tmp_path: Path) -> None:
    line = qemu.arguments(replace(BOX, out=tmp_path / "a,b"), "tcg", FILES)
    assert f"local,id=out,path={tmp_path}/a,,b,security_model=none" in after(line, "-fsdev")


def test_a_missing_program_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(BoxSetupError, match="qemu-system-x86"):
        qemu.arguments(BOX, "tcg", FILES)
    with pytest.raises(BoxSetupError, match="virtme-ng"):
        vng.arguments(BOX, "tcg", Path("/tmp/x"))


def test_virtme_ng_is_asked_for_the_same_machine(tmp_path: Path) -> None:
    line = vng.arguments(replace(BOX, out=tmp_path), "tcg", Path("/tmp/the folder"))
    assert after(line, "--cpus") == after(qemu.arguments(BOX, "tcg", FILES), "-smp")
    assert after(line, "--numa") == ["1024M,cpus=0-1", "1024M,cpus=2-3", "1024M,cpus=4-5", "1024M,cpus=6-7"]
    assert "0,2=22" in after(line, "--numa-distance")
    assert after(line, "--rwdir") == ["/tmp/the folder", str(tmp_path)]
    assert after(line, "--exec") == [f"sh '/tmp/the folder/vng.sh' '/tmp/the folder' {tmp_path}"]
