# SPDX-License-Identifier: GPL-2.0-only
"""The initramfs: its format as cpio reads it, and what is in it."""

from __future__ import annotations

import lzma
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pytest
from wakescope.testbox import initrd
from wakescope.testbox.initrd import BoxSetupError, Entry, build, cpio, module_depends, module_name, needed_modules


def unpack(archive: bytes, folder: Path) -> None:
    """Unpack with busybox, the other reader of this format (the kernel is the one that matters)."""
    folder.mkdir()
    subprocess.run(["busybox", "cpio", "-i", "-d", "-m"], input=archive, cwd=folder, capture_output=True, check=True)


def module(depends: str) -> bytes:
    """The smallest ELF file with a .modinfo section: header, section names, .modinfo, section headers."""
    names = b"\0.shstrtab\0.modinfo\0"
    info = f"license=GPL\0depends={depends}\0name=x\0".encode()
    headers = 64 + len(names) + len(info)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, headers, 0, 64, 0, 0, 64, 3, 1)
    section = struct.Struct("<IIQQQQIIQQ")
    sections = section.pack(*[0] * 10)
    sections += section.pack(1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    sections += section.pack(11, 1, 0, 0, 64 + len(names), len(info), 0, 0, 1, 0)
    return header + names + info + sections


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A modules folder whose 9p needs 9pnet, which needs netfs; packed, plain, and one that is built in."""
    folder = tmp_path / "modules"
    for name, depends, packed in [
        ("fs/9p/9p.ko.xz", "9pnet,netfs", True),
        ("net/9p/9pnet.ko", "netfs", False),
        ("fs/netfs/netfs.ko.xz", "", True),
        ("net/9p/9pnet_virtio.ko", "9pnet,virtio", False),
        ("drivers/char/virtio-console.ko", "", False),
        ("fs/ext4/ext4.ko", "", False),
    ]:
        path = folder / "kernel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(module(depends)) if packed else module(depends))
    return folder


def test_an_archive_is_read_back(tmp_path: Path) -> None:
    files = {
        "dir": Entry(stat.S_IFDIR | 0o755),
        "dir/odd": Entry(stat.S_IFREG | 0o640, b"12345"),
        "dir/link": Entry(stat.S_IFLNK | 0o777, b"odd"),
        "empty": Entry(stat.S_IFREG | 0o755),
    }
    unpack(cpio(files), tmp_path / "out")
    assert (tmp_path / "out/dir/odd").read_bytes() == b"12345"
    assert stat.S_IMODE((tmp_path / "out/dir/odd").stat().st_mode) == 0o640
    assert (tmp_path / "out/dir/link").readlink() == Path("odd")
    assert (tmp_path / "out/empty").stat().st_size == 0


def test_modules_come_after_those_they_need(modules: Path) -> None:
    order = list(needed_modules(modules))
    assert sorted(order) == ["9p", "9pnet", "9pnet_virtio", "netfs", "virtio_console"]
    assert order.index("netfs") < order.index("9pnet") < order.index("9p")
    assert order.index("9pnet") < order.index("9pnet_virtio")


def test_a_module_is_unpacked_and_named_as_the_kernel_names_it(modules: Path) -> None:
    assert needed_modules(modules)["9p"] == module("9pnet,netfs")
    assert module_name(Path("a/virtio-rng.ko.zst")) == "virtio_rng"
    assert module_depends(module("a-b,c")) == ["a_b", "c"]
    assert module_depends(module("")) == []


def test_a_damaged_module_is_said(modules: Path) -> None:
    (modules / "kernel/net/9p/9pnet.ko").write_bytes(b"not a module")
    with pytest.raises(BoxSetupError, match="damaged"):
        needed_modules(modules)


def test_an_initramfs_holds_scripts_and_modules(modules: Path, tmp_path: Path) -> None:
    unpack(build(modules, "settings\n", b"command\n"), tmp_path / "out")
    assert (tmp_path / "out/box/settings").read_text() == "settings\n"
    assert (tmp_path / "out/box/command").read_text() == "command\n"
    order = (tmp_path / "out/modules/order").read_text().split()
    assert {path.name for path in (tmp_path / "out/modules").iterdir()} == {*order, "order"}
    assert (tmp_path / "out/init").stat().st_mode & stat.S_IXUSR
    assert (tmp_path / "out/bin/sh").readlink() == Path("busybox")


def test_a_kernel_without_modules_needs_none(tmp_path: Path) -> None:
    unpack(build(None, "", b""), tmp_path / "out")
    assert (tmp_path / "out/modules/order").read_text() == ""


@pytest.mark.parametrize("script", ["init.sh", "main.sh", "settings.sh", "vng.sh"])
def test_scripts_are_shell(script: str) -> None:
    path = Path(initrd.__file__).parent / script
    for shell in (["sh"], ["busybox", "sh"]):
        subprocess.run([*shell, "-n", path], check=True)


def test_every_applet_is_in_busybox() -> None:
    listed = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    assert set(initrd._APPLETS.split()) | {"sleep", "setsid", "stty"} <= set(listed)


def test_a_busybox_that_is_not_static_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: "/bin/sh")
    with pytest.raises(BoxSetupError, match="busybox-static"):
        initrd.static_busybox()
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with pytest.raises(BoxSetupError, match="busybox-static"):
        initrd.static_busybox()
