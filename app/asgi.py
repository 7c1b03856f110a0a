"""The public name `create_app`: application factory and ASGI application in one object.

Standard library only. Litestar and the rest are imported when an application is built, which a server that was given
`create_app` itself makes happen inside the lifespan start-up, where a stop signal is already observed.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, overload

from app.cluster.rundir import RunDir, StartupError
from app.granian_worker import adopt_granian_worker
from app.settings.problems import ConfigError
from app.signals import watch_shutdown

if TYPE_CHECKING:
    from app.factory import OmniApp
    from app.settings.schema import Settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

DEFAULT_MOUNT = "default"
"""The mount name of the application that serves when `create_app` itself is the ASGI application."""

adopt_granian_worker()


def failure_message(error: BaseException) -> str:
    """One clear line (or the lines of a configuration error) for a start-up that failed."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, StartupError | ConfigError):
        return f"startup failed: {error}"
    return f"startup failed: {type(error).__name__}: {error}"


class AppFactory:
    """`create_app()` builds an application; `await create_app(scope, receive, send)` is one, built on first use.

    `create_app(settings)` takes resolved Settings, `create_app(model="demo", ...)` takes flags with underscores;
    without either, the OMNI_* variables decide. `mount` names the application where a host builds several in an
    order that differs between its workers.
    """

    __name__ = __qualname__ = "create_app"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._default: OmniApp | None = None

    @overload
    def __call__(self, scope: Message, receive: Receive, send: Send, /) -> Awaitable[None]: ...

    @overload
    def __call__(self, settings: Settings | None = None, *, mount: str | None = None, **flags: Any) -> OmniApp: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 3 and not kwargs and callable(args[1]) and callable(args[2]):
            return self._serve(*args)
        return self._build(*args, **kwargs)

    def _build(self, *args: Any, **kwargs: Any) -> OmniApp:
        from app.factory import build

        return build(*args, **kwargs)

    def default(self) -> OmniApp:
        """The application of this process that the environment configures; built once."""
        with self._lock:
            if self._default is None:
                self._default = self._build(mount=DEFAULT_MOUNT)
            return self._default

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            app: Callable[[Any, Any, Any], Awaitable[None]] = self.default()
            await app(scope, receive, send)

    async def _lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        with watch_shutdown():
            try:
                # Before the heavy imports: a respawned worker has to fail fast to be seen as a crash loop.
                RunDir.locate(DEFAULT_MOUNT).raise_failure()
                app: Callable[[Any, Any, Any], Awaitable[None]] = self.default()
            except Exception as error:  # noqa: BLE001 - Granian takes a raising lifespan for a missing one, serves 500s
                await receive()
                await send({"type": "lifespan.startup.failed", "message": failure_message(error)})
                return
            await app(scope, receive, send)


create_app = AppFactory()


def granian_target(*_: object) -> AppFactory:
    """For `Granian(...).serve(target_loader=granian_target)`: what the worker serves, whatever the cwd holds.

    Runs in the worker. A main process that imported `app` before forking has spent the import-time adoption.
    """
    adopt_granian_worker()
    return create_app
