"""Where a replica listens that other machines reach: never without a token."""

from __future__ import annotations

from app.cluster.rundir import StartupError
from app.cluster.transport import is_loopback, listen_address, local_address_towards

_SOMEWHERE = "192.0.2.1"
"""An address of no machine, to learn which of ours the default route uses."""


def replica_endpoint(host: str, token: str) -> str:
    """The ZeroMQ endpoint, with a free port, of a replica on the address `host` of this machine.

    Raises:
        StartupError: it is no address of this machine, or others reach it and there is no token.
    """
    try:
        host = reachable(host)
        endpoint = listen_address(host, "*")
    except OSError as error:
        raise StartupError(f"--omni-replica-address {host} is not an address of this machine: {error}") from error
    if not token and not is_loopback(host):
        raise StartupError(
            f"this replica would listen on {host}, which other machines reach: set --omni-token (or OMNI_TOKEN) "
            "to the master's token"
        )
    return endpoint


def reachable(host: str) -> str:
    """An address to connect to for one to listen on: nobody can connect to all interfaces.

    Raises:
        OSError: this machine has no route anywhere.
    """
    return local_address_towards(_SOMEWHERE, 9) if host in ("0.0.0.0", "::") else host
