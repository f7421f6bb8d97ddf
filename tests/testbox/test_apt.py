# SPDX-License-Identifier: GPL-2.0-only
"""Kernel packages: whose archive is asked, what is taken from it, and that a download is checked and goes on."""

from __future__ import annotations

import email.utils
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from wakescope.testbox import apt
from wakescope.testbox.apt import (
    ArchiveError,
    Deb,
    configuration,
    download,
    host_archives,
    parse_offers,
    source_line,
    suite_offers,
    version_key,
)

needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt on this host")
MODIFIED = 1_700_000_000


def record(package: str, version: str, size: int = 100, digest: str = "ab") -> str:
    """A stanza as apt-cache search --full writes it."""
    return (
        f"Package: {package}\nVersion: {version}\nArchitecture: amd64\nDescription: a kernel\n Package: not a field\n"
        f"Filename: pool/{package}.deb\nSize: {size}\nSHA256: {digest}\n"
    )


class Archive(BaseHTTPRequestHandler):
    """An archive of the files in .files that sends parts of them, and notes which were asked for in .ranges."""

    files: dict[str, bytes]
    ranges: list[str | None]

    def do_GET(self) -> None:
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        self.ranges.append(asked)
        unchanged = self.headers.get("If-Range") in (None, email.utils.formatdate(MODIFIED, usegmt=True))
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and unchanged else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Last-Modified", email.utils.formatdate(MODIFIED, usegmt=True))
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])

    def log_message(self, *said: object) -> None:
        pass


