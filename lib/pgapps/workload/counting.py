"""The statements of a workload as units of work, whose instructions are counted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from psycopg import sql

from pgservers.errors import ServerError, SpaceError, StudyError
from pgservers.servers.serve import serve
from pgservers.terminal import say
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from pgstudies.rooms import find_room

from ..counting.units import Unit
from .loaded import vacuum
from .loading import load, tables_of
from .scripts import read_workload
from .sent import statements_sent
from .statements import without_comments
from .steps import defined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pgservers.servers.serve import Server

_TRANSACTION = re.compile(
    r"(BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|SET)\b", re.IGNORECASE
)
"""Statements that a function cannot execute, or that do no work."""

_QUERY = re.compile(r"[\s(]*(SELECT|WITH|VALUES|TABLE|INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE)

_REPEATED = """
    BEGIN
        FOR i IN 1 .. pg_catalog.current_setting('pgstudies.n')::int LOOP
            {}
        END LOOP;
        SET CONSTRAINTS ALL IMMEDIATE;
    END
"""

_ONCE = "EXECUTE {};"

# A second ALTER TABLE finds done what the first did.  Queries are not undone: it would cost more
# than a cheap one.  The backend ends at any error, caught or not, unless this setting is off.
_UNDONE = """
    BEGIN
        EXECUTE {};
        PERFORM pg_catalog.set_config('exit_on_error', 'off', true);
        RAISE SQLSTATE 'PG000';
    EXCEPTION WHEN SQLSTATE 'PG000' THEN
    END;
"""

# A single-user backend is a superuser.  A security-definer function has its owner's rights and
# cannot go back; the rollback drops what would be executed at the end of the transaction.
_CREATE = (
    "CREATE FUNCTION pgstudies_counted.once() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS {}"
)


def statement_units(study: str, server: str, parameters: Mapping[str, Any]) -> Iterator[Unit]:
    """Each statement of each script as a unit: parse, plan and execute it once, with its values.

    The values are those of one transaction, which pgbench runs on ``server``.  A script that fails
    is left out, with a message.  Raises StudyError for a workload that cannot be read or loaded.
    """
    home = find_room(study).directory / "example"
    workload = read_workload(parameters.get("directory") or home, parameters.get("mix") or ())
    scale = int(parameters.get("scale", 1))
    without = parameters.get("without") or ()
    variables = {"scale": scale, **defined(parameters.get("define") or ())}
    tables = tables_of(workload, scale, without)

    def load_into(server: Server) -> None:
        with Trial(server, Arm("counted"), block=0) as trial:
            load(trial, tables)
            vacuum(trial)

    with serve(server, settings=workload.settings, unprivileged=True) as counted_on:
        load_into(counted_on)
        sent = {}
        for one in workload.scripts:
            try:
                with Trial(counted_on, Arm("counted"), block=0) as trial:
                    found = statements_sent(trial, one.text, seed=1, variables=variables)
            except (ServerError, SpaceError):
                raise
            except StudyError as error:
                say(f"{one.name} is not counted: {error}")
            else:
                sent[one.name] = found
    loaded = f"{workload.digest} {scale} {list(without)}"
    for script, statements in sent.items():
        for case, text in statements.items():
            bare = without_comments(text).rstrip("; \n")
            if _TRANSACTION.match(bare):
                continue
            name = f"{script}, {case}" if case else script
            each = sql.SQL(_ONCE if _QUERY.match(bare) else _UNDONE).format(sql.Literal(bare))
            body = sql.SQL(_REPEATED).format(each).as_string()
            create = sql.SQL(_CREATE).format(sql.Literal(body)).as_string()
            yield Unit(
                name,
                ("BEGIN", "SELECT pgstudies_counted.once()", "ROLLBACK"),
                sizes=(1, 3),  # the first execution, which fills the backend's caches, is in both
                prepare=("CREATE SCHEMA pgstudies_counted", create),
                settings=workload.settings,
                study=study,
                steps=(name, script) if case else (name,),
                load=load_into,
                loaded=loaded,
                query=bare,
                unprivileged=True,
            )
