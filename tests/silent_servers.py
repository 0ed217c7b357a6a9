"""Servers that accept and then do not go on as PostgreSQL does, on a port of 127.0.0.1."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


def message(kind: bytes, content: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content


def error(text: str, code: str = "08P01") -> bytes:
    fields = (("S", "FATAL"), ("V", "FATAL"), ("C", code), ("M", text))
    return message(b"E", b"".join(f"{k}{v}\0".encode() for k, v in fields) + b"\0")


def described(columns: int) -> bytes:
    """A RowDescription of so many columns of text."""
    column = b"c\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0)
    return message(b"T", struct.pack("!h", columns) + column * columns)


def row(*values: str) -> bytes:
    fields = b"".join(struct.pack("!i", len(v.encode())) + v.encode() for v in values)
    return message(b"D", struct.pack("!h", len(values)) + fields)


AUTHENTICATED = message(b"R", struct.pack("!i", 0))
READY = message(b"Z", b"I")
NOTICE = message(b"N", b"SNOTICE\0VNOTICE\0C00000\0Mwell\0\0")
STARTED = (
    AUTHENTICATED
    + b"".join(
        message(b"S", f"{name}\0{value}\0".encode())
        for name, value in {
            "server_version": "16.4",
            "server_encoding": "UTF8",
            "client_encoding": "UTF8",
            "standard_conforming_strings": "on",
            "integer_datetimes": "on",
            "DateStyle": "ISO, MDY",
        }.items()
    )
    + message(b"K", struct.pack("!ii", 4711, 1))
    + READY
)
PARSED = message(b"1") + message(b"2")


def answer(columns: int, *rows: bytes) -> bytes:
    """All of an answer by the extended protocol."""
    complete = message(b"C", b"SELECT 1\0")
    return PARSED + described(columns) + b"".join(rows) + complete + READY


class Line:
    """A client of such a server."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.queries: list[str] = []

    def send(self, *messages: bytes) -> None:
        self._line.sendall(b"".join(messages))

    def send_for_ever(self, content: bytes) -> None:
        content *= max(1, (1 << 16) // len(content))
        while True:
            self._line.sendall(content)

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            more = self._line.recv(size - len(content))
            if not more:
                raise OSError("gone")
            content += more
        return content

    def startup(self) -> dict[str, str]:
        """What is in the start-up packet; requests for encryption are refused first."""
        while True:
            size, code = struct.unpack("!ii", self._read(8))
            content = self._read(size - 8)
            if code not in {_SSL_REQUEST, _GSS_REQUEST}:
                words = content.decode().split("\0")
                return dict(zip(words[::2], words[1::2], strict=False))
            self.send(b"N")

    def query(self) -> str:
        """The next statement, when all of its messages have come."""
        found = ""
        while True:
            kind, size = struct.unpack("!ci", self._read(5))
            content = self._read(size - 4)
            if kind == b"Q":
                return content.rstrip(b"\0").decode()
            if kind == b"P":
                found = content.split(b"\0")[1].decode()
            if kind == b"S":
                return found
            if kind == b"X":
                raise OSError("gone")

    def wait(self) -> None:
        """Be silent until the client goes."""
        while self._line.recv(1 << 16):
            pass


@contextmanager
def serving(behaviour: Callable[[Line], None]) -> Iterator[str]:
    """The address of a server that does this with everybody who connects."""
    lines = []

    def serve_one(line: socket.socket) -> None:
        with line, suppress(OSError):
            behaviour(Line(line))

    def serve_all(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                line, _ = listener.accept()
                lines.append(line)
                threading.Thread(target=serve_one, args=[line], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve_all, args=[listener], daemon=True).start()
        yield f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/shop"
        listener.shutdown(socket.SHUT_RDWR)
    for line in lines:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def silent(line: Line) -> None:
    line.wait()


def silent_after_tls_is_refused(line: Line) -> None:
    line._read(8)
    line.send(b"N")
    line.wait()


def answering(
    begun: bytes, answer: bytes | None = None, *, for_ever: bytes = b""
) -> Callable[[Line], None]:
    """Sends ``begun``, then ``answer`` to the first query, and then the rest or nothing more."""

    def behave(line: Line) -> None:
        line.startup()
        line.send(begun)
        if answer is not None:
            line.query()
            line.send(answer)
        if for_ever:
            line.send_for_ever(for_ever)
        line.wait()

    return behave


silent_at_the_first_query = answering(STARTED)
endless_rows = answering(STARTED, PARSED + described(1), for_ever=row("x" * 1000))

SILENT = [
    silent,
    silent_after_tls_is_refused,
    answering(AUTHENTICATED),
    silent_at_the_first_query,
    answering(STARTED, PARSED + described(1)[:-3]),  # half a message
    answering(AUTHENTICATED, for_ever=NOTICE),
    answering(STARTED, b"", for_ever=NOTICE),
    endless_rows,
]


def lying(columns: int, values: int | None = None, first: str = "") -> Callable[[Line], None]:
    """Answers every query but the first with a row of so many columns."""

    def behave(line: Line) -> None:
        line.startup()
        line.send(STARTED)
        line.query()
        line.send(answer(1, row(first)))
        while True:
            line.query()
            line.send(answer(columns, row(*["7"] * (columns if values is None else values))))

    return behave


def pooler(line: Line) -> None:
    line.startup()
    line.send(error("unsupported startup parameter: options"))
