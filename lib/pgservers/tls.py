"""TLS for client programs that are built without it, such as the embedded server's pg_dump."""

from __future__ import annotations

import asyncio
import ssl
import struct
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from .errors import ServerError
from .files import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

    import psycopg

_SSL_REQUEST = struct.pack("!II", 8, 80877103)
"""The message by which a client asks for TLS; the server answers S."""

_PORT = "5432"

_CHUNK_BYTES = 1 << 16

_LONGEST_S = 30.0


@contextmanager
def without_tls(
    connection: psycopg.Connection[Any], environment: Mapping[str, str]
) -> Iterator[Mapping[str, str]]:
    """The PG* variables by which a program reaches the session's server without TLS of its own.

    They are ``environment`` unless the session uses TLS.  If it does, they name a Unix socket that
    only this account can enter; what is sent to it is sent on by TLS, with the certificates that
    the session's parameters ask for.  Raises ServerError if there can be no such socket.
    """
    if not connection.pgconn.ssl_in_use:
        yield environment
        return
    info = connection.info
    try:
        context = _context(info.get_parameters())
    except (OSError, ssl.SSLError) as error:
        raise ServerError(f"The certificates of the address cannot be read: {error}.") from error
    host = info.hostaddr or info.host

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Without an answer the program has no session, and says so.
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError):
            far_reader, far_writer = await asyncio.open_connection(host, info.port)
            with closing(far_writer):
                far_writer.write(_SSL_REQUEST)
                if await far_reader.readexactly(1) == b"S":
                    await far_writer.start_tls(context, server_hostname=info.host)
                    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    with (
        temporary_directory() as directory,
        serving(asyncio.start_unix_server(relay, directory / f".s.PGSQL.{_PORT}")),
    ):
        ours = {"PGHOST": str(directory), "PGPORT": _PORT}
        yield {n: v for n, v in environment.items() if n not in _OF_TLS} | ours


_OF_TLS = {
    *("PGHOSTADDR", "PGSSLMODE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY", "PGSSLCRL"),
    *("PGCHANNELBINDING", "PGGSSENCMODE"),
}


def _context(parts: Mapping[str, str]) -> ssl.SSLContext:
    """What libpq does with these parameters; raises OSError for a file that cannot be read."""
    of_user = Path("~/.postgresql").expanduser()
    mode, root = parts.get("sslmode", "prefer"), parts.get("sslrootcert", "")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full" or root == "system"
    file = Path(root) if root else of_user / "root.crt"
    if root == "system":
        context.load_default_certs()
    elif mode.startswith("verify") or file.exists():
        context.load_verify_locations(file)
    else:
        context.verify_mode = ssl.CERT_NONE
    if crl := parts.get("sslcrl"):
        context.load_verify_locations(crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    own = Path(parts.get("sslcert") or of_user / "postgresql.crt")
    if own.exists():
        context.load_cert_chain(own, parts.get("sslkey") or own.with_suffix(".key"))
    return context


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send on what arrives, until it ends."""
    with suppress(OSError):
        while part := await reader.read(_CHUNK_BYTES):
            writer.write(part)
            await writer.drain()
    writer.close()


@contextmanager
def serving(starting: Coroutine[Any, Any, asyncio.Server]) -> Iterator[asyncio.Server]:
    """Run a server of asyncio in a thread; raises ServerError if it cannot be started."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="tls", daemon=True)

    def end() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LONGEST_S)
        loop.close()

    async def stop() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next round

    with ExitStack() as stack:
        thread.start()
        stack.callback(end)
        try:
            server = asyncio.run_coroutine_threadsafe(starting, loop).result(_LONGEST_S)
        except OSError as error:
            raise ServerError(f"No socket can be opened here: {error}.") from error
        stack.callback(lambda: asyncio.run_coroutine_threadsafe(stop(), loop).result(_LONGEST_S))
        yield server
