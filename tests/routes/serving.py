"""The real routes over a scripted orchestrator, and an ASGI client that can leave in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from litestar import Litestar

from app.cluster.messages import AnyEvent, Capabilities, Delta, Done, Finish, Load, Membership, ReplicaInfo, Usage
from app.pipeline.orchestrator import StageStatus
from app.protocol.errors import ApiError
from app.routes import exception_handlers, handlers
from app.routes.docs import openapi_config
from app.routes.socketgate import guarded, remember_error
from app.routes.trace import traced
from app.routes.videowork import VideoWork
from app.settings.schema import ServerConfig, Settings, SpeechConfig
from app.store.generated import GeneratedFiles
from app.store.videos import Videos
from app.store.voices import Voices
from app.telemetry.metrics import Metrics

Step = list[AnyEvent] | ApiError | Exception | asyncio.Event
"""What the engine does next: a batch of events, a failure, or waiting until the test sets the event."""

GREETING: list[Step] = [
    [Delta(0, "Hel"), Delta(0, "lo")],
    [Delta(0, " Wörld"), Finish(0, "stop"), Usage(5, 3), Done()],
]


HELD = "0123abcd"
"""The one engine that holds responses."""


class ScriptedStream:
    """RequestStream's contract over a script."""

    def __init__(self, script: list[Step]) -> None:
        self._script = iter(script)
        self.closed = asyncio.Event()

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> list[AnyEvent]:
        for step in self._script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, list):
                return step
            await step.wait()
        raise StopAsyncIteration

    async def aclose(self, reason: str = "client_disconnect") -> None:
        self.closed.set()


class ScriptedOrchestrator:
    """Orchestrator's contract: every request plays the same script. `before` runs before a request is accepted."""

    def __init__(self, script: list[Step] | None = None, *, replicas: int = 1) -> None:
        self.script = GREETING if script is None else script
        self.before: Callable[[], Awaitable[object]] | None = None
        self.submitted: list[tuple[str, str, bytes, str]] = []
        self.spoken: list[bytes] = []
        self.speaks = False
        self.aligns = False
        self.known = True
        self.streams: list[ScriptedStream] = []
        self.replicas = replicas
        self.membership = Membership(0, 0, [])
        self.tasks = ["chat", "completion"]
        self.card = ""
        self.inputs = ["text", "image"]
        self.limit_s = 0.0
        self.asked = ("", "")
        self.load = Load()
        self.accepted = asyncio.Event()

    async def submit(
        self,
        kind: str,
        request_id: str,
        body: bytes,
        *,
        model: str = "",
        task: str = "",
        instance: str = "",
        limit_s: float = 0.0,
        streamed: bool = False,
        whole: bool = False,
    ) -> ScriptedStream:
        self.limit_s = limit_s
        self.asked = (task, instance)
        self.submitted.append((kind, request_id, body, model))
        if self.before is not None:
            await self.before()
        stream = ScriptedStream(self.script)
        self.streams.append(stream)
        self.accepted.set()
        return stream

    async def speak(
        self,
        request_id: str,
        body: bytes,
        speech: bytes,
        *,
        model: str = "",
        limit_s: float = 0.0,
        streamed: bool = False,
    ) -> ScriptedStream:
        self.spoken.append(speech)
        return await self.submit("chat", request_id, body, model=model, limit_s=limit_s, streamed=streamed)

    def expands(self, kind: str) -> bool:
        return False

    def positions(self, task: str, *modalities: str) -> list[int]:
        return list(range(1 + len(modalities)))

    def stage_of(self, task: str) -> int:
        if task not in self.tasks:
            raise ApiError(404, f"the served model does not answer {task} requests", code="unsupported_task")
        return 0

    def voice_card(self) -> str:
        self.stage_of("speech")
        return self.card

    def inputs_of(self, task: str) -> list[str]:
        self.stage_of(task)
        return self.inputs

    def holds(self, task: str, instance: str) -> bool:
        return (task, instance) == ("responses", HELD)

    def status(self) -> list[StageStatus]:
        up = [
            ReplicaInfo(0, index, "ipc://x", "up", "here", 1, self.load, self.capabilities())
            for index in range(self.replicas)
        ]
        return [StageStatus(stage_id=0, name="thinker", ready=bool(up), replicas=up)]

    def capabilities(self) -> Capabilities:
        return Capabilities(self.tasks, 2048, self.inputs, ["text"], card=self.card)


class Served:
    """An application with the real routes. `app` is its ASGI entry, as app.factory makes it.

    `directory` is for generated files, voices and locks; without one there are none.
    """

    def __init__(
        self, orchestrator: ScriptedOrchestrator | None = None, directory: Path = Path("/nowhere"), **server: Any
    ) -> None:
        self.orchestrator = orchestrator or ScriptedOrchestrator()
        self.stopping, self.draining = asyncio.Event(), asyncio.Event()
        self.settings = Settings(
            model="HuggingFaceTB/SmolLM2",
            served_model_names=["smol", "HuggingFaceTB/SmolLM2"],
            pipeline="llm",
            stages=[],
            created=1_700_000_000,
            server=ServerConfig(**server),
            speech=SpeechConfig(voices_database=f"sqlite:///{directory}/voices.sqlite3"),
        )
        self.litestar = Litestar(
            handlers,
            exception_handlers=exception_handlers,
            after_exception=[remember_error],
            openapi_config=openapi_config(),
            logging_config=None,
            request_max_body_size=self.settings.server.max_body_bytes,
        )
        generated = GeneratedFiles(directory / "generated", 3600, 1 << 20)
        self.litestar.state.update(
            {
                "orchestrator": self.orchestrator,
                "settings": self.settings,
                "stopping": self.stopping,
                "draining": self.draining,
                "uploads": set(),
                "metrics": Metrics(),
                "run_dir": directory,
                "generated": generated,
                "videos": Videos(directory / "videos", generated, 3600),
                "video_work": VideoWork(self.draining),
                "voices": Voices(self.settings.speech),
            }
        )

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        await (traced if scope["type"] == "http" else guarded)(self.litestar, scope, receive, send)


class Exchange:
    """One HTTP exchange by hand: `chunks` arrive one by one, and the client leaves when `leave` is called."""

    def __init__(self, served: Served, path: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        pairs = {"content-type": "application/json", "host": "test", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "client": ("192.0.2.1", 1),
            "server": ("test", 80),
        }
        self.task = asyncio.create_task(served.app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message.get("body"):
            self.chunks.put_nowait(message["body"])

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    async def chunk(self) -> bytes:
        """The next piece of the response's body."""
        async with asyncio.timeout(5):
            return await self.chunks.get()

    async def rest(self) -> bytes:
        """Everything up to the end of the response."""
        async with asyncio.timeout(5):
            await self.task
        return b"".join(self.chunks.get_nowait() for _ in range(self.chunks.qsize()))


@asynccontextmanager
async def exchange(
    served: Served, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> AsyncIterator[Exchange]:
    """A running Exchange, cancelled at the end if the test leaves it running."""
    running = Exchange(served, path, json.dumps(body).encode(), headers)
    try:
        yield running
    finally:
        running.task.cancel()
        await asyncio.wait({running.task})


def events(stream: bytes) -> list[Any]:
    """The data of a stream of server-sent events, decoded; "[DONE]" as it is."""
    lines = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line.startswith(b"data: ")]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]
