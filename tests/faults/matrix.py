"""The kill matrix: every kind of process x SIGTERM, SIGKILL, SIGSTOP x loading, idle, 80 streams (16 of sound).

In the rows "text" and "speech" one stage of a pipeline is hit whose chats are answered in words and in sound; in the
rows "thinker", "talker" and "code2wav" one of an omni model, whose stages hand each other tensors.
`run` plays one row against a server of its own and raises AssertionError where the outcome is not the expected one.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

import httpx
import msgspec

from tests.faults.streams import SpeechStream, Streams
from tests.servers import Server, start_server, wait_for

Kind = Literal["main", "worker", "master", "replica", "text", "speech", "thinker", "talker", "code2wav"]
Fault = Literal["SIGTERM", "SIGKILL", "SIGSTOP"]
Moment = Literal["loading", "idle", "streams"]

STREAMS = 64
VOICES = 16
LOAD_S = 2.5
PATIENCE_S = 3
"""--omni-heartbeat-timeout and --stall-timeout here: a stopped process is given up after so long."""
HOLD_S = 2.0
"""How long main process and workers stay stopped: nobody gives them up."""
SERVE = ("omni-app", "serve", "stub", "--port", "{port}", "--workers", "2")
ENV = {
    "OMNI_HEARTBEAT_TIMEOUT": str(PATIENCE_S),
    "OMNI_STALL_TIMEOUT": str(PATIENCE_S),
    "OMNI_SHUTDOWN_TIMEOUT": "10",
}
INIT_S = 10
"""--stage-init-timeout, where a load that has been stopped shall be given up."""
SCRIPT = {"tokens": 30, "token_s": 0.1}
"""What a stream takes: 3 seconds, less than an orphaned worker lives."""
HEARD = {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}}
_STAGE = "TESTS_STAGE"
_SPEAKING = f"""\
pipeline: stub
stages:
  - {{stage_id: 0, name: text, kind: stub, runtime: {{env: {{{_STAGE}: text}}}}}}
  - stage_id: 1
    name: speech
    kind: stub
    outputs: [audio]
    sources: [text]
    engine_args: {{chats: false, speaks: true}}
    runtime: {{env: {{{_STAGE}: speech}}}}
"""
_OMNI = f"""\
pipeline: stub
stages:
  - {{stage_id: 0, name: thinker, kind: stub, engine_args: {{produces: true}}, runtime: {{env: {{{_STAGE}: thinker}}}}}}
  - stage_id: 1
    name: talker
    kind: stub
    entry: false
    outputs: []
    sources: [thinker]
    engine_args: {{chats: false, talks: true}}
    runtime: {{env: {{{_STAGE}: talker}}}}
  - stage_id: 2
    name: code2wav
    kind: stub
    entry: false
    outputs: [audio]
    sources: [talker]
    engine_args: {{chats: false, vocodes: true}}
    runtime: {{env: {{{_STAGE}: code2wav}}}}
