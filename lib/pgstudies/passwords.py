"""Passwords in the address of a server: whether there is one, and where it would stand."""

from __future__ import annotations

from .errors import ServerError

SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
"""What must not get into a notebook, by libpq's names."""


def holds_password(server: str) -> bool:
    """Whether the address of a server holds a secret, or may hold one for all we can tell."""
    if "=" not in server and "://" not in server:
        return False
    from .addresses import is_dsn, parse_dsn  # noqa: PLC0415  (imports psycopg)

    try:
        return is_dsn(server) and any(parse_dsn(server).get(name) for name in SECRETS)
    except ServerError:
        return True
