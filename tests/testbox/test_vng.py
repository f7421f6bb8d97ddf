# SPDX-License-Identifier: GPL-2.0-only
"""What virtme-ng lacks on a host is said by name before it starts, where its own words would be a traceback."""

import pytest
from wakescope.testbox import process, vng
from wakescope.testbox.initrd import BoxSetupError


@pytest.mark.parametrize(("lacking", "package"), [("vng", "virtme-ng"), ("modprobe", "kmod"), ("file", "file")])
def test_a_program_that_is_not_there_is_named(lacking, package, tmp_path, monkeypatch):
    for name in {"vng", "modprobe", "file"} - {lacking}:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(process, "_path", lambda: str(tmp_path))
    with pytest.raises(BoxSetupError, match=f"{lacking} is not on this host: install {package}"):
        vng.check_host()
