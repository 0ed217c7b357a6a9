"""One block, measured in this process: what becomes of it when its ledger does not answer."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from moto.server import ThreadedMotoServer

from pgapps.fleet import block as blockrun
from pgapps.fleet.ledger import Ledger
from pgservers.errors import SpaceError
from tests.fleet.test_ledger import bucket

if TYPE_CHECKING:
    from pgapps.fleet.plan import Sweep
    from tests.fleet.conftest import Place

pytestmark = pytest.mark.usefixtures("private")


def request_of(sweep: Sweep) -> dict[str, Any]:
    block, cell = next(iter(sweep.blocks())), sweep.cells[0]
    return {
        "block": vars(block),
        "profile": cell.profile,
        "server": cell.server,
        "parameters": cell.parameters,
        "ledger": sweep.ledger,
        "states": "",
    }


@pytest.fixture
def at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are measured in this process, whose variables they change."""
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())


@pytest.mark.thorough
@pytest.mark.usefixtures("at_once")
def test_a_store_that_is_down_for_a_while_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    sweep = place.sweep(hosts=["bench1"], ledger=bucket(f"http://{host}:{port}", monkeypatch))
    server.stop()
    again = ThreadedMotoServer(ip_address=host, port=port)
    waited: list[str] = []

    def said(text: str) -> int:
        if "does not answer" in text and not waited:
            waited.append(text)
            again.start()
        return len(text)

    monkeypatch.setattr(sys.stderr, "write", said)
    try:
        blockrun.carry_out(request_of(sweep))
        assert waited == [f"Waiting: the ledger {sweep.ledger} does not answer."]
        assert Ledger(sweep.ledger).done() == {next(iter(sweep.blocks()))}
    finally:
        again.stop()


@pytest.mark.usefixtures("at_once")
def test_what_a_ledger_never_took_is_kept_and_put_the_next_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object) -> bool:
        raise ConnectionError("reset")

    sweep = place.sweep(hosts=["bench1"])
    records = str(place.base / "records")
    with monkeypatch.context() as patch:
        patch.setenv("PGSTUDIES_PATIENCE_S", "0")
        patch.setattr(Ledger, "put", refusing)
        with pytest.raises(SpaceError, match="what was measured is kept on this host"):
            blockrun.carry_out(request_of(sweep))
    monkeypatch.setattr(blockrun, "measurement_of", None)  # nothing is measured again
    other = request_of(sweep) | {"ledger": str(place.base / "other")}
    monkeypatch.setenv("PGSTUDIES_RECORDS", records)
    with pytest.raises(TypeError):  # it is no block of another ledger
        blockrun.carry_out(other)
    monkeypatch.setenv("PGSTUDIES_RECORDS", records)
    blockrun.carry_out(request_of(sweep))
    assert Ledger(sweep.ledger).done() == {next(iter(sweep.blocks()))}
    assert not [p for p in Path(records).rglob("*.zip") if p.is_file()]