"""
_FILES = {2: _SPEAKING, 3: _OMNI}
"""The deploy file of a pipeline of so many stages."""


class Expected(msgspec.Struct, frozen=True):
    """`streams`: the outcomes that the streams may have. `code`: the exit code if the server ends, with `words` in what
    it prints. Otherwise it serves again within `back_s` seconds. `outage`: /health tells of one before.
    `replaced`: another process took the place of the victim.
    """

    streams: tuple[str, ...] = ("done",)
    code: int | None = None
    words: str = ""
    back_s: float = 10.0
    outage: bool = False
    replaced: bool = True


_STOPS = Expected(code=0)
_KILLED = Expected(code=-signal.SIGKILL)
_UNHARMED = Expected(replaced=False)
_RESPAWNED = Expected()
_GIVEN_UP_S = PATIENCE_S + 10.0
_FAILED_START = "startup failed: stage 0 (stub/0, model stub) failed to start ("
_NEVER_STARTED = "startup failed: stage 0 (stub/0, model stub) was not ready within --stage-init-timeout"

EXPECTED: dict[tuple[Kind, Fault], dict[Moment, Expected]] = {
    ("main", "SIGTERM"): {"loading": _STOPS, "idle": _STOPS, "streams": _STOPS},
    ("main", "SIGKILL"): {"loading": _KILLED, "idle": _KILLED, "streams": _KILLED},
    ("main", "SIGSTOP"): {"loading": _UNHARMED, "idle": _UNHARMED, "streams": _UNHARMED},
    ("worker", "SIGTERM"): {"loading": _RESPAWNED, "idle": _RESPAWNED, "streams": _RESPAWNED},
    ("worker", "SIGKILL"): {"loading": _RESPAWNED, "idle": _RESPAWNED, "streams": Expected(streams=("done", "cut"))},
    ("worker", "SIGSTOP"): {"loading": _UNHARMED, "idle": _UNHARMED, "streams": _UNHARMED},
    ("master", "SIGTERM"): {
        "loading": _RESPAWNED,
        "idle": Expected(outage=True),
        "streams": Expected(outage=True),
    },
    ("master", "SIGKILL"): {
        "loading": Expected(code=1, words="the master process died while it was loading"),
        "idle": Expected(outage=True),
        "streams": Expected(streams=("error",), outage=True),
    },
    ("master", "SIGSTOP"): {
        "loading": Expected(code=1, words=f"gave no sign of life for {PATIENCE_S} s while it was loading"),
        "idle": Expected(outage=True, back_s=_GIVEN_UP_S),
        "streams": Expected(streams=("done", "error"), outage=True, back_s=_GIVEN_UP_S),
    },
    ("replica", "SIGTERM"): {
        "loading": Expected(code=1, words=_FAILED_START),
        "idle": Expected(outage=True),
        "streams": Expected(outage=True),
    },
    ("replica", "SIGKILL"): {
        "loading": Expected(code=1, words=_FAILED_START),
        "idle": Expected(outage=True),
        "streams": Expected(streams=("error",), outage=True),
    },
    ("replica", "SIGSTOP"): {
        "loading": Expected(code=1, words=_NEVER_STARTED),
        "idle": Expected(outage=True, back_s=_GIVEN_UP_S),
        "streams": Expected(streams=("error",), outage=True, back_s=_GIVEN_UP_S),
    },
    ("text", "SIGTERM"): {"streams": Expected(outage=True)},
    ("text", "SIGKILL"): {"streams": Expected(streams=("error",), outage=True)},
    ("speech", "SIGTERM"): {"streams": Expected(outage=True)},
    ("speech", "SIGKILL"): {"streams": Expected(streams=("error",), outage=True)},
    ("speech", "SIGSTOP"): {"streams": Expected(streams=("error",), outage=True, back_s=_GIVEN_UP_S)},
    ("thinker", "SIGKILL"): {"streams": Expected(streams=("error",), outage=True)},
    ("talker", "SIGTERM"): {"streams": Expected(outage=True)},
    ("talker", "SIGSTOP"): {"streams": Expected(streams=("error",), outage=True, back_s=_GIVEN_UP_S)},
    ("code2wav", "SIGKILL"): {"streams": Expected(streams=("error",), outage=True)},
}


class Row(msgspec.Struct, frozen=True):
    """One line of the matrix."""

    kind: Kind
    fault: Fault
    moment: Moment

    def __str__(self) -> str:
        return f"{self.kind}-{self.fault}-{self.moment}"

    @property
    def expected(self) -> Expected:
        return EXPECTED[self.kind, self.fault][self.moment]

    @property
    def stages(self) -> int:
        """Of the pipeline that is served."""
        return {"text": 2, "speech": 2, "thinker": 3, "talker": 3, "code2wav": 3}.get(self.kind, 1)


ROWS = tuple(Row(kind, fault, moment) for (kind, fault), moments in EXPECTED.items() for moment in moments)

_VICTIMS: dict[Kind, Callable[[Server], list[int]]] = {
    "main": lambda server: [server.pid],
    "worker": lambda server: server.workers,
    "master": lambda server: server.masters,
    "replica": lambda server: server.replicas,
    "text": lambda server: _replicas_of(server, "text"),
    "speech": lambda server: _replicas_of(server, "speech"),
    "thinker": lambda server: _replicas_of(server, "thinker"),
    "talker": lambda server: _replicas_of(server, "talker"),
    "code2wav": lambda server: _replicas_of(server, "code2wav"),
}


def _replicas_of(server: Server, stage: str) -> list[int]:
    mark = f"{_STAGE}={stage}".encode()
    return [pid for pid in server.replicas if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]


def run(row: Row) -> None:
    """Play the row.

    Raises:
        AssertionError: what happened is not what is expected, with the server's output.
    """
    with (
        tempfile.NamedTemporaryFile("w", suffix=".yaml") as deploy,
        start_server(SERVE, _environment(row, deploy)) as server,
    ):
        if row.moment == "loading":
            wait_for(lambda: server.replica_sockets, 20, "the load", server=server)
        else:
            wait_serving(server)
        streams = _streams(server, row) if row.moment == "streams" else []
        victim = _VICTIMS[row.kind](server)[0]
        _strike(server, row, victim)
        for each in streams:
            outcomes = each.join()
            assert outcomes.keys() <= set(row.expected.streams), f"{outcomes}\n{server.output()}"
            if row.kind == "worker":
                assert outcomes["done"], f"the other worker was not left alone: {outcomes}\n{server.output()}"
        _settle(server, row, victim)


def _environment(row: Row, deploy: IO[str]) -> dict[str, str]:
    if row.stages > 1:
        deploy.write(_FILES[row.stages])
        deploy.flush()
        return {**ENV, "OMNI_DEPLOY_CONFIG": deploy.name}
    load_s = LOAD_S if row.moment == "loading" else 0.0
    overrides = {"0": {"engine_args": {"load_s": load_s, "speaks": True}}}
    limit = {"OMNI_STAGE_INIT_TIMEOUT": str(INIT_S)} if row.expected.words == _NEVER_STARTED else {}
    return {**ENV, **limit, "OMNI_STAGE_OVERRIDES": json.dumps(overrides)}


def _streams(server: Server, row: Row) -> list[Streams]:
    if row.stages > 1:
        return [Streams(server, STREAMS, stub=SCRIPT, **HEARD).wait_begun()]
    running = [
        Streams(server, STREAMS, stub=SCRIPT),
        Streams(server, VOICES, SpeechStream, extra_params={"stub": SCRIPT}),
    ]
    return [streams.wait_begun() for streams in running]


def wait_serving(server: Server, workers: int = 2) -> None:
    """Wait until all its workers serve."""
    server.wait_ready(60)
    wait_for(lambda: len(listeners(server)) == workers, 60, "all workers", server=server)


def listeners(server: Server) -> set[str]:
    """The sockets that listen on the server's port: one for each worker that serves."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {row[9] for row in rows if row[1].endswith(f":{server.port:04X}") and row[3] == "0A"}


