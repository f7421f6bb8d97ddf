# SPDX-License-Identifier: GPL-2.0-only
"""Which suites are read, and whose keys are believed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from wakescope.testbox import offers
from wakescope.testbox.apt import ArchiveError, Source
from wakescope.testbox.distributions import DEBIAN, UBUNTU, Distribution
from wakescope.testbox.offers import all_offers, trusted_keyring

from .conftest import Archive, record

pytestmark = pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt on this host")
needs_gpg = pytest.mark.skipif(not shutil.which("gpg"), reason="no gpg on this host")


def signing_key(folder: Path) -> Path:
    """A keyring with a new key of its own; sign() signs with it."""
    folder.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", folder, "--batch", "--quiet", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-gen-key", "t@t", "ed25519", "sign"], check=True, capture_output=True)
    keyring = folder / "archive-keyring.gpg"
    subprocess.run([*gpg, "--output", keyring, "--export"], check=True, capture_output=True)
    return keyring


def sign(keyring: Path, archive: Archive, suite: str, packages: str) -> None:
    """Let an archive hold a suite of packages that is signed with a keyring's key."""
    digest = hashlib.sha256(packages.encode()).hexdigest()
    release = (
        f"Suite: {suite}\nCodename: {suite}\nComponents: main\n"
        f"SHA256:\n {digest} {len(packages)} main/binary-amd64/Packages\n"
    )
    gpg = ["gpg", "--homedir", keyring.parent, "--batch", "--quiet", "--clearsign"]
    done = subprocess.run(gpg, input=release.encode(), check=True, capture_output=True)
    archive.files[f"/dists/{suite}/InRelease"] = done.stdout
    archive.files[f"/dists/{suite}/main/binary-amd64/Packages"] = packages.encode()


def distribution(base: Distribution, keyring: Path, suites: tuple[str, ...] = ("x",)) -> Distribution:
    """A distribution with its keys elsewhere, and packages from the suite x of another."""
    return replace(base, keyrings=(keyring,), suites=suites, lender=replace(base.lender, suite="x", component="main"))


@pytest.fixture
def ours(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """A Debian whose archive and keys are the test's."""
    monkeypatch.setattr(offers, "host_archives", lambda distribution: {"main": archive.uri})
    return distribution(DEBIAN, signing_key(tmp_path / "ours"))


def keyring_package(archive: Archive, keyring: Path, folder: Path) -> str:
    """The record of a package in archive that has a keyring at its path."""
    tree = folder / "tree"
    copy = tree / keyring.relative_to("/")
    copy.parent.mkdir(parents=True)
    shutil.copy(keyring, copy)
    (tree / "DEBIAN").mkdir()
    control = "Package: ubuntu-keyring\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t>\nDescription: t\n"
    (tree / "DEBIAN/control").write_text(control)
    subprocess.run(["dpkg-deb", "--build", tree, folder / "k.deb"], check=True, capture_output=True)
    content = (folder / "k.deb").read_bytes()
    archive.files["/pool/ubuntu-keyring.deb"] = content
    return record("ubuntu-keyring", "1", len(content), hashlib.sha256(content).hexdigest())


@needs_gpg
def test_another_distributions_keys_come_through_keys_the_host_has(
    ours: Distribution, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours signs the index that has the hash of the package with theirs, which signs theirs."""
    theirs = signing_key(tmp_path / "theirs")
    kernel = [record(f"linux-{part}-5.15.0-1-generic", "5.15.0-1.1") for part in ("image-unsigned", "modules")]
    older = [record(f"linux-{part}-5.15.0-0-generic", "5.15.0-0.1") for part in ("image-unsigned", "modules")]
    sign(theirs, archive, "y", "\n".join(kernel + older))
    sign(ours.keyrings[0], archive, "x", keyring_package(archive, theirs, tmp_path))
    theirs.rename(theirs.with_suffix(".away"))  # the host does not have it
    ubuntu = distribution(UBUNTU, theirs, ("y", "gone"))
    monkeypatch.setattr(offers, "DISTRIBUTIONS", (ours, ubuntu))
    found, missing = all_offers(tmp_path / "state", lambda _: None)
    assert [offer.release for offer in found] == ["5.15.0-1-generic"]  # the newest of its series
    assert list(missing) == ["gone"]
    kept = tmp_path / "state/keyrings/Ubuntu"
    assert trusted_keyring(ubuntu, tmp_path / "state", lambda _: None) == kept / theirs.relative_to("/")
    assert not list(kept.glob("*.deb"))


@needs_gpg
def test_an_index_signed_by_another_key_is_refused(
    ours: Distribution, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign(signing_key(tmp_path / "another"), archive, "x", record("linux-image-6.1.0-1-amd64", "6.1.1-1"))
    monkeypatch.setattr(offers, "DISTRIBUTIONS", (ours,))
    found, missing = all_offers(tmp_path / "state", lambda _: None)
    assert found == []
    assert "NO_PUBKEY" in missing["x"] or "not signed" in missing["x"]


def test_without_any_key_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = distribution(DEBIAN, tmp_path / "none.gpg", ("y",))
    ubuntu = distribution(UBUNTU, tmp_path / "none.gpg", ("x",))
    monkeypatch.setattr(offers, "DISTRIBUTIONS", (debian, ubuntu))
    with pytest.raises(ArchiveError, match="install ubuntu-keyring"):
        trusted_keyring(ubuntu, tmp_path, lambda _: None)
    found, missing = all_offers(tmp_path, lambda _: None)
    assert found == []
    assert "install debian-archive-keyring" in missing["y"]
    assert "install ubuntu-keyring" in missing["x"]


def test_a_lender_without_the_keys_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours.gpg").touch()
    debian, ubuntu = distribution(DEBIAN, tmp_path / "ours.gpg"), distribution(UBUNTU, tmp_path / "none.gpg")
    monkeypatch.setattr(offers, "DISTRIBUTIONS", (debian, ubuntu))
    asked: list[Source] = []

    def empty(source: Source, state: Path, names: str) -> str:
        asked.append(source)
        return ""

    monkeypatch.setattr(offers, "read_packages", empty)
    with pytest.raises(ArchiveError, match="has no package ubuntu-keyring"):
        trusted_keyring(ubuntu, tmp_path, lambda _: None)
    assert asked[0].keyring == tmp_path / "ours.gpg"
