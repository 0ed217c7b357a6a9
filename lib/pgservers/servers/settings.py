"""Server settings: whether two spellings of a value mean the same, and who may set them."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import psutil
import psycopg

from ..errors import CannotRun, StudyError
from ..files import read_text, temporary_directory
from ..programs.accounts import server_environment
from ..programs.locales import locale_environment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow

    from ..programs.installations import Binaries


_MEMORY = {"B": 1, "kB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}

_TIME = {"us": 1, "ms": 10**3, "s": 10**6, "min": 6 * 10**7, "h": 36 * 10**8, "d": 864 * 10**8}

_FACTORS = _MEMORY | _TIME
_NUMBER = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]*)\s*")

BLOCK_BYTES = 8192
"""A page of the server, which is the unit of shared_buffers."""

_GRANTS_SETTINGS = 150000
"""From here on a superuser's settings can be granted to others."""

# Places of files and addresses say nothing about a server's speed; some hold secrets.
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
    "hosts_file",
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
    "unix_socket_directory",
]
"""Settings that are left out of the list of non-default ones."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")
_LONGEST_VALUE = 10_000

# A value in quotes may have escapes by backslashes; one without ends where a comment begins.
_SETTING = re.compile(
    r"\s*([A-Za-z_][\w.$]*)\s*(?:=|\s)\s*('(?:[^'\\]|\\.|'')*'|[^#'\s]+)\s*(?:#.*)?"
)

_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)|''")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_INCLUDES = re.compile(r"include(_if_exists|_dir)?")

# We choose where a managed server's files are and how it is reached; includes are no settings.
_OURS = re.compile(
    r"listen_addresses|port|unix_socket_.*|(hba|hosts|ident|config)_file|data_directory|include.*"
)

# Settings that run a program, load a library, name a file or a place, log somewhere else, or call
# another server; by the ends of their names, as every release and every extension adds some.
_REACHES_OUT = re.compile(
    r"(.*[_.])?(commands?|librar(y|ies)|files?|keyfile|filename|dir|director(y|ies)|paths?|destdir"
    r"|tablespaces?|provider|conninfo)|bonjour.*|syslog.*|log_destination|logging_collector"
    r"|log_file_mode|(.*\.)on(_\w+)?_init|(.*\.)start_proc"
)

_HARMLESS = {"search_path", "log_temp_files", "log_replication_commands"}

ENDANGERS_DATA = frozenset(
    {
        "allow_system_table_mods",
        "ignore_checksum_failure",
        "ignore_invalid_pages",
        "zero_damaged_pages",
    }
)
"""Settings that a stranger's file may not set on a server with the user's data."""


def refused(names: Collection[str]) -> list[str]:
    """The settings that a file or a report may not set on a server."""
    ours = [name for name in names if _OURS.fullmatch(name.lower())]
    reaching = [name for name in names if _REACHES_OUT.fullmatch(name.lower())]
    return [n for n in dict.fromkeys(ours + reaching) if n.lower() not in _HARMLESS]


def why_refused(name: str) -> str:
    """The reason why a file may not set that, in a few words."""
    if _INCLUDES.fullmatch(name.lower()):
        return "other files are not read, so put their lines into this one"
    if _OURS.fullmatch(name.lower()):
        return "a managed server is placed and reached in its own way"
    return "it names a program, a file or a place, or calls another server"


def not_taken(binaries: Binaries, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that these programs reject, each with the reason; no server is started."""
    found: dict[str, str] = {}
    size = settings.get("shared_buffers", "")
    amount = _NUMBER.fullmatch(size)
    total = psutil.virtual_memory().total
    is_memory = amount is not None and amount[2] in {"", *_MEMORY}
    if is_memory and setting_bytes(size, unit_bytes=BLOCK_BYTES) > total:
        found["shared_buffers"] = "this machine has less memory"
    with temporary_directory() as directory:
        (directory / "postgresql.conf").touch()
        command = [str(binaries.bindir / "postgres"), "-C", "port", "-D", str(directory)]
        if _complaint(command, settings) is None or _complaint(command, {}) is not None:
            return found  # all are taken, or this account cannot ask
        for name, value in settings.items():
            if name not in found and (complaint := _complaint(command, {name: value})):
                found[name] = complaint
    return found


