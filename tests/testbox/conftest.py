# SPDX-License-Identifier: GPL-2.0-only
"""What tests of kernel packages share: an archive on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


def record(package: str, version: str, size: int = 100, digest: str = "ab") -> str:
    """A stanza as apt-cache search --full writes it."""
    return (
        f"Package: {package}\nVersion: {version}\nArchitecture: amd64\nDescription: a kernel\n Package: not a field\n"
        f"Filename: pool/{package}.deb\nSize: {size}\nSHA256: {digest}\n"
    )


class Archive(ThreadingHTTPServer):
    """An archive of files that sends parts of them, but, like some mirrors, no dates that apt could go on by.

    ranges are those asked for; breaks_after is after how many bytes of a file each connection breaks off, stalls_after
    after how many the next one sends nothing more until resume(); sends_parts is whether ranges are heeded.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges: list[str | None] = []
        self.breaks_after: int | None = None
        self.stalls_after: int | None = None
        self.stalled, self._resumed = threading.Event(), threading.Event()
        self.sends_parts = True
        self.uri = f"http://127.0.0.1:{self.server_port}"

    def stall(self) -> None:
        """Say that a connection has stalled, and wait for resume()."""
        self.stalled.set()
        self._resumed.wait()

    def resume(self) -> None:
        """Let what has stalled go on, and stall no more."""
        self.stalls_after = None
        self._resumed.set()


class Handler(BaseHTTPRequestHandler):
    """Answers for an Archive."""

    server: Archive

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.sends_parts else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:][: self.server.breaks_after]
        if self.server.stalls_after is not None:
            self.wfile.write(rest[: self.server.stalls_after])
            self.server.stall()
            return
        self.wfile.write(rest)

    def log_message(self, *said: object) -> None:
        pass


@pytest.fixture
def archive() -> Iterator[Archive]:
    """An archive on loopback that holds nothing yet."""
    with Archive() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
