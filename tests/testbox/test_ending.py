# SPDX-License-Identifier: GPL-2.0-only
"""What the end of a box means."""

from __future__ import annotations

from pathlib import Path

import pytest
from wakescope.testbox.ending import BoxTimeoutError, Ending, GuestDiedError
from wakescope.testbox.guest import Box
from wakescope.testbox.initrd import BoxSetupError
from wakescope.testbox.kernels import Kernel
from wakescope.testbox.topology import parse

BOX = Box(Kernel("6.1.0-57-amd64", "6.1.192-3", Path("/k"), None), parse("1s1c1t"), ("true",), timeout=7)


def test_a_status_may_come_in_pieces() -> None:
    ending = Ending()
    for piece in (b"rea", b"dy\nexi", b"t 1", b"7\n"):
        ending.hear_status(piece)
    assert ending.code == 17
    assert ending.verdict(BOX) == 17
    assert ending.ready_seconds is not None


def test_no_status_is_no_code() -> None:
    ending = Ending()
    ending.hear_status(b"ready\n")
    assert ending.code is None


def test_a_refusal_is_told_in_the_guests_words() -> None:
    ending = Ending()
    ending.hear_status(b"error sysctl kernel.x=1: no\n")
    with pytest.raises(BoxSetupError, match=r"sysctl kernel\.x=1: no"):
        ending.verdict(BOX)


def test_a_panic_is_named() -> None:
    ending = Ending()
    ending.hear_console(b"[ 1.0] Oops\r\n[ 1.1] Kernel panic - not syncing: Fatal exception\r\n")
    with pytest.raises(GuestDiedError, match="panicked: Fatal exception") as caught:
        ending.verdict(BOX)
    assert caught.value.exit_code == 125


def test_a_silent_end_is_a_death_too() -> None:
    with pytest.raises(GuestDiedError, match="without an exit status"):
        Ending().verdict(BOX)


@pytest.mark.parametrize(("said", "words"), [(b"", "had not started"), (b"ready\n", "was still running")])
def test_a_timeout_says_how_far_it_came(said: bytes, words: str) -> None:
    ending = Ending()
    ending.hear_status(said)
    ending.timed_out = True
    with pytest.raises(BoxTimeoutError, match=f"{words}.* 7 s") as caught:
        ending.verdict(BOX)
    assert caught.value.exit_code == 124


def test_a_status_told_before_the_time_was_up_counts() -> None:
    ending = Ending()
    ending.hear_status(b"ready\nexit 0\n")
    ending.timed_out = True
    assert ending.verdict(BOX) == 0


def test_qemus_refusal_is_passed_on() -> None:
    ending = Ending()
    ending.emulator += b"qemu: could not load kernel\n"
    with pytest.raises(BoxSetupError, match="could not load kernel"):
        ending.verdict(BOX)


def test_the_consoles_end_is_kept() -> None:
    ending = Ending()
    for number in range(200_000):
        ending.hear_console(b"line %d\r\n" % number)
    assert ending.console_end(2) == "line 199998\nline 199999"
    assert len(ending.console) <= 1 << 20
