"""The one contract between a replica process and its engine. Nothing outside app/engines/<kind>/ knows the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from app.cluster.messages import AnyEvent, Capabilities, Failed, Load
from app.cluster.tensors import Tensor


class EngineError(Exception):
    """A request cannot be served; becomes the Failed event. Anything else that escapes is a 500 and is logged."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


def still_loading() -> EngineError:
    """The refusal of an engine that is asked before it has started."""
    return EngineError(Failed(503, "the model is still loading", "service_unavailable_error", code="loading"))


class Request(Protocol):
    """One request inside a replica: what was asked, and where its events go.

    The engine calls `emit(Accepted())` once nothing can be refused any more, then emits outputs, then `Done()`.
    `emit` never blocks. A producer of large or endless output awaits `ready()` between outputs: it returns at once
    while the client has credit and waits while it has none. Cancelling the task that runs `Engine.run` is the abort.
    `wants_tensors`: another stage waits for what `emit_tensors` is given.
    """

    request_id: str
    kind: str
    model: str
    body: bytes
    wants_tensors: bool

    def emit(self, event: AnyEvent) -> None: ...

    async def ready(self) -> None: ...

    async def next_input(self) -> bytes | None:
        """The next input that was appended to the request, waiting for it; None after the last one.

        Who asks for the next one has used the one before: what it was made of is let go of.
        """
        ...

    def emit_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Hand tensors to the next stage, all of which it gets at once. Their data is copied before this returns.

        Raises:
            EngineError: the next stage does not keep up and no more may be held for it; let it end the request.
            ValueError: the data of a tensor does not fit its dtype and shape.
        """
        ...

    async def next_tensors(self) -> dict[str, Tensor] | None:
        """As `next_input`, where the input is what another stage emitted by `emit_tensors`.

        Raises:
            EngineError: they cannot be read any more; let it end the request.
        """
        ...


class Engine(Protocol):
    """What every engine kind implements (llm, diffusion, speech, torch, stub)."""

    async def start(self) -> Capabilities:
        """Load the model. Raises whatever explains a failure; the replica reports it and exits."""
        ...

    async def run(self, request: Request) -> None:
        """Serve one request to its end. Cancelling this coroutine aborts the request in the engine within a second.

        Raises:
            EngineError: the request is refused or failed, with the error that the client shall see.
        """
        ...

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Answer a Call; JSON in, JSON out. "metrics" is answered with Prometheus' text format, or refused with 404.

        Raises:
            EngineError: unknown method or bad arguments.
        """
        ...

    def load(self) -> Load:
        """Requests running and waiting, and the number of engine steps so far; answered from memory.

        A replica where something runs and no step is made is given up (--stall-timeout): what waits for input, or in
        Request.ready, does not run.
        """
        ...

    async def check_health(self) -> None:
        """Return if the engine lives; raise if it is dead, which ends the replica."""
        ...

    async def stop(self) -> None:
        """Free everything: child processes, shared memory, devices. Called once, after the requests have ended."""
        ...
