"""An engine without a model, for tests of timing and faults: it answers by the clock and breaks on request.

Stage engine_args: `load_s` (seconds that loading takes), `load_error` (message to fail the load with), `load_exit`
(exit code to die with while loading), `token_s` (seconds a token), `slots` (requests that run at once), `adapters`
(take LoRA adapters, except at the path "/nope"), `holds` (answer requests of the kind "held" with its instance),
`sleeps` (be put to sleep), `chats` (false: no text), `hears` (a word of chats for each sound), `draws` (plain
pictures), `speaks` (a ramp of samples), `aligns` (times of words), `produces` (tensors, in chats too), `consumes` (such
tensors), `talks` and `vocodes` (the later stages of an omni model): app/engines/stubtensors.py.
The variable STUB_PACE multiplies `token_s` on one host, or of one replica.
A request body may hold `"stub": {...}`: `tokens` (default: the words of the last message), `token_s`, `fail_after`
(tokens, then a 500), `exit_after` (tokens, then the process dies), `hang_after` (tokens, then silence),
`refuse` (message of a 400 before Accepted). A picture task holds it in `extra`, and its tokens are steps; so does a
speech task, and its tokens are frames of 200 ms. Of a task that both a talker and a vocoder get, that is the talker's
script; the vocoder's is under "vocoder". An align task holds it as JSON in `language`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from app.cluster import messages as m
from app.engines import stubspeech, stubtensors
from app.engines.base import EngineError, Request
from app.protocol.aligning import Alignment, AlignTask, Word
from app.protocol.aligning import decode_task as decode_align
from app.protocol.pictures import PictureTask, decode_task
from app.protocol.speechtask import SpeechTask
from app.protocol.speechtask import decode_task as decode_speech
from app.settings.schema import StageConfig


class StubOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What the stage is configured to do."""

    load_s: float = 0.0
    load_error: str = ""
    load_exit: int = -1
    token_s: float = 0.0
    slots: int = 256
    adapters: bool = False
    holds: bool = False
    sleeps: bool = False
    chats: bool = True
    hears: bool = False
    draws: bool = False
    speaks: bool = False
    aligns: bool = False
    produces: bool = False
    consumes: bool = False
    talks: bool = False
    vocodes: bool = False


class StubScript(msgspec.Struct, forbid_unknown_fields=True):
    """What one request asks the stub to do."""

    tokens: int | None = None
    token_s: float | None = None
    fail_after: int | None = None
    exit_after: int | None = None
    hang_after: int | None = None
    refuse: str | None = None


class _Body(msgspec.Struct):
    messages: list[dict[str, Any]] = []
    prompt: str = ""
    n: int = 1
    max_tokens: int | None = None
    stub: StubScript = msgspec.field(default_factory=StubScript)

    def words(self) -> Iterator[str]:
        if self.stub.tokens is not None:
            return (f"w{i} " for i in range(self.stub.tokens))
        text = _text_of(self.messages[-1].get("content", "")) if self.messages else self.prompt
        return (word + " " for word in text.split()[: self.max_tokens])


def _text_of(content: Any) -> str:
    """What a message says; of other parts than text their types."""
    if not isinstance(content, list):
        return str(content)
    return " ".join(str(part.get("text", part.get("type"))) for part in content)


DRAWN = ("image", "image_edit", "image_variation")
CARD = '{"class": "Stub", "parameters": {"num_inference_steps": 4}, "sizes": {"width": 64, "height": 64}}'
_EXPOSITION = b"""# HELP stub:steps_total Steps of the stub.
# TYPE stub:steps_total counter
stub:steps_total{engine="0"} %d
"""