def _strike(server: Server, row: Row, victim: int) -> None:
    os.kill(victim, signal.Signals[row.fault])
    if row.fault == "SIGSTOP" and row.kind in ("main", "worker"):
        time.sleep(HOLD_S)
        os.kill(victim, signal.SIGCONT)
    elif row.expected.outage:
        wait_for(lambda: _is_down(server), _GIVEN_UP_S, "/health to tell of the outage", 0.02, server=server)


def _is_down(server: Server) -> bool:
    return server.answers("/health", 503)


def _settle(server: Server, row: Row, victim: int) -> None:
    expected = row.expected
    if expected.code is None:
        _assert_serves(server, row, victim)
        assert server.stop() == 0, server.output()
    else:
        assert server.wait(_GIVEN_UP_S + 15) == expected.code, server.output()
    assert expected.words in server.output(), server.output()
    server.assert_nothing_left()


def _assert_serves(server: Server, row: Row, victim: int) -> None:
    expected = row.expected
    wait_for(lambda: len(listeners(server)) == 2, expected.back_s + LOAD_S, "both workers", server=server)
    # Each worker hears for itself that all is well, and a connection goes to either.
    wait_for(lambda: all(server.answers() for _ in range(8)), expected.back_s, "its return", server=server)
    now = _VICTIMS[row.kind](server)
    assert (victim not in now) == expected.replaced, f"victim {victim}, now {now}\n{server.output()}"
    assert (len(server.workers), len(server.masters), len(server.replicas)) == (2, 1, row.stages), server.output()
    answer = ask(server)
    assert answer.status_code == 200, answer.text


def ask(server: Server, content: str = "well again") -> httpx.Response:
    """One whole answer."""
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)
