"""Another account that tries to run a function in every server of Dask that it reaches.

    python intruder.py ACCOUNT CERTIFICATES ADDRESS...

Each address is tried in the clear and with a certificate of the intruder's own.  Before it changes
to ACCOUNT it tries, as a control, with the certificate in the directory CERTIFICATES, and after it
to read that one.  Prints what came of it, as JSON: by "way address" the id of the user as whom the
function ran, or the name of the error.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed.core import Server, rpc
from distributed.protocol import pickle
from distributed.security import Security
from distributed.worker import run as run_in

from pgapps.fleet.certificates import KEY, credentials

if TYPE_CHECKING:
    from collections.abc import Sequence


async def attempt(address: str, security: Security) -> object:
    """The id of the user as whom our function ran there, or why it did not."""
    arguments = security.get_connection_args("client")
    try:
        async with rpc(address, connection_args=arguments, timeout=2) as remote:
            asked = remote.run(function=pickle.dumps(os.getuid), args=pickle.dumps(()))
            return (await asyncio.wait_for(asked, 4))["result"]
    except Exception as error:  # whatever keeps us out is good
        return type(error).__name__


async def control(own: Security) -> None:
    """Both ways lead into servers that let us in; and all is imported that we shall need."""

    def run(server: Server, comm: Any, **arguments: Any) -> Any:
        return run_in(server, comm, **arguments)

    for scheme, security in (("tcp", Security()), ("tls", own)):
        server = Server({})
        server.handlers["run"] = lambda comm, server=server, **more: run(server, comm, **more)
        await server.listen(f"{scheme}://127.0.0.1:0", **security.get_listen_args("worker"))
        assert await attempt(server.address, security) == os.getuid()
        await server.close()


async def attempts(
    way: str, scheme: str, security: Security, addresses: Sequence[str]
) -> dict[str, object]:
    tried = [attempt(f"{scheme}://{address}", security) for address in addresses]
    names = [f"{way} {address}" for address in addresses]
    return dict(zip(names, await asyncio.gather(*tried), strict=True))


async def main(account: str, certificates: str, *addresses: str) -> None:
    own = Security.temporary()
    await control(own)
    held = credentials("tls://", Path(certificates), "client")
    found = await attempts("held", "tls", held, addresses)
    user = pwd.getpwnam(account)
    os.setgroups([])
    os.setresgid(*[user.pw_gid] * 3)
    os.setresuid(*[user.pw_uid] * 3)
    for ways in await asyncio.gather(
        attempts("clear", "tcp", Security(), addresses), attempts("own", "tls", own, addresses)
    ):
        found |= ways
    try:
        Path(certificates, KEY).read_bytes()
    except OSError as error:
        found["read"] = type(error).__name__
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
