# SPDX-License-Identifier: GPL-2.0-only
"""KVM is used only where a guest has been seen to boot with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wakescope.testbox import accel
from wakescope.testbox.kernels import Kernel

KERNEL = Kernel("6.1.0-57-amd64", "6.1.192-3", Path("/k/vmlinuz"), None)


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Answers of the trial boots to come, taken from the end; the device exists."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = tmp_path / "kvm"
    device.touch()
    answers: list[bool] = []
    monkeypatch.setattr(accel, "_DEVICE", device)
    monkeypatch.setattr(accel, "_boots", lambda kernel: answers.pop())
    return answers


@pytest.mark.parametrize(("boots", "found"), [(True, "kvm"), (False, "tcg")])
def test_one_trial_decides_until_the_host_is_booted_again(
    boots: bool, found: str, trials: list[bool], tmp_path: Path
) -> None:
    said: list[str] = []
    trials.append(boots)
    assert accel.accelerator(KERNEL, said.append) == found
    assert len(said) == 1
    assert accel.accelerator(KERNEL, said.append) == found  # no trial is left to take
    note = tmp_path / "wakescope/kvm.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "boot": "an earlier one"}))
    trials.append(not boots)
    assert accel.accelerator(KERNEL, said.append) != found


def test_a_damaged_note_is_no_answer(trials: list[bool], tmp_path: Path) -> None:
    (tmp_path / "wakescope").mkdir()
    (tmp_path / "wakescope/kvm.json").write_text("{")
    trials.append(True)
    assert accel.accelerator(KERNEL, lambda _: None) == "kvm"


def test_without_the_device_there_is_no_trial(trials: list[bool], tmp_path: Path) -> None:
    (tmp_path / "kvm").unlink()
    assert accel.accelerator(KERNEL, lambda _: None) == "tcg"
