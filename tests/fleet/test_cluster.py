"""Who gets into a sweep: this user's processes, and no other account by any of its ports."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import dask
import psutil
import pytest
from distributed.security import Security

from pgapps.fleet.certificates import credentials, make_certificates
from pgapps.fleet.cluster import connected, local_cluster, serve_as_scheduler, serve_as_worker
from pgservers.errors import ServerError, StudyError
from tests.fleet.conftest import namespace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INTRUDER = Path(__file__).with_name("intruder.py")
ACCOUNT = "nobody"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "certificates"
    make_certificates(directory)
    return directory


@pytest.fixture
def another_account() -> str:
    """An account that is not ours, as which this process may start programs."""
    if ACCOUNT not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip(f"there is no account {ACCOUNT}")
    return ACCOUNT


def listening(*processes: psutil.Process) -> set[tuple[str, int]]:
    """Where these processes and their children can be reached: address and port."""
    return {
        (connection.laddr.ip, connection.laddr.port)
        for parent in processes
        for process in [parent, *parent.children(recursive=True)]
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }


def outcomes(
    account: str, certificates: Path, addresses: Sequence[str], inside: Sequence[str] = ()
) -> dict[str, object]:
    """What ``intruder.py`` prints."""
    command = [*inside, sys.executable, str(INTRUDER), account, str(certificates), *addresses]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    answers: dict[str, object] = json.loads(found.stdout)
    return answers


def who_got_in(answers: dict[str, object]) -> list[str]:
    """The ways on which a function ran as us."""
    return [name.split()[0] for name, outcome in answers.items() if outcome == os.getuid()]


@pytest.mark.root
def test_another_account_gets_into_no_port_of_a_local_sweep(another_account: str) -> None:
    before = listening(psutil.Process())
    with local_cluster(["bench1"]) as client, namespace() as (inside, _, here):
        client.wait_for_workers(1, timeout=60)
        assert set(client.run(os.getuid).values()) == {os.getuid()}
        reached = listening(psutil.Process()) - before
        assert len(reached) == 5  # scheduler, nanny and worker; pages of scheduler and worker
        assert {address for address, _ in reached} == {"127.0.0.1"}
        made = Path(client.security.tls_ca_file).parent
        local = outcomes(another_account, made, [f"127.0.0.1:{port}" for _, port in reached])
        away = outcomes(another_account, made, [f"{here}:{port}" for _, port in reached], inside)
    assert local["read"] == away["read"] == "PermissionError"
    assert len(local) == len(away) == 3 * len(reached) + 1
    assert who_got_in(away) == []
    # With the certificate the same attempts lead in; a scheduler runs functions in another way.
    assert who_got_in(local) == ["held", "held"]


@pytest.mark.root
def test_another_account_gets_into_no_port_of_a_sweep_on_a_network(
    another_account: str, certificates: Path
) -> None:
    with (
        namespace() as (inside, _, here),
        scheduler(certificates, here) as (process, address),
        started("worker", address, "--name", "bench1", certificates=certificates) as worker,
        connected(address, certificates) as client,
    ):
        client.wait_for_workers(1, timeout=60)
        reached = listening(psutil.Process(process.pid), psutil.Process(worker.pid))
        listens = [place for place, _ in sorted(reached)]
        assert listens == [here] * 3 + ["127.0.0.1"] * 2  # which are the pages
        ports = [f"{here}:{port}" for _, port in reached]
        away = outcomes(another_account, certificates, ports, inside)
    assert away["read"] == "PermissionError"
    assert len(away) == 3 * len(reached) + 1
    assert who_got_in(away) == ["held", "held"]


def test_no_other_account_can_put_modules_before_ours() -> None:
    """Dask's scratch directory is first on its path; in /tmp it could be anybody's."""
    with local_cluster(["bench1"]) as client:
        client.wait_for_workers(1, timeout=60)
        for nanny in (True, False):
            (first,) = client.run(lambda: sys.path[0], nanny=nanny).values()
            above = [path for path in [Path(first), *Path(first).parents] if is_closed(path)]
            assert above, f"{first} lies open"
    assert not Path(first).exists()


KILLED = """
import os, signal
from pgapps.fleet.cluster import local_cluster
with local_cluster([]) as client:
    print(client.security.tls_ca_file, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("private")
def test_the_key_of_a_killed_sweep_is_removed_by_the_next() -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False
    )
    key = Path(killed.stdout.strip()).with_name("key.pem")
    assert key.exists()
    with local_cluster([]):
        assert not key.exists()


