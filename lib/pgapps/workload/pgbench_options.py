"""A command line of pgbench's own, as a workload and its parameters."""

from __future__ import annotations

import getopt
import json
import shlex
from pathlib import Path
from typing import NamedTuple

from pgservers.errors import StudyError

from .scripts import BUILT_IN

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
    """A workload's directory, or a script of pgbench's own; parameters; options left to us."""

    directory: str
    parameters: dict[str, str]
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
    parameters, defines, mix = {"protocol": "simple"}, [], []
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
        parameters["define"] = json.dumps(defines)
    if mix:
        parameters["mix"] = json.dumps(mix)
    return Asked(home, parameters, ours)
