"""The certificate of a sweep's scheduler, workers and client: without it none of them listens.

Dask runs whatever it is sent, as the user who started it, and every account of a machine can
connect to its ports, also on 127.0.0.1.  So each side proves that it holds the key.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from cryptography import x509
from distributed.security import Security

from pgservers.errors import StudyError

CERTIFICATE, KEY = "certificate.pem", "key.pem"


def make_certificates(directory: Path) -> None:
    """Make a directory with a self-signed certificate, valid for a year, and its key.

    Both files are readable by their owner alone.  Raises StudyError if the directory cannot be
    made, or has files already.
    """
    made = Security.temporary()
    directory = directory.expanduser().absolute()
    try:
        aside = Path(tempfile.mkdtemp(prefix=".certificates-", dir=directory.parent))
        try:
            for name, text in ((CERTIFICATE, made.tls_ca_file), (KEY, made.tls_client_key)):
                (aside / name).touch(0o600)  # before it has content
                (aside / name).write_text(text)
            aside.rename(directory)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise StudyError(
            f"The certificates cannot be made in {directory} ({error.strerror}): "
            f"name a new directory, in one you may write to."
        ) from None


def credentials(
    address: str, directory: Path | None, role: Literal["client", "worker", "scheduler"]
) -> Security:
    """The credentials of a scheduler, a worker or a client for this address.

    They come from ``make_certificates``' ``directory``, or without one from Dask's configuration.
    Raises StudyError if they are missing or invalid, or if the address is not encrypted.
    """
    if not address.startswith("tls://"):
        raise StudyError(
            f"{address} must begin with tls://, because anyone who can connect to an unprotected "
            f"port of Dask can run programs as you: {_HOW}"
        )
    security = Security(require_encryption=True) if directory is None else _read(directory)
    try:
        encrypts = security.get_connection_args(role)["ssl_context"] is not None
    except (OSError, ValueError) as error:
        raise StudyError(
            f"The certificate {directory or 'that Dask is configured with'} cannot be used "
            f"({error}): {_HOW}"
        ) from None
    if not encrypts:
        raise StudyError(f"A {role} of a sweep needs a certificate, and none is given: {_HOW}")
    return security


_HOW = (
    "`pgstudies sweep --make-certificates DIR` makes a certificate, which scheduler, workers and "
    "sweep take as --certificates DIR."
)


def _read(directory: Path) -> Security:
    certificate, key = (directory.expanduser().absolute() / name for name in (CERTIFICATE, KEY))
    try:
        open_to = stat.S_IMODE(key.stat().st_mode) & 0o077
        until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no certificate"
        raise StudyError(f"{directory} holds no certificate to use ({reason}): {_HOW}") from None
    if open_to:
        raise StudyError(f"Other accounts may read {key}, so it does not protect anything: {_HOW}")
    if until < datetime.now(UTC):
        raise StudyError(f"The certificate in {directory} ended on {until:%Y-%m-%d}: {_HOW}")
    files = {"cert": str(certificate), "key": str(key)}
    roles = ("client", "scheduler", "worker")
    own = {f"tls_{role}_{kind}": file for role in roles for kind, file in files.items()}
    return Security(require_encryption=True, tls_ca_file=str(certificate), **own)
