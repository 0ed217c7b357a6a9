"""The statements of a workload as units of work, whose instructions are counted."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pgstudies as pg
from pgstudies.counting import Unit
from pgstudies.measuring import Trial, statements_sent
from pgstudies.rooms import find_room
from pgstudies.servers import serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pgstudies.servers import Server

_TRANSACTION = re.compile(
    r"(BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|SET)\b",
    re.IGNORECASE,
)
"""What a function cannot execute, or what costs nothing."""

_REPEATED = """
    DO $pgstudies$ BEGIN
        FOR i IN 1 .. current_setting('pgstudies.n')::int LOOP
            EXECUTE $pgstudies_one${}$pgstudies_one$;
        END LOOP;
    END $pgstudies$
"""

SIZES = (1, 3)
"""The first execution, which fills the backend's caches, is in both."""


def units(
    study: str, server: str, parameters: Mapping[str, Any]
) -> Iterator[Unit]:
    """Each statement of each script once, parsed, planned and executed, with its values.

    The values are those of one transaction, which pgbench runs on ``server``.  Raises StudyError
    for a workload that cannot be read or loaded, or a script that fails.
    """
    scripts = pg.beside(study, "scripts")
    loading = pg.beside(study, "loading")
    home = find_room(study).directory / "example"
    workload = scripts.read_workload(parameters.get("directory") or home)
    scale = int(parameters.get("scale", 1))
    variables = {"scale": scale} if workload.schema is None else {}

    def load(server: Server) -> None:
        with Trial(server, pg.Arm("counted"), block=0) as trial:
            loading.load(trial, workload.schema, scale=scale)
            trial.execute("VACUUM ANALYZE")

    with serve(server) as counted_on:
        load(counted_on)
        with Trial(counted_on, pg.Arm("counted"), block=0) as trial:
            sent = {
                script.name: statements_sent(
                    trial, script.text, seed=1, variables=variables
                )
                for script in workload.scripts
            }
    unit = partial(
        Unit,
        sizes=SIZES,
        settings=workload.settings,
        study=study,
        load=load,
        loaded=f"{workload.digest} {scale}",
    )
    for script, statements in sent.items():
        for case, text in statements.items():
            bare = scripts.without_comments(text).rstrip("; \n")
            if not _TRANSACTION.match(bare):
                name = f"{script}, {case}" if case else script
                yield unit(name, (_REPEATED.format(bare),), query=bare)