class StubEngine:
    """Implements app.engines.base.Engine."""

    def __init__(self, stage: StageConfig) -> None:
        self._options = msgspec.convert(stage.engine_args, StubOptions)
        self._options.token_s *= float(os.environ.get("STUB_PACE", "1"))
        self._slots = asyncio.Semaphore(self._options.slots)
        self._load = m.Load()
        self._adapters: dict[str, m.Adapter] = {}
        self._instance = secrets.token_hex(4)

    async def start(self) -> m.Capabilities:
        options = self._options
        await asyncio.sleep(options.load_s)
        if options.load_exit >= 0:
            os._exit(options.load_exit)
        if options.load_error:
            raise RuntimeError(options.load_error)
        extra = ["adapters"] * options.adapters + ["held"] * options.holds + ["sleep"] * options.sleeps
        text = ["chat", "completion"] if options.chats else []
        tensors = [stubtensors.MAKE] * options.produces + [stubtensors.TAKE] * options.consumes
        tensors += [stubtensors.TALK] * options.talks + [stubtensors.VOCODE] * options.vocodes
        tasks = [
            *text,
            *(DRAWN if options.draws else ()),
            *["speech"] * options.speaks,
            *["align"] * options.aligns,
            *tensors,
            *extra,
        ]
        outputs = ["text"] * options.chats + ["image"] * options.draws + ["audio"] * (options.speaks or options.vocodes)
        card = CARD if options.draws else stubspeech.CARD if options.speaks or options.vocodes else ""
        inputs = ["text"] + ["audio"] * options.hears
        return m.Capabilities(tasks, 4096, inputs, outputs, options.slots, self._instance, card)

    async def run(self, request: Request) -> None:
        if request.kind == "held":
            for event in (m.Accepted(), m.Document(msgspec.json.encode(self._instance)), m.Done()):
                request.emit(event)
            return
        script, work = self._prepare(request)
        if script.refuse is not None:
            raise EngineError(m.Failed(400, script.refuse, "invalid_request_error", param="stub"))
        request.emit(m.Accepted())
        self._load.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._load.waiting -= 1
        self._load.running += 1
        try:
            await work()
        finally:
            self._load.running -= 1
            self._slots.release()

    def _prepare(self, request: Request) -> tuple[StubScript, Callable[[], Awaitable[None]]]:
        if self._options.draws and request.kind in DRAWN:
            task = decode_task(request.body)
            script = msgspec.convert(task.extra.get("stub", {}), StubScript)
            return script, partial(self._draw, request, task, script)
        if request.kind in ("speech", stubtensors.TALK, stubtensors.VOCODE):
            return self._prepare_sound(request)
        if self._options.aligns and request.kind == "align":
            aligned = decode_align(request.body)
            script = msgspec.json.decode(aligned.language or b"{}", type=StubScript)
            return script, partial(self._align, request, aligned, script)
        body = msgspec.json.decode(request.body, type=_Body)
        step = partial(self._step, body.stub)
        if self._options.produces and request.kind == stubtensors.MAKE:
            return body.stub, partial(stubtensors.make, request, body.stub.tokens or 0, step, self._idle)
        if self._options.consumes and request.kind == stubtensors.TAKE:
            return body.stub, partial(stubtensors.take, request, body.stub.tokens, step, self._idle)
        return body.stub, partial(self._generate, request, body)

    def _prepare_sound(self, request: Request) -> tuple[StubScript, Callable[[], Awaitable[None]]]:
        task = decode_speech(request.body)
        vocodes = request.kind == stubtensors.VOCODE
        script = msgspec.convert(task.extra.get("vocoder" if vocodes else "stub", {}), StubScript)
        stubspeech.check(task)
        if request.kind == stubtensors.TALK:
            return script, partial(stubtensors.talk, request, script.tokens, partial(self._step, script), self._idle)
        texts: AsyncIterator[str] = stubspeech.frames(request, task, script.tokens)
        if vocodes:
            texts = ("" async for _ in stubtensors.handed(request, script.tokens, self._idle))
        return script, partial(self._speak, request, task, script, texts)

    async def _draw(self, request: Request, task: PictureTask, script: StubScript) -> None:
        from app.engines import stubpictures  # numpy and Pillow, which text needs not

        steps = task.num_inference_steps or script.tokens or stubpictures.STEPS
        pause = self._options.token_s if script.token_s is None else script.token_s
        for step in range(steps):
            await self._misbehave(script, step)
            await asyncio.sleep(pause)
            self._load.steps += 1
            request.emit(m.Progress(step + 1, steps))
            if step < task.previews:
                request.emit(stubpictures.picture(task, 0, preview=step))
        await self._misbehave(script, steps)
        for index in range(task.n):
            await request.ready()
            request.emit(stubpictures.picture(task, index))
        request.emit(stubpictures.usage(task))
        request.emit(m.Done())

    async def _speak(self, request: Request, task: SpeechTask, script: StubScript, texts: AsyncIterator[str]) -> None:
        speaker = stubspeech.Speaker(task)
        pause = self._options.token_s if script.token_s is None else script.token_s
        count = 0
        async for text in texts:
            await self._misbehave(script, count)
            await asyncio.sleep(pause)
            await request.ready()
            self._load.steps += 1
            count += 1
            for piece in speaker.say(text):
                request.emit(piece)
        await self._misbehave(script, count)
        for piece in speaker.finish():
            request.emit(piece)
        request.emit(speaker.usage())
        request.emit(m.Done())

    async def _align(self, request: Request, task: AlignTask, script: StubScript) -> None:
        words = [Word(word, place / 10, place / 10 + 0.1) for place, word in enumerate(task.text.split())]
        for position in range(len(words) + 1):
            await self._misbehave(script, position)
            await asyncio.sleep(script.token_s or 0)
            self._load.steps += 1
        request.emit(m.Document(msgspec.json.encode(Alignment(words))))
        request.emit(m.Done())

    async def _generate(self, request: Request, body: _Body) -> None:
        script = body.stub
        pause = self._options.token_s if script.token_s is None else script.token_s
        made = stubtensors.frames_of(request) if request.wants_tensors and self._options.produces else None
        count = 0
        for position, word in enumerate(body.words()):
            await self._misbehave(script, position)
            await asyncio.sleep(pause)
            self._load.steps += 1
            if made is not None:
                request.emit_tensors(made(position))
            for index in range(body.n):
                request.emit(m.Delta(index, word))
            count += 1
        await self._misbehave(script, count)
        for index in range(body.n):
            request.emit(m.Finish(index, "stop"))
        request.emit(m.Usage(len(request.body) // 4, count * body.n))
        request.emit(m.Done())

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """Not running for the length of the block: it is another stage's turn."""
        self._load.running -= 1
        try:
            yield
        finally:
            self._load.running += 1

    async def _step(self, script: StubScript, position: int) -> None:
        await self._misbehave(script, position)
        await asyncio.sleep(self._options.token_s if script.token_s is None else script.token_s)
        self._load.steps += 1

    async def _misbehave(self, script: StubScript, position: int) -> None:
        if position == script.fail_after:
            raise RuntimeError("the stub was asked to fail")
        if position == script.exit_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if position == script.hang_after:
            await asyncio.Event().wait()

    async def call(self, method: str, arguments: bytes) -> bytes:
        if method == "tokenize":
            body = msgspec.json.decode(arguments, type=_Body)
            tokens = [position for position, _ in enumerate(body.words())]
            return msgspec.json.encode({"count": len(tokens), "tokens": tokens})
        if method == "metrics":
            return _EXPOSITION % self._load.steps
        if self._options.sleeps and method in ("sleep", "wake_up"):
            return b'{"freed_bytes": 1000}' if method == "sleep" else b"{}"
        if self._options.speaks and method == "check_voice":
            return stubspeech.check_voice(arguments)
        if self._options.adapters and method.endswith(("_adapter", "_adapters")):
            return self._change_adapters(method, arguments)
        raise EngineError(m.Failed(404, f"this engine has no {method}", "not_found_error"))

    def _change_adapters(self, method: str, arguments: bytes) -> bytes:
        if method == "set_adapters":
            self._adapters = {x.name: x for x in msgspec.json.decode(arguments, type=list[m.Adapter])}
        elif method != "list_adapters":
            adapter = msgspec.json.decode(arguments, type=m.Adapter)
            self._adapters.pop(adapter.name, None)
            if adapter.path == "/nope":
                raise EngineError(m.Failed(400, "no adapter there", "invalid_request_error", param="lora_path"))
            if method != "unload_adapter":
                self._adapters[adapter.name] = adapter
        return msgspec.json.encode(sorted(self._adapters))

    def load(self) -> m.Load:
        return self._load

    async def check_health(self) -> None:
        """The stub is healthy as long as it runs."""

    async def stop(self) -> None:
        """Nothing to free."""
