"""What claims require of a server, and why somebody else's does not give it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import pgstudies as pg
from pgapps.doctor.doctor import foreseen
from pgservers.errors import StudyError
from pgservers.servers.serve import serve
from pgstudies.measuring.cold import reason_not_cold
from pgstudies.measuring.requirements import COLD, reason_unmet, unmet_requirements
from tests.servers_at_hand import BUILDER, dsn_of

if TYPE_CHECKING:
    from pgservers.servers.managed import ManagedServer


def test_each_kind_of_requirement_has_the_reason_that_a_run_gives(
    stranger: ManagedServer, managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StudyError, match=r"no release '8\.4'; there are 9\.3, "):
        pg.reason_not_available("8.4")
    monkeypatch.setattr(
        "pgstudies.measuring.requirements.reason_not_available", lambda name: f"no {name}"
    )
    with serve(dsn_of(stranger, BUILDER)) as server:
        assert reason_unmet("16", server) == "no 16"
        assert reason_unmet(COLD, server) == reason_not_cold(server) is not None
        assert reason_unmet("limits", server) == server.capabilities.reason("limits") is not None
        assert reason_unmet("tidbench", server) == "no extension is built for an external server"
        assert reason_unmet("work_mem", server) is None
        assert reason_unmet("max_connections", server) == (
            "setting max_connections needs a restart of the server"
        )
        assert "has no setting max_conections" in str(reason_unmet("max_conections", server))
    assert reason_unmet("max_connections", managed) is None


@pytest.mark.parametrize(("value", "is_met"), [(None, True), ("123MB", False)])
def test_a_setting_that_the_server_has_already_is_no_obstacle(
    value: str | None, is_met: bool, stranger: ManagedServer
) -> None:
    with stranger.connect() as connection:
        found = connection.execute("SHOW shared_buffers").fetchone()
    assert found
    wanted = {"shared_buffers": value or found[0]}
    with serve(dsn_of(stranger, BUILDER), settings=wanted) as server:
        unmet = unmet_requirements("cluster_order", server, wanted)
    assert ("shared_buffers" not in unmet) is is_met


def test_a_claim_that_no_quick_run_tests_is_foreseen_as_such(managed: ManagedServer) -> None:
    reasons = {claim.id: reason for claim, reason in foreseen("dead_tuples", managed)}
    assert reasons["hash lookup"] == "this needs --profile standard"
    assert reasons["dense lookup"] is None