def is_closed(path: Path) -> bool:
    there = path.stat()
    return there.st_uid == os.geteuid() and stat.S_IMODE(there.st_mode) == 0o700


@contextmanager
def started(*arguments: str, certificates: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "pgapps", *arguments, "--certificates", str(certificates)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def scheduler(certificates: Path, host: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A scheduler as a user starts it, and the address that it says."""
    with started("scheduler", "--host", host, "--port", "0", certificates=certificates) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().removeprefix("scheduler: ").strip()


# What is refused


def test_certificates_are_for_their_owner_alone(certificates: Path) -> None:
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in certificates.iterdir()}
    assert modes == {"certificate.pem": 0o600, "key.pem": 0o600}
    with pytest.raises(StudyError, match="not empty"):
        make_certificates(certificates)
    assert [path.name for path in certificates.parent.iterdir()] == ["certificates"]
    with pytest.raises(StudyError, match="No such file or directory"):
        make_certificates(certificates / "a" / "b")


@pytest.mark.parametrize(
    "address", ["tcp://head:8786", "tcp://127.0.0.1:8786", "head:8786", "ws://"]
)
def test_an_address_without_tls_is_refused_with_the_command(
    certificates: Path, address: str
) -> None:
    sentence = "must begin with tls://.*`pgstudies sweep --make-certificates DIR`"
    with pytest.raises(StudyError, match=sentence):
        serve_as_worker(address, "bench1", certificates)
    with pytest.raises(StudyError, match=sentence), connected(address, certificates):
        pass


def test_without_a_certificate_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="needs a certificate, and none is given"):
        serve_as_worker("tls://head:8786", "bench1", None)
    with pytest.raises(StudyError, match="needs a certificate, and none is given"):
        serve_as_scheduler("127.0.0.1", 0, None)
    with pytest.raises(StudyError, match=r"holds no certificate to use \(No such file"):
        credentials("tls://head", tmp_path, "client")


def test_certificates_of_no_use_are_refused(certificates: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(certificates, tmp_path / "own"))
    (own / "key.pem").write_text(Security.temporary().tls_client_key)
    with pytest.raises(StudyError, match=r"The certificate .*/own cannot be used"):
        credentials("tls://head", own, "client")
    (own / "certificate.pem").write_text("junk")
    with pytest.raises(StudyError, match="it is no certificate"):
        credentials("tls://head", own, "client")
    shutil.copy(certificates / "certificate.pem", own)
    (own / "key.pem").chmod(0o640)
    with pytest.raises(StudyError, match=r"Other accounts may read .*/own/key\.pem"):
        credentials("tls://head", own, "client")


def test_what_dask_is_configured_with_serves_as_well(certificates: Path) -> None:
    own = {
        "distributed.comm.tls.ca-file": str(certificates / "certificate.pem"),
        "distributed.comm.tls.client.cert": str(certificates / "certificate.pem"),
        "distributed.comm.tls.client.key": str(certificates / "key.pem"),
    }
    with dask.config.set(own):
        assert credentials("tls://head", None, "client").require_encryption
        with pytest.raises(StudyError, match="A worker of a sweep needs a certificate"):
            credentials("tls://head", None, "worker")


def test_a_scheduler_that_cannot_listen_says_so(certificates: Path) -> None:
    place = ["--host", "192.0.2.77", "--port", "1"]
    with started("scheduler", *place, certificates=certificates) as process:
        said, _ = process.communicate(timeout=60)
    assert said.startswith("pgstudies: No scheduler can listen on 192.0.2.77, port 1 (")
    assert process.returncode == ServerError.exit_code


@pytest.mark.parametrize("address", ["tls://", "tls://127.0.0.1", "tls://no.such.host.invalid:1"])
def test_an_address_that_leads_nowhere(certificates: Path, address: str) -> None:
    # In a thread of its own: a browser of other tests leaves an event loop in this one.
    with (
        ThreadPoolExecutor(1) as thread,
        pytest.raises(ServerError, match="There is no scheduler to reach at"),
    ):
        thread.submit(serve_as_worker, address, "bench1", certificates).result()
