# SPDX-License-Identifier: GPL-2.0-only
"""A download is checked and goes on where it stopped, through the proxy the host's apt takes."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wakescope
from wakescope.errors import OutputError
from wakescope.testbox.apt import ArchiveError, Deb
from wakescope.testbox.download import download

from .conftest import Archive

pytestmark = pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt on this host")
CONTENT = os.urandom(2_000_000)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive on loopback is asked directly, whatever the host's environment says."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY", "APT_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def deb(archive: Archive, promised: bytes = CONTENT) -> Deb:
    """A package whose file has CONTENT; its size and hash are those of promised."""
    archive.files["/pool/k.deb"] = CONTENT
    return Deb("k", f"{archive.uri}/pool/k.deb", len(promised), hashlib.sha256(promised).hexdigest())


def part(package: Deb, folder: Path, content: bytes) -> Path:
    """What an earlier attempt left."""
    target = folder / f"k_{package.sha256[:16]}.deb"
    target.write_bytes(content)
    return target


def test_a_whole_file_is_fetched_at_once_and_not_again(archive: Archive, tmp_path: Path) -> None:
    package, said = deb(archive), list[str]()
    for _ in range(2):
        assert download(package, tmp_path, said.append).read_bytes() == CONTENT
    assert archive.ranges == [None]
    assert said == []


def test_a_download_goes_on_where_it_stopped(archive: Archive, tmp_path: Path) -> None:
    package, said = deb(archive), list[str]()
    target = part(package, tmp_path, CONTENT[:1_500_000])
    assert download(package, tmp_path, said.append) == target
    assert target.read_bytes() == CONTENT
    assert archive.ranges == ["bytes=1500000-"]
    assert said == ["going on with k at 1.5 MB"]


def test_a_connection_that_breaks_off_is_opened_again(archive: Archive, tmp_path: Path) -> None:
    archive.breaks_after = 700_000
    assert download(deb(archive), tmp_path, print).read_bytes() == CONTENT
    assert archive.ranges == [None, "bytes=700000-", "bytes=1400000-"]


def test_an_archive_that_sends_nothing_more_is_not_asked_for_ever(archive: Archive, tmp_path: Path) -> None:
    package = deb(archive)
    part(package, tmp_path, CONTENT[:1000])
    archive.breaks_after = 0
    with pytest.raises(ArchiveError, match="ended at 1,000 of 2,000,000 bytes"):
        download(package, tmp_path, print)


def test_an_archive_without_parts_is_read_from_the_start(archive: Archive, tmp_path: Path) -> None:
    package = deb(archive)
    archive.sends_parts = False
    part(package, tmp_path, CONTENT[:1_500_000])
    assert download(package, tmp_path, print).read_bytes() == CONTENT


@pytest.mark.parametrize("length", [1_500_000, 2_000_000, 3_000_000])
def test_a_damaged_part_is_thrown_away(length: int, archive: Archive, tmp_path: Path) -> None:
    package, said = deb(archive), list[str]()
    part(package, tmp_path, bytes(length))
    assert download(package, tmp_path, said.append).read_bytes() == CONTENT
    assert "damaged" in said[-1]


def test_a_file_that_is_not_what_the_index_promised_is_refused(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="not what the archive's index promised"):
        download(deb(archive, promised=bytes(len(CONTENT))), tmp_path, print)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_said(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"404.*--refresh"):
        download(Deb("k", f"{archive.uri}/pool/none.deb", 1, "ab" * 32), tmp_path, print)


def test_an_archive_that_is_not_there_is_said(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="refused"):
        download(Deb("k", "http://127.0.0.1:9/k.deb", 1, "ab" * 32), tmp_path, print)


def test_a_full_disk_keeps_the_part_and_is_said(archive: Archive, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: write() fails in the middle."""
    package = deb(archive)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(OutputError, match="make room"):
            download(package, tmp_path, print)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    (target,) = tmp_path.iterdir()
    kept = target.stat().st_size
    assert 0 < kept <= 1_000_000
    assert download(package, tmp_path, print).read_bytes() == CONTENT
    assert archive.ranges[-1] == f"bytes={kept}-"


DOWNLOAD = """
import pathlib, sys
from wakescope.testbox.apt import Deb
from wakescope.testbox.download import download
download(Deb("k", sys.argv[1], int(sys.argv[2]), sys.argv[3]), pathlib.Path(sys.argv[4]), print)
"""


def test_a_kill_keeps_the_part(archive: Archive, tmp_path: Path) -> None:
    """The archive stalls in the middle of the file, there the process is killed, and another goes on."""
    package = deb(archive)
    archive.stalls_after = 800_000
    line = [sys.executable, "-c", DOWNLOAD, package.uri, str(package.size), package.sha256, str(tmp_path)]
    child = subprocess.Popen(line, env={**os.environ, "PYTHONPATH": str(Path(wakescope.__file__).parents[1])})
    assert archive.stalled.wait(60)
    while not any(part.stat().st_size for part in tmp_path.iterdir()):  # what was sent is still on its way
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    archive.resume()
    (target,) = tmp_path.iterdir()
    kept = target.stat().st_size
    assert 0 < kept <= 800_000
    assert download(package, tmp_path, print).read_bytes() == CONTENT
    assert archive.ranges[-1] == f"bytes={kept}-"


@pytest.mark.parametrize(
    "setting",
    ['Acquire::http::Proxy "{proxy}";', 'Acquire::http::Proxy::archive.invalid "{proxy}";'],
)
def test_apts_proxy_is_taken(setting: str, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's name cannot be resolved: only through the proxy (the archive here) can the file be had."""
    config = tmp_path / "apt.conf"
    config.write_text(setting.format(proxy=archive.uri) + "\n")
    monkeypatch.setenv("APT_CONFIG", str(config))
    archive.files["http://archive.invalid/k.deb"] = CONTENT
    package = Deb("k", "http://archive.invalid/k.deb", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert download(package, tmp_path, print).read_bytes() == CONTENT


def test_apt_may_say_that_no_proxy_is_to_be_taken(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "apt.conf"
    config.write_text('Acquire::http::Proxy "DIRECT";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert download(deb(archive), tmp_path, print).read_bytes() == CONTENT


def test_the_environments_proxy_is_taken(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", archive.uri)
    archive.files["http://archive.invalid/k.deb"] = CONTENT
    package = Deb("k", "http://archive.invalid/k.deb", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert download(package, tmp_path, print).read_bytes() == CONTENT
