"""A command line of pgbench as a workload and its parameters."""

from __future__ import annotations

import getopt
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgservers.errors import StudyError

from .scripts import BUILT_IN, read_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SHORT = "iI:h:nvp:dqb:SNc:j:Crs:t:T:U:lf:D:F:M:P:R:L:"

_LONG = (
    "builtin= client= define= file= protocol= random-seed= scale= select-only skip-some-updates "
    "connect fillfactor= init-steps= initialize latency-limit= max-tries= rate= "
    # How long pgbench runs, what it reports, and where:
    "aggregate-interval= dbname= debug failures-detailed host= jobs= log log-prefix= no-vacuum "
    "port= progress= progress-timestamp quiet report-latencies report-per-command sampling-rate= "
    "time= transactions= username= vacuum-all verbose-errors"
)

_SHORT_FORMS = {
    "--builtin": "-b",
    "--client": "-c",
    "--connect": "-C",
    "--define": "-D",
    "--file": "-f",
    "--fillfactor": "-F",
    "--init-steps": "-I",
    "--initialize": "-i",
    "--latency-limit": "-L",
    "--protocol": "-M",
    "--rate": "-R",
    "--scale": "-s",
    "--select-only": "-S",
    "--skip-some-updates": "-N",
}

_PARAMETERS = {"-c": "clients", "-M": "protocol", "-s": "scale", "--random-seed": "seed"}

_REFUSED = {
    "-i": "pgbench's tables are created where a script uses them: leave it out, and keep -s",
    "-I": "pgbench's tables are created where a script uses them",
    "-F": "pgbench's tables have the usual fillfactor",
    "-C": "sessions are opened once",
    "-R": "turns run as fast as they can",
    "-L": "every transaction counts",
    "--max-tries": "a transaction that fails is counted, and not tried again",
}


def asked(line: str, directory: str | None) -> tuple[dict[str, Any], list[str]]:
    """The parameters in a command line of pgbench, and the options in it that are ignored.

    Scripts without a path are in ``directory``; without a script, tpcb-like is run.  As pgbench
    does, statements are sent by the simple protocol unless the line says otherwise.

    Raises StudyError for an option that pgbench does not have or a comparison cannot use, and for
    scripts in several directories.
    """
    try:
        words = shlex.split(line)
        begin = int(bool(words) and Path(words[0]).name == "pgbench")
        options, ignored = getopt.gnu_getopt(words[begin:], _SHORT, _LONG.split())
    except (ValueError, getopt.GetoptError) as error:
        raise StudyError(f"This pgbench command line cannot be measured: {error}.") from None
    parameters: dict[str, Any] = {"protocol": "simple"}
    defines, mix = [], []
    homes = {Path(directory).expanduser().absolute()} if directory else set()
    for given, value in options:
        name = _SHORT_FORMS.get(given, given)
        if why := _REFUSED.get(name):
            raise StudyError(f"pgbench's {given} cannot be used in a comparison: {why}.")
        if name in _PARAMETERS:
            parameters[_PARAMETERS[name]] = value
        elif name == "-D":
            defines.append(value)
        elif name == "-f":
            file, at, weight = value.rpartition("@") if "@" in value else (value, "", "")
            script = Path(file).expanduser()
            if directory is None or script.parent != Path():
                homes.add(script.absolute().parent)
            mix.append(f"{script.name.removesuffix('.sql')}{at}{weight}")
        elif name in {"-b", "-S", "-N"}:
            mix.append(BUILT_IN + {"-S": "select-only", "-N": "simple-update"}.get(name, value))
        else:
            ignored.append(f"{given} {value}".strip())
    if len(homes) > 1:
        places = ", ".join(sorted(map(str, homes)))
        raise StudyError(f"The scripts of a mix must be in one directory, not in {places}.")
    built_in = (mix or [f"{BUILT_IN}tpcb-like"])[0].partition("@")[0]
    parameters["directory"] = str(homes.pop()) if homes else built_in
    if defines:
        parameters["define"] = defines
    if mix:
        parameters["mix"] = mix
    return parameters, ignored


def parameters_of(
    workload: str | None,
    line: str | None,
    parameters: Mapping[str, Any],
    tell: Callable[[str], object],
) -> dict[str, Any]:
    """The parameters of a workload that is given by its name, a command line of pgbench, or both.

    ``parameters`` override those of the line.  Raises StudyError as ``asked`` and
    ``read_workload`` do.
    """
    of_line: dict[str, Any] = {}
    if line is not None:
        of_line, ignored = asked(line, workload)
        workload = of_line["directory"]
        if ignored:
            tell(f"Ignoring {', '.join(ignored)}: turns take about 100 ms each (-p turn_ms).")
    assert workload is not None
    if not workload.startswith(BUILT_IN):
        workload = str(Path(workload).expanduser().absolute())
    # Reports an error in the workload before anything is measured.
    read_workload(workload, parameters.get("mix") or of_line.get("mix") or ())
    return {**of_line, **parameters, "directory": workload}
