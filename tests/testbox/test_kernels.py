# SPDX-License-Identifier: GPL-2.0-only
"""Which kernel a name means, where it is kept, and how it gets there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from wakescope.errors import OutputError
from wakescope.testbox import kernels
from wakescope.testbox.apt import ArchiveError, Deb, Offer
from wakescope.testbox.kernels import (
    Kernel,
    NoKernelError,
    cache_dir,
    cached,
    catalogue,
    fetch,
    find,
    from_path,
    image_release,
    matches,
)

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg on this host")


def bzimage(path: Path, release: str) -> Path:
    """A file with the header of a bzImage and nothing to boot."""
    header = bytearray(0x1000)
    header[0x202:0x206] = b"HdrS"
    header[0x20E:0x210] = (0x600).to_bytes(2, "little")
    text = f"{release} (someone@somewhere) #1 SMP".encode()
    header[0x800 : 0x800 + len(text)] = text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header)
    return path


def offer(release: str, version: str) -> Offer:
    return Offer(release, version, "suite", (Deb(f"linux-image-{release}", f"http://a/{release}", 1, "ab"),))


OFFERS = [
    offer("5.10.0-46-amd64", "5.10.262-1"),
    offer("6.1.0-57-amd64", "6.1.192-3"),
    offer("6.12.95+deb12-amd64", "6.12.95-1~bpo12+1"),
    offer("6.12.118+deb13-amd64", "6.12.118-1"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/wakescope"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Suites that offer OFFERS, whose packages are built when they are downloaded; the releases downloaded."""
    downloaded: list[str] = []

    def build(deb: Deb, folder: Path, say: object) -> Path:
        release = deb.name.removeprefix("linux-image-")
        downloaded.append(release)
        tree = tmp_path / "trees" / release
        bzimage(tree / f"boot/vmlinuz-{release}", release)
        (tree / f"lib/modules/{release}/kernel").mkdir(parents=True)
        (tree / "DEBIAN").mkdir()
        (tree / "DEBIAN/control").write_text(
            f"Package: {deb.name}\nVersion: 1\nArchitecture: amd64\nMaintainer: t <t@t>\nDescription: t\n"
        )
        package = folder / f"{deb.name}.deb"
        subprocess.run(["dpkg-deb", "--build", tree, package], check=True, capture_output=True)
        return package

    monkeypatch.setattr(kernels, "all_offers", lambda folder, say: (OFFERS, {"sid": "it is away"}))
    monkeypatch.setattr(kernels, "download", build)
    return downloaded


@pytest.mark.parametrize(
    ("wanted", "does"),
    [
        ("6", True),
        ("6.1", True),
        ("6.1.192", True),
        ("6.1.192-3", True),
        ("6.1.0-57-amd64", True),
        ("linux-image-6.1.0-57-amd64", True),
        ("linux-image-unsigned-6.1.0-57-amd64", True),
        ("6.12", False),
        ("6.1.19", False),
        ("6.", False),
        ("6.1.0", False),
        ("", False),
    ],
)
def test_a_name_means_a_version_up_to_a_dot(wanted: str, does: bool) -> None:
    assert matches(wanted, "6.1.0-57-amd64", "6.1.192-3") is does


def test_a_kernels_number_is_its_version_not_its_release() -> None:
    assert Kernel("6.1.0-57-amd64", "6.1.192-3", Path("/k"), None).number == (6, 1, 192)


def test_an_image_says_its_release(tmp_path: Path) -> None:
    assert image_release(bzimage(tmp_path / "k", "6.12.1-lab")) == "6.12.1-lab"
    (tmp_path / "text").write_text("no kernel")
    with pytest.raises(NoKernelError, match="not a bzImage"):
        image_release(tmp_path / "text")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_an_unreadable_image_is_said(tmp_path: Path) -> None:
    image = bzimage(tmp_path / "k", "6.12.1")
    image.chmod(0)
    with pytest.raises(NoKernelError, match="not readable"):
        image_release(image)


@pytest.mark.parametrize(
    ("image", "modules"),
    [
        ("arch/x86/boot/bzImage", None),
        ("boot/vmlinuz-6.1.0-57-amd64", "lib/modules/6.1.0-57-amd64"),
        ("boot/vmlinuz-6.1.0-57-amd64", "usr/lib/modules/6.1.0-57-amd64"),
        ("usr/lib/modules/6.1.0-57-amd64/vmlinuz", "usr/lib/modules/6.1.0-57-amd64"),
    ],
)
def test_a_tree_is_a_kernel(tmp_path: Path, image: str, modules: str | None) -> None:
    bzimage(tmp_path / image, "6.1.0-57-amd64")
    if modules:
        (tmp_path / modules / "kernel").mkdir(parents=True)
    expected = Kernel("6.1.0-57-amd64", "6.1.0-57-amd64", tmp_path / image, tmp_path / modules if modules else None)
    assert from_path(tmp_path) == expected
    assert find(str(tmp_path), lambda _: None) == expected
    if image.startswith(("boot", "usr")):
        assert from_path(tmp_path / image) == expected