def _complaint(command: Sequence[str], settings: Mapping[str, str]) -> str | None:
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    done = subprocess.run(
        [*command, *options],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env=server_environment(locale_environment()),
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or ["it said nothing"]
    fatal = next((line for line in lines if "FATAL:" in line or "ERROR:" in line), lines[-1])
    return re.split(r"(?:FATAL|ERROR): +", fatal)[-1].rstrip(".")


def without_refused(settings: dict[str, str], file: str, *, leave_out: bool) -> dict[str, str]:
    """The settings of a file that may be set; raises StudyError for others unless ``leave_out``."""
    found = refused(settings)
    if not found:
        return settings
    kept = {name: value for name, value in settings.items() if name not in found}
    if not leave_out:
        raise StudyError(
            f"{file} sets {', '.join(found)}, which say where a server listens, which files it "
            f"uses or which programs it runs: --leave-out compares without these."
        )
    if not kept:
        raise StudyError(f"{file} has no settings but those left out.")
    return kept


def require_wellformed(settings: Mapping[str, object], where: str) -> dict[str, str]:
    """The same settings by lower-case name; raises StudyError for an invalid name or value."""
    found = {}
    for name, value in settings.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise StudyError(f"{where}: {str(name)[:60]!r} is not a valid setting name.")
        if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST_VALUE:
            raise StudyError(
                f"{where}: the value of {name} must be one line of at most {_LONGEST_VALUE:,} "
                f"characters."
            )
        found[name.lower()] = value
    return found


def read_settings(file: Path, left: dict[str, str] | None = None) -> dict[str, str]:
    """The settings of a file in the form of postgresql.conf, by lower-case name.

    Lines that are no setting go into ``left``, by number and with the reason; without ``left`` they
    raise StudyError, as does a file without settings.
    """
    settings: dict[str, str] = {}
    lines = read_text(file, "a file of settings").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _SETTING.fullmatch(line)
        if found is None:
            if left is None:
                raise StudyError(
                    f"{file}, line {number}: write settings as in postgresql.conf, name = value."
                )
            left[f"line {number}"] = "it is no setting, name = value"
            continue
        name, value = found.groups()
        if value.startswith("'"):
            value = _ESCAPE.sub(_unescaped, value[1:-1])
        settings[name.lower()] = value
    if not settings:
        raise StudyError(f"{file} has no setting.")
    return require_wellformed(settings, str(file))


def _unescaped(escape: re.Match[str]) -> str:
    letter = escape[1]
    if letter is None:
        return "'"
    return chr(int(letter, 8) & 0xFF) if letter[0] in "01234567" else _ESCAPED.get(letter, letter)


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


def setting_bytes(wanted: str, *, unit_bytes: int) -> int:
    """A memory setting such as 16MB, in bytes; a bare number counts units.  Raises CannotRun."""
    match = _NUMBER.fullmatch(wanted)
    if match is None or match[2] not in {"", *_MEMORY}:
        raise CannotRun(f"{wanted!r} is not an amount of memory")
    return int(float(match[1]) * (_MEMORY[match[2]] if match[2] else unit_bytes))


def merged(base: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Both, with lower-case names; ``more`` takes precedence."""
    return {name.lower(): str(value) for name, value in [*base.items(), *more.items()]}


def startup_options(settings: Mapping[str, str]) -> str:
    """The settings as libpq's ``options``, with spaces and backslashes escaped."""
    escaped = ((name, re.sub(r"([\\\s])", r"\\\1", str(value))) for name, value in settings.items())
    return " ".join(f"-c {name}={value}" for name, value in escaped)


def sort_settings(
    connection: psycopg.Connection[TupleRow], settings: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """The settings that this role's sessions can set, and the others' actual value and reason.

    A setting that has the wanted value already is in neither.  Raises CannotRun for a value that
    the server refuses.
    """
    version = f"PostgreSQL {connection.info.parameter_status('server_version')}"
    rows = connection.execute(
        """
        SELECT lower(name), setting, current_setting(name), vartype, unit, context
        FROM pg_settings WHERE lower(name) = ANY (%s)
        """,
        [list(merged({}, settings))],
    ).fetchall()
    known = {row[0]: row[1:] for row in rows}
    settable, out_of_reach = {}, {}
    for name, wanted in merged({}, settings).items():
        if name not in known:
            out_of_reach[name] = (f"not in {version}", f"{version} has no setting {name}")
            continue
        setting, displayed, vartype, unit, context = known[name]
        reason = _reason_not_settable(connection, name, context)
        if reason is None:
            _check_value(connection, name, wanted, context)
            settable[name] = wanted
        elif not same_value(wanted, setting, vartype, unit):
            out_of_reach[name] = (displayed, reason)
    return settable, out_of_reach


def reason_not_settable(connection: psycopg.Connection[TupleRow], name: str) -> str | None:
    """Why this role's sessions cannot set that, or None if they can."""
    query = "SELECT context FROM pg_settings WHERE lower(name) = lower(%s)"
    row = connection.execute(query, [name]).fetchone()
    if row is None:
        version = connection.info.parameter_status("server_version")
        return f"PostgreSQL {version} has no setting {name}"
    return _reason_not_settable(connection, name, row[0])


def _reason_not_settable(
    connection: psycopg.Connection[TupleRow], name: str, context: str
) -> str | None:
    if context in {"user", "backend"}:
        return None
    if context in {"superuser", "superuser-backend"}:
        query = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        if connection.info.server_version >= _GRANTS_SETTINGS:
            query = f"SELECT has_parameter_privilege(%(name)s, 'SET') OR ({query})"
        row = connection.execute(query.encode(), {"name": name}).fetchone()
        return None if row and row[0] else f"setting {name} needs a superuser"
    if context == "postmaster":
        return f"setting {name} needs a restart of the server"
    return f"setting {name} needs a change of the server's configuration"


def _check_value(
    connection: psycopg.Connection[TupleRow], name: str, value: str, context: str
) -> None:
    if context not in {"user", "superuser"}:
        return
    try:
        connection.execute("SELECT set_config(%s, %s, true)", [name, value])
    except psycopg.DataError as error:
        raise CannotRun(str(error.diag.message_primary)) from error


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


def by_known_names(settings: Mapping[str, str], known: Collection[str]) -> Mapping[str, str]:
    """The settings by a release's names: 19 has a minimum and a maximum of io_workers."""
    if "io_workers" in known or "io_workers" not in settings or "io_max_workers" not in known:
        return settings
    others = {name: value for name, value in settings.items() if name != "io_workers"}
    return others | dict.fromkeys(("io_min_workers", "io_max_workers"), settings["io_workers"])
