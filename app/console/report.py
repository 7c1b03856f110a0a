"""The last word of `omni-app serve`: where the server is and how to ask it, once it is ready.

Until then a terminal sees the current step with its age. The steps themselves are told by the master's log.

`python -m app.console.report FACTS`, where FACTS is a Server in JSON. Ends when all is said, or with its parent.
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from app.cluster.identity import current_server
from app.cluster.process import signal_on_parent_death
from app.cluster.rundir import RunDir
from app.console.progress import Progress

_POLL_S = 0.1
_ROUTES = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET  /v1/models",
    "GET  /health  /livez  /readyz  /version",
    "GET  /docs    /openapi.json",
)


class Server(msgspec.Struct, frozen=True):
    """What there is to say about a server; `guarded` if clients need a key."""

    run_dir: str
    parent: int
    host: str
    port: int
    root_path: str
    model: str
    guarded: bool

    @property
    def address(self) -> str:
        """Where a client on this machine connects."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        host = everywhere.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def url(self) -> str:
        """Base URL for this machine. The root path is the proxy's, so it is not part of it."""
        return f"http://{self.address}:{self.port}"


def main() -> None:
    """Wait for the server and announce it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal_on_parent_death(signal.SIGKILL)
    server = msgspec.json.decode(sys.argv[1], type=Server)
    progress = Progress()
    if follow(server, progress):
        progress.end()
        print(announcement(server), flush=True)  # noqa: T201 - this process exists to print


def follow(server: Server, progress: Progress) -> bool:
    """Follow the steps until the server answers; False if it failed or its main process is gone."""
    run_dir = RunDir(Path(server.run_dir), current_server())
    progress.watch("starting")
    while os.getppid() == server.parent:
        state = run_dir.read_state()
        if state.phase == "failed":
            return False
        if state.phase == "starting" and state.detail:
            progress.watch(state.detail)
        if state.phase == "ready" and is_ready(server):
            return True
        progress.tick()
        time.sleep(_POLL_S)
    return False


def is_ready(server: Server) -> bool:
    """Whether a worker answers and says that it is ready."""
    connection = http.client.HTTPConnection(server.address.strip("[]"), server.port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def announcement(server: Server) -> str:
    """URL, routes, and a command that works as it stands."""
    key = " -H 'Authorization: Bearer KEY'" if server.guarded else ""
    body = msgspec.json.encode(
        {"model": server.model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    ).decode()
    quoted = body.replace("'", "'\\''")
    lines = [
        f"Ready: {server.url}   (model {server.model!r})",
        *(f"  {route}" for route in _ROUTES),
        "Try:",
        f"  curl {server.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{quoted}'",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
