"""Server settings: whether two spellings of a value mean the same, and who may set them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_MEMORY = {"B": 1, "kB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_TIME = {"us": 1, "ms": 10**3, "s": 10**6, "min": 6 * 10**7, "h": 36 * 10**8, "d": 864 * 10**8}
_FACTORS = _MEMORY | _TIME
_NUMBER = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]*)\s*")

# Where a server's files are and how to reach it says nothing about its speed; some hold secrets.
NOT_RECORDED = [
    "application_name",
    "archive_cleanup_command",
    "archive_command",
    "client_encoding",
    "config_file",
    "data_directory",
    "dynamic_library_path",
    "extension_control_path",
    "external_pid_file",
    "hba_file",
    "ident_file",
    "krb_server_keyfile",
    "listen_addresses",
    "log_directory",
    "port",
    "primary_conninfo",
    "recovery_end_command",
    "restore_command",
    "search_path",
    "ssl_ca_file",
    "ssl_cert_file",
    "ssl_crl_dir",
    "ssl_crl_file",
    "ssl_key_file",
    "ssl_passphrase_command",
    "unix_socket_directories",
]
"""Settings that are left out of the list of non-default ones."""


def same_value(wanted: str, actual: str, vartype: str, unit: str | None) -> bool:
    """Whether ``wanted``, as a user writes it, is ``actual``, as pg_settings.setting gives it.

    ``vartype`` and ``unit`` are the columns of pg_settings.
    """
    if vartype == "bool":
        return _boolean(wanted) == _boolean(actual)
    if vartype in {"integer", "real"}:
        return _in_base_units(wanted, unit) == _in_base_units(actual, unit)
    if vartype == "enum":
        return wanted.strip().lower() == actual.lower()
    return wanted == actual


def merged(base: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Both, with lower-case names; ``more`` wins."""
    return {name.lower(): str(value) for name, value in [*base.items(), *more.items()]}


def startup_options(settings: Mapping[str, str]) -> str:
    """The settings as libpq's ``options``, with spaces and backslashes escaped."""
    escaped = ((name, re.sub(r"([\\\s])", r"\\\1", str(value))) for name, value in settings.items())
    return " ".join(f"-c {name}={value}" for name, value in escaped)


def _boolean(text: str) -> bool | str:
    word = text.strip().lower()
    if word in {"1", "on"} or (word and ("true".startswith(word) or "yes".startswith(word))):
        return True
    if word in {"0", "of", "off"} or (word and ("false".startswith(word) or "no".startswith(word))):
        return False
    return word


def _in_base_units(text: str, unit: str | None) -> float | str:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    number, own_unit = float(match[1]), match[2]
    size = re.fullmatch(r"([0-9]*)([A-Za-z]*)", unit or "")
    base = int(size[1] or 1) * _FACTORS.get(size[2], 1) if size else 1
    return number * _FACTORS[own_unit] if own_unit in _FACTORS else number * base
