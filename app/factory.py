"""Builds the Litestar application of one mount; its life is that of the engine (app.engine_life)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from litestar import Litestar
from litestar.enums import ScopeType
from litestar.types import LifeSpanReceive, LifeSpanScope, LifeSpanSend, Receive, Scope, Send

from app.asgi import failure_message
from app.cluster.rundir import RunDir
from app.cluster.runtime import settle
from app.connections import give_up_lost_clients
from app.engine_life import run_engine
from app.mounting import mounted_scope
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from app.routes import exception_handlers, gate, handlers
from app.routes.docs import openapi_config
from app.routes.socketgate import deny, guarded, remember_error
from app.routes.trace import traced
from app.routes.unread import Upload
from app.settings.resolve import resolve
from app.settings.schema import Settings
from app.store.generated import GeneratedFiles
from app.store.videos import Videos
from app.store.voices import Voices
from app.telemetry.logging import configure_logging_once, send_errors_to
from app.telemetry.metrics import Metrics

logger = logging.getLogger("app.server")

PROBE_PATHS = ("/livez", "/readyz", "/health")
"""Answered at once while a forgotten lifespan is made up for; every other route waits for the boot."""

_ordinals = itertools.count()


class OmniApp(Litestar):
    """The application. `lifespan()` is all that a host which mounts it has to run."""

    mount: str
    _running = False
    _sockets_due = False
    _late_boot: LateBoot | None = None

    async def __call__(
        self, scope: Scope | LifeSpanScope, receive: Receive | LifeSpanReceive, send: Send | LifeSpanSend
    ) -> None:
        """ASGI entry; a failed start-up is one message to the server, never a traceback."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(cast("LifeSpanReceive", receive), cast("LifeSpanSend", send))
        else:
            await self._serve(scope, cast("Receive", receive), cast("Send", send))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sockets_due:
            self._sockets_due = False
            give_up_lost_clients(self.settings.server.slow_client_timeout_s)
        scope = mounted_scope(scope, self.settings.server.root_path)
        if not self._running:
            refusal = await self._boot_late(scope)
            if refusal is not None:
                await refuse(refusal, scope, receive, send)
                return
        if scope["type"] == ScopeType.HTTP:
            upload = Upload(receive)
            await traced(self._answer, scope, upload.receive, send)
            if not self.state.stopping.is_set():
                await upload.discard_rest()
        else:
            await guarded(self._answer, scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = gate.refusal(scope, self.settings.server, self.cors_config)
        if refusal is None:
            await super().__call__(scope, receive, send)
        else:
            scope["litestar_app"] = self  # as Litestar does; the trace of the request counts and logs by it
            await refuse(refusal, scope, receive, send)

    @property
    def settings(self) -> Settings:
        """The settings of the server; those its first worker resolved, once this worker has attached."""
        settings: Settings = self.state.settings
        return settings

    def use(self, settings: Settings) -> Orchestrator:
        """Take `settings` for all later requests, with a new orchestrator."""
        run_dir, server = RunDir.locate(self.mount), settings.server
        if (unused := self.state.get("orchestrator")) is not None:
            unused.discard()
        orchestrator = Orchestrator(settings, run_dir.registry, self.state.metrics)
        self.state.settings = settings
        self.state.generated = GeneratedFiles(
            run_dir.path / "generated", server.generated_file_lifetime_s, server.generated_files_bytes
        )
        self.state.videos = Videos(run_dir.path / "videos", self.state.generated, server.generated_file_lifetime_s)
        self.state.voices = Voices(settings.speech)
        self.state.run_dir = run_dir.path
        self.state.orchestrator = orchestrator
        return orchestrator

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None, None]:
        """Start the engine of this server or join it, leave it at the end.

        Raises:
            StartupError: the engine did not start; the message names the stage and the cause.
        """
        try:
            async with super().lifespan():
                self._running = True
                try:
                    yield
                finally:
                    self._running = False
        except BaseExceptionGroup as group:
            # Litestar's task group wraps whatever comes out of the block, the host's own exceptions included.
            if len(group.exceptions) != 1:
                raise
            raise group.exceptions[0] from None

    async def _serve_lifespan(self, receive: LifeSpanReceive, send: LifeSpanSend) -> None:
        await receive()
        life = self.lifespan()
        try:
            send_errors_to(self.settings.log.file)
            configure_logging_once(self.settings.log)
            await life.__aenter__()
        except Exception as error:  # noqa: BLE001 - a lifespan that raises is taken for one that is not supported
            await send({"type": "lifespan.startup.failed", "message": failure_message(error)})
            return
        self._sockets_due = True  # nobody mounted us: the server listens for us alone, from now on
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await life.__aexit__(None, None, None)
        except Exception as error:
            logger.error("the shutdown failed", exc_info=error)
            await send({"type": "lifespan.shutdown.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def _boot_late(self, scope: Scope) -> ApiError | None:
        if self._late_boot is None:
            logger.warning(
                "the host did not run this application's lifespan; starting the engine on the first request. "
                "Add `async with app.lifespan():` to the host's own lifespan."
            )
            self._late_boot = LateBoot(self)
        root = scope.get("root_path", "")
        if scope["path"].removeprefix(root) in PROBE_PATHS:
            return None
        return await self._late_boot.outcome()


class LateBoot:
    """Runs the lifespan of an application whose host does not, in a task of its own.

    It is never shut down in order; the process's lease ends with the process.
    """

    def __init__(self, app: OmniApp) -> None:
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(app), name="omni lifespan")

    async def outcome(self) -> ApiError | None:
        """Wait for the boot; None if the application runs, else what to answer."""
        await asyncio.wait([self._started])
        error = self._started.exception()
        if error is None:
            return None
        return ApiError(503, failure_message(error), code="startup_failed")

    async def _run(self, app: OmniApp) -> None:
        try:
            async with app.lifespan():
                self._started.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001 - kept for every request that asks
            logger.error("%s", failure_message(error))
            self._started.set_exception(error)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a connection with `error` outside of Litestar."""
    if scope["type"] != ScopeType.HTTP:
        await deny(error, scope, send)
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(error.body), "more_body": False})


def build(settings: Settings | None = None, *, mount: str | None = None, **flags: Any) -> OmniApp:
    """An application for `settings`, or for flags by name with underscores (model="demo") over the environment.

    Each application of a process has an engine of its own. Workers of one server tell them apart by the order in which
    they are built, or by `mount` where that order is not fixed.

    Raises:
        ConfigError: the settings cannot be used; lists every problem.
        TypeError: both settings and flags.
    """
    if settings is not None and flags:
        raise TypeError("create_app takes Settings or flags, not both")
    name = mount if mount is not None else str(next(_ordinals))
    adopted = settle(RunDir.locate(name), lambda: settings if settings is not None else resolve(flags))
    app = OmniApp(
        handlers,
        exception_handlers=exception_handlers,
        after_exception=[remember_error],
        cors_config=gate.cors_config(adopted.server),
        lifespan=[run_engine],
        logging_config=None,
        openapi_config=None if adopted.server.disable_docs else openapi_config(),
        request_max_body_size=adopted.server.max_body_bytes,
    )
    app.mount = name
    app.state.stopping, app.state.draining, app.state.uploads = asyncio.Event(), asyncio.Event(), set()
    app.state.metrics = Metrics()
    app.use(adopted)
    return app
