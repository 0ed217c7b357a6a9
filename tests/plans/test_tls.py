"""A server that is reached by TLS alone, and client programs that have none."""

from __future__ import annotations

import asyncio
import ssl
import struct
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pgapps.plans.foresee import foresee
from pgapps.plans.queries import Query
from pgapps.plans.source import opened
from pgservers.errors import ServerError
from pgservers.tls import _context, pump, serving, without_tls
from tests.plans.servers import address_of
from tests.servers_at_hand import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SSL_REQUEST = 80877103


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of localhost, with its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = tmp_path / "server.crt"
    made.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.with_suffix(".key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


@contextmanager
def by_tls(socket: str, certificate: Path) -> Iterator[tuple[int, list[str]]]:
    """A port that takes TLS alone and leads to a server's socket; the ciphers of its sessions."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    seen: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError):
            while struct.unpack("!II", await reader.readexactly(8))[1] != SSL_REQUEST:
                writer.write(b"N")  # to GSSAPI
            writer.write(b"S")
            await writer.start_tls(context)
            seen.append(str(writer.get_extra_info("cipher")))
            near = await asyncio.open_unix_connection(socket)
            with closing(near[1]):
                await asyncio.gather(pump(reader, near[1]), pump(near[0], writer))

    with serving(asyncio.start_server(handle, "localhost", 0)) as server:
        yield server.sockets[0].getsockname()[1], seen


def test_plans_of_a_server_that_is_reached_by_tls_alone(certificate: Path) -> None:
    with embedded({"fsync": "off"}) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t AS SELECT i FROM generate_series(1, 1000) i")
            connection.execute("ANALYZE t")
        place = psycopg.conninfo.conninfo_to_dict(address_of(server))
        with by_tls(f"{place['host']}/.s.PGSQL.5432", certificate) as (port, seen):
            where = f"{place['user']}@localhost:{port}/{place['dbname']}"
            verified = f"sslmode=verify-full&sslrootcert={certificate}"
            with opened(f"postgresql://{where}?{verified}") as source:
                before = len(seen)
                asked = [Query("q", "SELECT i FROM t WHERE i = $1")]
                (query,) = foresee(source, asked, to="embedded").queries
                assert len(seen) > before, "pg_dump took another way"
            assert query.verdict == "same"
            assert query.after
            with (
                pytest.raises(ServerError, match="certificate"),
                opened(f"postgresql://{where}?sslmode=verify-full&sslrootcert=/dev/null"),
            ):
                pass


@pytest.mark.parametrize(("name", "is_reached"), [("localhost", True), ("elsewhere", False)])
def test_nothing_is_sent_to_a_server_of_another_name(
    certificate: Path, name: str, is_reached: bool
) -> None:
    asked = {"sslmode": "verify-full", "sslrootcert": str(certificate)}
    with by_tls("/nowhere", certificate) as (port, seen):
        info = SimpleNamespace(host=name, hostaddr="localhost", port=port)
        info.get_parameters = lambda: asked
        session: Any = SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=True), info=info)
        with without_tls(session, {"PGUSER": "me", "PGSSLMODE": "verify-full"}) as address:
            assert address.keys() == {"PGUSER", "PGHOST", "PGPORT"}
            with pytest.raises(psycopg.OperationalError, match="closed the connection"):
                psycopg.connect(host=address["PGHOST"], port=address["PGPORT"], user="me")
        assert bool(seen) == is_reached


def test_certificates_are_verified_as_libpq_does(certificate: Path) -> None:
    required = _context({"sslmode": "require"})
    assert required.verify_mode == ssl.CERT_NONE
    of_ca = _context({"sslmode": "verify-ca", "sslrootcert": str(certificate)})
    assert (of_ca.verify_mode, of_ca.check_hostname) == (ssl.CERT_REQUIRED, False)
    named = _context({"sslmode": "require", "sslrootcert": str(certificate)})
    assert named.verify_mode == ssl.CERT_REQUIRED
    full = _context({"sslmode": "verify-full", "sslrootcert": str(certificate)})
    assert (full.verify_mode, full.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert _context({"sslrootcert": "system"}).check_hostname
    with pytest.raises(FileNotFoundError):
        _context({"sslmode": "verify-ca", "sslrootcert": "/nonexistent"})