def test_a_path_without_a_kernel_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoKernelError, match="no bzImage"):
        find(f"{tmp_path}/none", lambda _: None)


@needs_dpkg
def test_the_newest_match_is_fetched_once(packages: list[str], cache: Path) -> None:
    said: list[str] = []
    kernel = find("6.12", said.append)
    assert kernel.release == "6.12.118+deb13-amd64"
    assert kernel.version == "6.12.118-1"
    assert kernel.image == cache / "kernels/6.12.118+deb13-amd64/boot/vmlinuz-6.12.118+deb13-amd64"
    assert kernel.modules == cache / "kernels/6.12.118+deb13-amd64/lib/modules/6.12.118+deb13-amd64"
    assert any("fetching linux-image-6.12.118+deb13-amd64" in line for line in said)
    assert find("6.12", said.append) == fetch("6.12", said.append) == kernel
    assert packages == ["6.12.118+deb13-amd64"]
    assert not list((cache / "debs").iterdir())


@needs_dpkg
def test_a_cached_match_is_preferred_to_a_newer_one(packages: list[str]) -> None:
    older = fetch("6.12.95", lambda _: None)
    assert find("6.12", lambda _: None) == older
    assert fetch("6.12", lambda _: None).release == "6.12.118+deb13-amd64"
    assert [kernel.release for kernel in cached()] == ["6.12.95+deb12-amd64", "6.12.118+deb13-amd64"]


@needs_dpkg
def test_a_kernel_appears_only_when_whole(packages: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(deb: Deb, folder: Path, say: object) -> Path:
        raise ArchiveError("the line went dead")

    with monkeypatch.context() as broken:
        broken.setattr(kernels, "download", fail)
        with pytest.raises(ArchiveError):
            fetch("5.10", lambda _: None)
    assert cached() == []
    assert fetch("5.10", lambda _: None).number == (5, 10, 262)


@needs_dpkg
def test_a_package_that_cannot_be_unpacked_is_kept_and_said(
    packages: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the disk is full: the download is not to be had again."""

    def broken(deb: Deb, folder: Path, say: object) -> Path:
        (folder / "k.deb").write_bytes(b"no package")
        return folder / "k.deb"

    monkeypatch.setattr(kernels, "download", broken)
    with pytest.raises(OutputError, match=r"cannot unpack k\.deb"):
        fetch("5.10", lambda _: None)
    assert cached() == []
    assert [path.name for path in (cache / "debs").iterdir()] == ["k.deb"]
    assert not list((cache / "kernels").glob("*.new"))


def test_a_kernel_that_nobody_has_is_said_with_what_could_not_be_asked(packages: list[str]) -> None:
    with pytest.raises(NoKernelError, match=r"no kernel 5\.15.*sid could not be read: it is away"):
        find("5.15", lambda _: None)


def test_the_list_is_kept_for_a_day(packages: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = catalogue(lambda _: None)
    monkeypatch.setattr(kernels, "all_offers", lambda folder, say: (OFFERS[:1], {}))
    assert catalogue(lambda _: None) == first
    assert catalogue(lambda _: None, refresh=True).offers == OFFERS[:1]
    yesterday = (cache / "catalogue.json").stat().st_mtime - 25 * 3600
    os.utime(cache / "catalogue.json", (yesterday, yesterday))
    monkeypatch.setattr(kernels, "all_offers", lambda folder, say: (OFFERS, {}))
    assert catalogue(lambda _: None).offers == OFFERS


def test_a_day_without_a_network_does_not_forget_the_list(packages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = catalogue(lambda _: None)
    monkeypatch.setattr(kernels, "all_offers", lambda folder, say: ([], {"sid": "no route to host"}))
    with pytest.raises(ArchiveError, match="no route to host"):
        catalogue(lambda _: None, refresh=True)
    assert catalogue(lambda _: None) == first


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NoKernelError, match="set XDG_CACHE_HOME"):
        catalogue(lambda _: None)


def test_a_kernel_in_two_suites_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "all_offers", lambda folder, say: (OFFERS + OFFERS, {}))
    assert len(catalogue(lambda _: None).offers) == len(OFFERS)
    assert json.loads((cache_dir() / "catalogue.json").read_text())["missing"] == {}