@pytest.fixture
def archive() -> Iterator[tuple[str, type[Archive]]]:
    """An archive on loopback: its URI, and the class that holds its files and what was asked of it."""
    handler = type("Handler", (Archive,), {"files": {}, "ranges": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_archives_are_those_the_host_uses() -> None:
    listing = (
        "http://mirror.example/debian/ bookworm\n"
        "http://other.example/debian/ bookworm-updates\n"
        "http://mirror.example/debian-security/ bookworm-security\n"
        "https://packages.example/apt cloud-sdk-bookworm\n"
    )
    assert host_archives(listing) == {
        "debian": "http://mirror.example/debian",
        "security": "http://mirror.example/debian-security",
    }


@pytest.mark.parametrize("listing", ["", "http://archive.example/ubuntu/ jammy\nhttp://x/ubuntu/ jammy-security\n"])
def test_a_host_without_debian_is_told_so(listing: str) -> None:
    with pytest.raises(ArchiveError, match="no Debian archive"):
        host_archives(listing)


def test_a_mirror_list_gives_its_first_archive(tmp_path: Path) -> None:
    (tmp_path / "mirrors").write_text(
        "# ours\nhttps://first.example/debian/ priority:1\nhttps://second.example/debian\n"
    )
    assert host_archives(f"mirror+file:{tmp_path}/mirrors/ trixie\n") == {"debian": "https://first.example/debian"}


def test_packages_of_a_release_are_one_kernel() -> None:
    records = [
        record("linux-image-5.10.0-46-amd64", "5.10.262-1"),
        record("linux-image-6.1.0-0.deb11.52-amd64", "6.1.180-1~deb11u1"),
        record("linux-image-6.12.9+deb13-amd64", "6.12.9-1"),
        record("linux-image-6.12.118+deb13-amd64", "6.12.118-1"),
        record("linux-image-7.3.4+deb13-amd64", "7.3.4-1~bpo13+1", 1),
        record("linux-binary-7.3.4+deb13-amd64", "7.3.4-1~bpo13+1", 20),
        record("linux-modules-7.3.4+deb13-amd64", "7.3.4-1~bpo13+1", 300),
    ]
    offers = parse_offers("\n".join(reversed(records)), "http://a", "trixie")
    assert [offer.release for offer in offers] == [
        "5.10.0-46-amd64",
        "6.1.0-0.deb11.52-amd64",
        "6.12.9+deb13-amd64",
        "6.12.118+deb13-amd64",
        "7.3.4+deb13-amd64",
    ]
    assert offers[-1].size == 321
    assert offers[0].debs == (
        Deb("linux-image-5.10.0-46-amd64", "http://a/pool/linux-image-5.10.0-46-amd64.deb", 100, "ab"),
    )


@pytest.mark.parametrize(
    "package",
    [
        "linux-image-amd64",
        "linux-image-6.1-amd64",
        "linux-image-6.1.0-57-cloud-amd64",
        "linux-image-6.1.0-57-rt-amd64",
        "linux-image-6.1.0-57-amd64-dbg",
        "linux-image-6.1.0-57-amd64-unsigned",
        "linux-image-6.12.118+deb13-rt-amd64",
        "linux-modules-7.3.4+deb13-amd64",  # without the image that goes with it
        "linux-headers-6.1.0-57-amd64",
    ],
)
def test_what_is_no_whole_plain_kernel_is_left_out(package: str) -> None:
    assert parse_offers(record(package, "1-1"), "http://a", "s") == []


def test_an_image_whose_modules_are_gone_is_left_out() -> None:
    records = [record(f"linux-{part}-7.0.4+deb13-amd64", "7.0.4-1~bpo13+1") for part in ("image", "binary")]
    assert parse_offers("\n".join(records), "http://a", "s") == []


def test_versions_sort_by_their_numbers() -> None:
    versions = ["7.3.4-1~bpo13+1", "6.12.118-1", "6.12.9-1", "6.1.192-3", "6.1.192-2", "5.10.262-1"]
    assert sorted(versions, key=version_key, reverse=True) == versions


def test_a_source_is_signed_by_debians_keyring(tmp_path: Path) -> None:
    keyring = tmp_path / "debian.gpg"
    keyring.touch()
    line = source_line("http://a/debian", "sid", (str(tmp_path / "none"), str(keyring)))
    assert line == f"deb [arch=amd64 signed-by={keyring}] http://a/debian sid main\n"
    assert "signed-by" not in source_line("http://a/debian", "sid", ())


def test_apts_state_is_kept_apart(tmp_path: Path) -> None:
    text = configuration(tmp_path)
    for key in ("Dir::State ", "Dir::State::status ", "Dir::Cache ", "Dir::Etc::sourcelist "):
        line = next(line for line in text.splitlines() if line.startswith(key))
        assert str(tmp_path) in line
    assert 'Dir::Etc::sourceparts "/dev/null"' in text
    assert "#clear APT::Update;" in text


@needs_apt
def test_a_suite_is_read_through_apt(
    archive: tuple[str, type[Archive]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, handler = archive
    packages = record("linux-image-6.12.118+deb13-amd64", "6.12.118-1").encode()
    digest = hashlib.sha256(packages).hexdigest()
    release = (
        f"Suite: x\nCodename: x\nComponents: main\nSHA256:\n {digest} {len(packages)} main/binary-amd64/Packages\n"
    )
    handler.files = {"/dists/x/Release": release.encode(), "/dists/x/main/binary-amd64/Packages": packages}
    monkeypatch.setattr(apt, "source_line", lambda uri, suite: f"deb [trusted=yes arch=amd64] {uri} {suite} main\n")
    (offer,) = suite_offers("x", {"debian": uri}, tmp_path)
    assert offer.release == "6.12.118+deb13-amd64"
    assert offer.debs[0].uri == f"{uri}/pool/linux-image-6.12.118+deb13-amd64.deb"


@needs_apt
def test_an_index_that_nobody_signed_is_refused(archive: tuple[str, type[Archive]], tmp_path: Path) -> None:
    uri, handler = archive
    handler.files = {"/dists/x/Release": b"Suite: x\nCodename: x\nComponents: main\n"}
    with pytest.raises(ArchiveError, match="not signed"):
        suite_offers("x", {"debian": uri}, tmp_path)


@needs_apt
def test_a_suite_that_is_not_there_is_said(archive: tuple[str, type[Archive]], tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="Release"):
        suite_offers("gone", {"debian": archive[0]}, tmp_path)
    with pytest.raises(ArchiveError, match="no security archive"):
        suite_offers("gone-security", {"debian": archive[0]}, tmp_path)


def deb(archive: tuple[str, type[Archive]], content: bytes, promised: bytes | None = None) -> Deb:
    """A package whose file has content; its hash is that of promised where that is given."""
    uri, handler = archive
    handler.files["/pool/k.deb"] = content
    promise = content if promised is None else promised
    return Deb("k", f"{uri}/pool/k.deb", len(promise), hashlib.sha256(promise).hexdigest())


@needs_apt
def test_a_download_goes_on_where_it_stopped(archive: tuple[str, type[Archive]], tmp_path: Path) -> None:
    content = os.urandom(200_000)
    package = deb(archive, content)
    target = tmp_path / f"k_{package.sha256[:16]}.deb"
    target.write_bytes(content[:150_000])
    os.utime(target, (MODIFIED, MODIFIED))  # as apt leaves a file whose download was interrupted
    assert download(package, tmp_path) == target
    assert target.read_bytes() == content
    assert archive[1].ranges == ["bytes=150000-"]


@needs_apt
def test_a_file_that_is_not_what_the_index_promised_is_refused(
    archive: tuple[str, type[Archive]], tmp_path: Path
) -> None:
    with pytest.raises(ArchiveError, match="Hash Sum mismatch"):
        download(deb(archive, b"x" * 1000, promised=b"y" * 1000), tmp_path)
    assert not list(tmp_path.glob("*.deb"))


@needs_apt
def test_a_damaged_part_is_not_kept(archive: tuple[str, type[Archive]], tmp_path: Path) -> None:
    content = os.urandom(200_000)
    package = deb(archive, content)
    target = tmp_path / f"k_{package.sha256[:16]}.deb"
    target.write_bytes(bytes(150_000))
    os.utime(target, (MODIFIED, MODIFIED))
    with pytest.raises(ArchiveError, match="try again"):
        download(package, tmp_path)
    assert download(package, tmp_path).read_bytes() == content


@needs_apt
def test_a_missing_file_is_said(archive: tuple[str, type[Archive]], tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="404"):
        download(Deb("k", f"{archive[0]}/pool/none.deb", 1, "ab" * 32), tmp_path)


def test_a_host_without_apt_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ArchiveError, match="bzImage"):
        host_archives()
