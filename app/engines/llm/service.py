"""Everything that one loaded engine answers, by request kind and by method."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import msgspec
from vllm.entrypoints.launchers.api_server.app_state import init_app_state

from app.cluster.messages import Adapter, Failed
from app.engines.base import EngineError, Request
from app.engines.llm.adapters import Adapters
from app.engines.llm.aligning import Aligning
from app.engines.llm.documents import Documents
from app.engines.llm.frontend import Frontend
from app.engines.llm.listening import Listening
from app.engines.llm.serving import Serving
from app.engines.llm.sleeping import Sleeper
from app.engines.omni.thinker import Thinker
from app.protocol.sleep import TASK, SleepOrder
from app.settings.schema import MediaConfig

_decode_adapter = msgspec.json.Decoder(Adapter).decode
_decode_order = msgspec.json.Decoder(SleepOrder).decode
_decode_adapters = msgspec.json.Decoder(list[Adapter]).decode

GENERATION = ("chat", "completion")
"""The kinds whose answers are made of our own events."""


class Service:
    """vLLM's serving objects behind one door. A pooling model has no generation, and its tasks are others."""

    @classmethod
    async def create(
        cls,
        frontend: Frontend,
        args: Namespace,
        instance: str,
        media: MediaConfig,
        thinker: Thinker | None = None,
        *,
        can_sleep: bool = False,
    ) -> Service:
        """Build vLLM's application state for a running engine; `instance` names this engine in ids."""
        state = SimpleNamespace()
        await init_app_state(frontend, state, args, await frontend.get_supported_tasks())
        return cls(frontend, state, instance, media, thinker, can_sleep=can_sleep)

    def __init__(
        self,
        frontend: Frontend,
        state: SimpleNamespace,
        instance: str,
        media: MediaConfig,
        thinker: Thinker | None = None,
        *,
        can_sleep: bool = False,
    ) -> None:
        generates = getattr(state, "openai_serving_chat", None) is not None
        self._serving = Serving(frontend, state, thinker) if generates else None
        self._documents = Documents(frontend, state, instance)
        self._listening = Listening(frontend, state, media)
        self._aligning = Aligning(frontend, media)
        self._adapters = Adapters(frontend, state.openai_serving_models)
        self._sleeper = Sleeper(frontend) if can_sleep else None

    @property
    def tasks(self) -> list[str]:
        """What it answers, as Capabilities tell it."""
        generation = GENERATION if self._serving is not None else ()
        adapters = ("adapters",) if self._adapters.supported else ()
        sleep = () if self._sleeper is None else (TASK,)
        return [*generation, *self._documents.tasks, *self._listening.tasks, *self._aligning.tasks, *adapters, *sleep]

    @property
    def generates(self) -> bool:
        """Whether the model answers in text."""
        return self._serving is not None or bool(self._listening.tasks)

    async def answer(self, request: Request) -> None:
        """Serve one request to its end.

        Raises:
            EngineError: it is refused or failed.
        """
        if request.kind in self._documents.tasks:
            await self._documents.answer(request)
        elif request.kind in self._listening.tasks:
            await self._listening.answer(request)
        elif request.kind in self._aligning.tasks:
            await self._aligning.answer(request)
        elif self._serving is not None and request.kind in GENERATION:
            await self._serving.answer(request)
        else:
            raise EngineError(Failed(400, f"this model does not serve {request.kind!r}", "invalid_request_error"))

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Answer a method; the adapters' take Adapter objects as JSON and answer null; protocol.sleep has the others.

        Raises:
            EngineError: unknown method, or arguments that vLLM refuses.
        """
        match method:
            case "load_adapter":
                await self._adapters.load(_decode_adapter(arguments))
            case "replace_adapter":
                await self._adapters.load(_decode_adapter(arguments), replace=True)
            case "unload_adapter":
                await self._adapters.unload(_decode_adapter(arguments).name)
            case "set_adapters" if self._adapters.supported:
                await self._adapters.sync(_decode_adapters(arguments))
            case "sleep" if self._sleeper is not None:
                return msgspec.json.encode(await self._sleeper.sleep(_decode_order(arguments)))
            case "wake_up" if self._sleeper is not None:
                return msgspec.json.encode(await self._sleeper.wake_up())
            case _:
                raise EngineError(Failed(404, f"this stage has no method {method!r}", "not_found_error"))
        return b"null"
