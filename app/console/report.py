"""The last word of `omni-app serve`: where the server is and how to ask it, once it is ready.

Until then a terminal sees the current step with its age. The steps themselves are told by the master's log.

`python -m app.console.report FACTS`, where FACTS is a Server in JSON. Ends when all is said, or with its parent.
"""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from app.cluster.identity import current_server
from app.cluster.process import signal_on_parent_death
from app.cluster.rundir import RunDir
from app.console.progress import Progress

_POLL_S = 0.1
_ROUTES = {
    "text": ("POST /v1/chat/completions", "POST /v1/completions"),
    "speech": ("POST /v1/audio/speech", "GET  /v1/audio/voices"),
    "spoken": ("GET  /v1/audio/voices",),
    "image": ("POST /v1/images/generations", "POST /v1/images/edits"),
    "video": ("POST /v1/videos", "POST /v1/videos/sync"),
    "audio": ("POST /v1/audio/generate",),
    "action": ("GET  /v1/realtime/robot/openpi (WebSocket)",),
}
"""By what the stages make; chat draws too, where no language model answers it, and speaks, where one feeds speech."""
_ALWAYS = ("GET  /v1/models", "GET  /health  /livez  /readyz  /version", "GET  /docs    /openapi.json")


class Server(msgspec.Struct, frozen=True):
    """What there is to say about a server; `guarded` if clients need a key. `outputs` are those of its entry stages:
    text, image, video, action, audio (that a diffusion model makes) and speech; spoken, where a model speaks its own
    answers.

    `uds` is the Unix socket in place of host and port, `certificate` the file that makes it speak HTTPS; with
    `client_certificates` every client needs one of its own.
    """

    run_dir: str
    parent: int
    host: str
    port: int
    root_path: str
    model: str
    guarded: bool
    outputs: tuple[str, ...] = ("text",)
    uds: str = ""
    certificate: str = ""
    client_certificates: bool = False

    @property
    def address(self) -> str:
        """Where a client on this machine connects."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        host = everywhere.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def url(self) -> str:
        """Base URL for this machine. The root path is the proxy's, so it is not part of it."""
        if self.uds:
            return "http://localhost"
        return f"{'https' if self.certificate else 'http'}://{self.address}:{self.port}"


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
    """Whether a worker says that it is ready. Where only clients with certificates may ask, the master's word does."""
    if server.client_certificates:
        return True
    connection = _connection(server)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _connection(server: Server) -> http.client.HTTPConnection:
    host = server.address.strip("[]")
    if server.uds:
        return _UnixConnection(server.uds)
    if server.certificate:  # it is made out for another name than this machine's loopback address
        context = ssl._create_unverified_context()
        return http.client.HTTPSConnection(host, server.port, timeout=2, context=context)
    return http.client.HTTPConnection(host, server.port, timeout=2)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=2)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def announcement(server: Server) -> str:
    """URL, routes, and commands that work as they stand."""
    routes = [route for output in server.outputs for route in _ROUTES.get(output, ())]
    lines = [
        f"Ready: {server.uds or server.url}   (model {server.model!r})",
        *(f"  {route}" for route in (*routes, *_ALWAYS)),
    ]
    examples = [_EXAMPLES[output](server) for output in server.outputs if output in _EXAMPLES]
    return "\n".join([*lines, "Try:", *examples] if examples else lines)


def _chat(server: Server) -> str:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return _curl(server, "/v1/chat/completions", {"messages": messages, "temperature": 0})


def _spoken(server: Server) -> str:
    messages = [{"role": "user", "content": "Hello! Who are you?"}]
    body = {"messages": messages, "modalities": ["text", "audio"], "audio": {"format": "wav"}}
    return f"{_curl(server, '/v1/chat/completions', body)} -o answer.json"


def _picture(server: Server) -> str:
    body = {"prompt": "a red circle on a blue background", "response_format": "file"}
    return f"{_curl(server, '/v1/images/generations', body)} -o picture.png"


def _video(server: Server) -> str:
    body = {"prompt": "a red balloon rises over a field", "seconds": 4}
    return f"{_curl(server, '/v1/videos/sync', body)} -o video.mp4"


def _speech(server: Server) -> str:
    return f"{_curl(server, '/v1/audio/speech', {'input': 'Hello! How can I help you today?'})} -o speech.mp3"


_EXAMPLES = {"text": _chat, "speech": _speech, "spoken": _spoken, "image": _picture, "video": _video}


def _curl(server: Server, path: str, body: Mapping[str, object]) -> str:
    key = " -H 'Authorization: Bearer KEY'" if server.guarded else ""
    how = f"--unix-socket {shlex.quote(server.uds)} " if server.uds else ""
    how += f"--cacert {shlex.quote(server.certificate)} " if server.certificate else ""
    how += "--cert CERTIFICATE --key KEY_FILE " if server.client_certificates else ""
    text = msgspec.json.encode({"model": server.model, **body}).decode().replace("'", "'\\''")
    return f"  curl {how}{server.url}{path} -H 'Content-Type: application/json'{key} -d '{text}'"


if __name__ == "__main__":
    main()
