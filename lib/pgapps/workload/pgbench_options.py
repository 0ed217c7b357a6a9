"""A command line of pgbench's own, as a workload and its parameters."""

from __future__ import annotations

import getopt
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pgservers.errors import StudyError

from .scripts import BUILT_IN, read_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SHORT = "iI:h:nvp:dqb:SNc:j:Crs:t:T:U:lf:D:F:M:P:R:L:"

_LONG = {
    "builtin=": "-b",
    "client=": "-c",
    "define=": "-D",
    "file=": "-f",
    "protocol=": "-M",
    "random-seed=": "--random-seed",
    "scale=": "-s",
    "select-only": "-S",
    "skip-some-updates": "-N",
    # It is up to us how long it runs, what it reports, and where.
    "aggregate-interval=": "",
    "dbname=": "",
    "debug": "",
    "failures-detailed": "",
    "host=": "",
    "jobs=": "",
    "log": "",
    "log-prefix=": "",
    "no-vacuum": "",
    "port=": "",
    "progress=": "",
    "progress-timestamp": "",
    "quiet": "",
    "report-latencies": "",
    "report-per-command": "",
    "sampling-rate=": "",
    "time=": "",
    "transactions=": "",
    "username=": "",
    "vacuum-all": "",
    "verbose-errors": "",
}

_OURS = {f"-{letter}" for letter in "hnvpdqjrtTUlP"} | {
    f"--{name.rstrip('=')}" for name, short in _LONG.items() if not short
}

_PARAMETERS = {"-c": "clients", "-M": "protocol", "-s": "scale", "--random-seed": "seed"}

_REFUSED = {
    "-i": "pgbench's tables are created where a script uses them: leave it out, and keep -s",
    "-I": "pgbench's tables are created where a script uses them",
    "-F": "pgbench's tables have the usual fillfactor",
    "-C": "sessions are opened once",
    "-R": "turns run as fast as they can",
    "-L": "every transaction counts",
}


class Asked(NamedTuple):
    """A workload's directory or a built-in script; parameters; options that we handle."""

    directory: str
    parameters: dict[str, Any]
    ours: list[str]


def asked(line: str, directory: str | None) -> Asked:
    """What a command line of pgbench asks for; scripts without a path are in the ``directory``.

    pgbench sends statements by the simple protocol unless told otherwise, and so do we then.
    Raises StudyError for an option that pgbench or we do not have, and for files in several places.
    """
    try:
        words = shlex.split(line)
        begin = int(bool(words) and Path(words[0]).name == "pgbench")
        options, rest = getopt.gnu_getopt(words[begin:], _SHORT, list(_LONG))
    except (ValueError, getopt.GetoptError) as error:
        raise StudyError(f"This pgbench command line cannot be measured: {error}.") from None
    parameters: dict[str, Any] = {"protocol": "simple"}
    defines, mix = [], []
    homes: set[Path] = set()
    ours = [*rest]
    for given, value in options:
        name = _LONG.get(f"{given[2:]}=") or _LONG.get(given[2:]) or given
        if why := _REFUSED.get(name):
            raise StudyError(f"pgbench's {given} cannot be used in a comparison: {why}.")
        if name in _OURS:
            ours.append(f"{given} {value}".strip())
        elif name in _PARAMETERS:
            parameters[_PARAMETERS[name]] = value
        elif name == "-D":
            defines.append(value)
        elif name == "-f":
            file, at, weight = value.rpartition("@") if "@" in value else (value, "", "")
            script = Path(file).expanduser()
            if directory is None or script.parent != Path():
                homes.add(script.absolute().parent)
            mix.append(f"{script.name.removesuffix('.sql')}{at}{weight}")
        else:
            builtin = {"-S": "select-only", "-N": "simple-update"}.get(name, value)
            mix.append(f"{BUILT_IN}{builtin}")
    homes |= {Path(directory).expanduser().absolute()} if directory else set()
    if len(homes) > 1:
        places = ", ".join(sorted(map(str, homes)))
        raise StudyError(f"The scripts of a mix must be in one directory, not in {places}.")
    home = str(homes.pop()) if homes else (mix or [f"{BUILT_IN}tpcb-like"])[0].partition("@")[0]
    if defines:
        parameters["define"] = defines
    if mix:
        parameters["mix"] = mix
    return Asked(home, parameters, ours)


def parameters_of(
    workload: str | None,
    line: str | None,
    parameters: Mapping[str, Any],
    tell: Callable[[str], object],
) -> dict[str, Any]:
    """The parameters of a workload that is named, by a command line of pgbench, or by both.

    What was given in ``parameters`` goes before the line's.  Raises StudyError for a line as of
    ``asked``, and for a workload that cannot be read.
    """
    of_line: dict[str, Any] = {}
    if line is not None:
        workload, of_line, ours = asked(line, workload)
        if ours:
            tell(f"Ignoring {', '.join(ours)}: turns take about 100 ms each (-p turn_ms).")
    assert workload is not None
    if not workload.startswith(BUILT_IN):
        workload = str(Path(workload).expanduser().absolute())
    read_workload(workload)  # what is wrong there, now
    return {**of_line, **parameters, "directory": workload}
