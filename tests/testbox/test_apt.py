# SPDX-License-Identifier: GPL-2.0-only
"""Kernel packages: whose archive is asked, and what is taken from it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from wakescope.testbox.apt import (
    ArchiveError,
    Deb,
    Source,
    configuration,
    host_archives,
    parse_offers,
    parse_packages,
    read_packages,
    version_key,
)
from wakescope.testbox.distributions import DEBIAN, UBUNTU

from .conftest import Archive, record

needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt on this host")


def test_the_archives_are_those_the_host_uses() -> None:
    listing = (
        "http://mirror.example/debian/ bookworm\n"
        "http://other.example/debian/ bookworm-updates\n"
        "http://mirror.example/debian-security/ bookworm-security\n"
        "https://packages.example/apt cloud-sdk-bookworm\n"
        "cdrom:[Debian]/ bookworm\n"
    )
    assert host_archives(DEBIAN, listing) == {
        "main": "http://mirror.example/debian",
        "security": "http://mirror.example/debian-security",
    }


def test_where_the_host_names_none_it_is_the_distributions_own() -> None:
    listing = "http://mirror.example/ubuntu/ jammy\nhttp://s.example/ubuntu/ jammy-security\n"
    assert host_archives(DEBIAN, listing) == DEBIAN.archives
    assert host_archives(UBUNTU, listing) == {"main": "http://mirror.example/ubuntu"}
    assert host_archives(UBUNTU, "") == {"main": "http://archive.ubuntu.com/ubuntu"}


def test_a_mirror_list_gives_its_first_archive(tmp_path: Path) -> None:
    (tmp_path / "mirrors").write_text(
        "# ours\nhttps://first.example/debian/ priority:1\nhttps://second.example/debian\n"
    )
    listing = f"mirror+file:{tmp_path}/mirrors/ trixie\n"
    assert host_archives(DEBIAN, listing)["main"] == "https://first.example/debian"


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
    offers = parse_offers("\n".join(reversed(records)), "http://a", "trixie", DEBIAN)
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
    assert parse_offers(record(package, "1-1"), "http://a", "s", DEBIAN) == []


def test_an_image_whose_modules_are_gone_is_left_out() -> None:
    records = [record(f"linux-{part}-7.0.4+deb13-amd64", "7.0.4-1~bpo13+1") for part in ("image", "binary")]
    assert parse_offers("\n".join(records), "http://a", "s", DEBIAN) == []


def test_ubuntus_kernels_are_an_unsigned_image_and_its_modules() -> None:
    names = [
        "linux-image-unsigned-5.15.0-139-generic",
        "linux-modules-5.15.0-139-generic",
        "linux-modules-extra-5.15.0-139-generic",
        "linux-image-5.15.0-139-generic",
        "linux-image-unsigned-5.15.0-139-lowlatency",
        "linux-modules-5.15.0-139-lowlatency",
        "linux-image-unsigned-5.15.0-1010-kvm",
        "linux-image-unsigned-5.15.0-140-generic",  # without its modules
    ]
    records = "\n".join(record(name, "5.15.0-139.149") for name in names)
    (offer,) = parse_offers(records, "http://a", "jammy-updates", UBUNTU)
    assert offer.release == "5.15.0-139-generic"
    assert [deb.name for deb in offer.debs] == names[:2]


def test_versions_sort_as_dpkg_sorts_them() -> None:
    versions = ["7.3.4-1", "7.3.4-1~bpo13+1", "6.12.118-1", "6.12.9-1", "6.1.192-3", "6.1.192-2", "5.15.0-9.10~20.04.1"]
    assert sorted(versions, key=version_key, reverse=True) == versions


def test_a_source_is_signed_by_its_keyring(tmp_path: Path) -> None:
    source = Source("http://a/debian", "sid", "main", tmp_path / "keys.gpg")
    assert source.line == f"deb [arch=amd64 signed-by={tmp_path}/keys.gpg] http://a/debian sid main\n"


def test_apts_state_is_kept_apart(tmp_path: Path) -> None:
    text = configuration(tmp_path)
    for key in ("Dir::State ", "Dir::State::status ", "Dir::Cache ", "Dir::Etc::sourcelist "):
        line = next(line for line in text.splitlines() if line.startswith(key))
        assert str(tmp_path) in line
    assert 'Dir::Etc::sourceparts "/dev/null"' in text
    assert "#clear APT::Update;" in text


@needs_apt
def test_a_suite_is_read_through_apt(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = record("linux-image-6.12.118+deb13-amd64", "6.12.118-1").encode()
    digest = hashlib.sha256(packages).hexdigest()
    release = (
        f"Suite: x\nCodename: x\nComponents: main\nSHA256:\n {digest} {len(packages)} main/binary-amd64/Packages\n"
    )
    archive.files = {"/dists/x/Release": release.encode(), "/dists/x/main/binary-amd64/Packages": packages}
    monkeypatch.setattr(Source, "line", f"deb [trusted=yes arch=amd64] {archive.uri} x main\n")
    records = read_packages(Source(archive.uri, "x", "main", tmp_path), tmp_path, "^linux-image")
    ((deb, version),) = parse_packages(records, archive.uri)
    assert deb == Deb("linux-image-6.12.118+deb13-amd64", f"{archive.uri}/pool/{deb.name}.deb", 100, "ab")
    assert version == "6.12.118-1"


@needs_apt
def test_an_index_that_nobody_signed_is_refused(archive: Archive, tmp_path: Path) -> None:
    archive.files = {"/dists/x/Release": b"Suite: x\nCodename: x\nComponents: main\n"}
    with pytest.raises(ArchiveError, match="not signed"):
        read_packages(Source(archive.uri, "x", "main", DEBIAN.keyrings[1]), tmp_path, ".")


@needs_apt
def test_a_suite_that_is_not_there_is_said(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="Release"):
        read_packages(Source(archive.uri, "gone", "main", DEBIAN.keyrings[1]), tmp_path, ".")


def test_a_host_without_apt_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ArchiveError, match="bzImage"):
        host_archives(DEBIAN)
