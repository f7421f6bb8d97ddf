# SPDX-License-Identifier: GPL-2.0-only
"""What is asked of a guest reaches it word for word, and nothing asked for becomes shell."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wakescope.errors import UsageError
from wakescope.testbox.guest import (
    Box,
    command_script,
    guest_environment,
    kernel_command_line,
    parse_features,
    parse_sysctls,
    settings_script,
)
from wakescope.testbox.kernels import Kernel
from wakescope.testbox.topology import parse

KERNEL = Kernel("6.1.0-57-amd64", "6.1.192-3", Path("/k/vmlinuz"), Path("/k/it's here"))
BOX = Box(KERNEL, parse("2s2c2t"), ("true",))
WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=0), min_size=1, max_size=5)


@settings(deadline=None)  # each starts a process
@given(WORDS)
def test_a_command_gets_its_words_as_they_were_given(words: list[str]) -> None:
    script = command_script(replace(BOX, command=("printf", "%s\\0", *words)))
    said = subprocess.run(["sh", "-s"], input=script, capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == words


def test_a_word_that_is_not_text_survives() -> None:
    script = command_script(replace(BOX, command=("printf", "%s", os.fsdecode(b"\xff\xfe"))))
    assert subprocess.run(["sh", "-s"], input=script, capture_output=True, check=True).stdout == b"\xff\xfe"


def test_the_command_starts_where_the_caller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a 'folder'"
    folder.mkdir()
    monkeypatch.chdir(folder)
    script = command_script(replace(BOX, command=("pwd",)))
    monkeypatch.chdir("/")
    assert subprocess.run(["sh", "-s"], input=script, capture_output=True, check=True).stdout.decode() == f"{folder}\n"


def test_settings_are_calls_with_every_word_quoted(tmp_path: Path) -> None:
    box = replace(
        BOX,
        shape=parse("2s2c2t", offline="3"),
        features=parse_features("NO_WA_IDLE,SIS_UTIL"),
        sysctls=parse_sysctls(["kernel.core_pattern=$(reboot); 'x' %p"]),
        out=tmp_path,
        terminal=os.terminal_size((80, 24)),
    )
    names = ("modules_at", "share_out", "terminal", "sysctl_set", "feature_set", "cpu_offline")
    functions = "".join(f'{name}() {{ printf "%s|" {name} "$@"; echo; }}\n' for name in names)
    said = subprocess.run(
        ["sh", "-s"], input=functions + settings_script(box), capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [
        "modules_at|/k/it's here|",
        "share_out|",
        "terminal|24|80|",
        "sysctl_set|kernel.core_pattern|$(reboot); 'x' %p|",
        "feature_set|NO_WA_IDLE|",
        "feature_set|SIS_UTIL|",
        "cpu_offline|3|",
    ]


@pytest.mark.parametrize("text", ["wa_idle", "WA_IDLE;reboot", "WA IDLE", "../x"])
def test_what_is_no_feature_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_features(text)


@pytest.mark.parametrize("text", ["kernel", "kernel.x", "kernel/x=1", "../x=1", "kernel.x=", "kernel.x=1\n2", "=1"])
def test_what_is_no_sysctl_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sysctls([text])


def test_path_and_home_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/opt/venv/bin:/usr/bin")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("TERM", "xterm")
    environment = guest_environment(interactive=False)
    assert environment["PATH"].startswith("/opt/venv/bin:/usr/bin:")
    assert "/usr/sbin" in environment["PATH"].split(":")
    assert environment["PATH"].endswith(f":{Path(sys.executable).parent}")
    assert environment["HOME"] == "/home/me"
    assert environment["TERM"] == "dumb"
    assert guest_environment(interactive=True)["TERM"] == "xterm"


def test_cpu_0_goes_offline_up_to_6_4_only() -> None:
    shape = parse("offline0")
    assert "cpu0_hotplug" in kernel_command_line(replace(BOX, shape=shape)).split()
    assert "cpu0_hotplug" not in kernel_command_line(BOX)
    newer = replace(KERNEL, release="6.12.118+deb13-amd64", version="6.12.118-1")
    with pytest.raises(UsageError, match=r"6\.5"):
        kernel_command_line(replace(BOX, shape=shape, kernel=newer))
