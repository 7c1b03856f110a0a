"""A loaded pipeline that answers requests: from the body of a task to the events of its answer."""

from __future__ import annotations

import asyncio
import base64
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from app.cluster.messages import Accepted, Adapter, Done, Failed, Load, Picture, Progress, Usage
from app.engines.base import EngineError, Request
from app.engines.diffusion import soundcall, videocall
from app.engines.diffusion.batching import Drawn, Outcome, Row
from app.engines.diffusion.call import Call, choose, plan
from app.engines.diffusion.inputs import Inputs, load_inputs
from app.engines.diffusion.offer import Offer
from app.engines.diffusion.options import DiffusionOptions
from app.engines.diffusion.pixels import Pixels
from app.engines.diffusion.ranks.group import Group, together
from app.engines.diffusion.soundanswer import SoundAnswer
from app.engines.diffusion.videoanswer import VideoAnswer
from app.engines.refusal import refuse
from app.media.encode import encode_picture
from app.media.fetch import MediaFetcher
from app.protocol import soundtask, videotask
from app.protocol.pictures import LoraChoice, PictureTask, decode_task
from app.protocol.sleep import TASK, SleepOrder

if TYPE_CHECKING:
    from app.engines.diffusion.opening import Opened

_decode_adapter = msgspec.json.Decoder(Adapter).decode
_decode_order = msgspec.json.Decoder(SleepOrder).decode
_decode_adapters = msgspec.json.Decoder(list[Adapter]).decode
_ENCODERS = min(4, os.cpu_count() or 1)


class Service:
    """Takes tasks on the event loop and hands their rows to the engine's threads."""

    def __init__(
        self, opened: Opened, options: DiffusionOptions, fetcher: MediaFetcher, group: Group | None = None
    ) -> None:
        """`group`: the other ranks, which follow each change of the adapters."""
        self.offer = opened.offer
        self.adapters = opened.adapters
        self.runner = opened.runner
        self.queue = opened.queue
        self._sleeper = opened.sleeper
        self._group = group
        self._fetcher = fetcher
        self._streams = options.diffusion_streaming_output
        self._borrows = options.video_output_transport.enable_borrowed_frames
        self._encoders = ThreadPoolExecutor(_ENCODERS, thread_name_prefix="encode")
        self._answers: set[Answer | SoundAnswer | VideoAnswer] = set()

    async def answer(self, request: Request) -> None:
        """Answer one request to its end; cancelling it abandons its rows.

        Raises:
            EngineError: it is refused or failed.
        """
        try:
            answer = await self._judged(request)
        except msgspec.DecodeError as error:
            refuse(f"the task is malformed: {error}", None)
        request.emit(Accepted())
        self._answers.add(answer)
        try:
            self.queue.put(answer.rows)
            await answer.deliver()
        finally:
            answer.abandon()
            self._answers.discard(answer)

    async def _judged(self, request: Request) -> Answer | SoundAnswer | VideoAnswer:
        match request.kind:
            case "sound":
                return await self._sound(request)
            case "video":
                return await self._video(request)
            case _:
                return await self._pictures(request)

    async def _pictures(self, request: Request) -> Answer:
        task = decode_task(request.body)
        self._choose_adapter(task, request.model)
        call = await self._plan(task, request.kind)
        return Answer(request, task, call, self.offer, self._encoders)

    def _choose_adapter(self, task: PictureTask, model: str) -> None:
        """Who asks for an adapter as a model, gets it."""
        if not task.lora and model in self.adapters.names():
            task.lora = [LoraChoice(name=model)]

    async def _sound(self, request: Request) -> SoundAnswer:
        task = soundtask.decode_task(request.body)
        call = soundcall.plan(task, self.offer)
        assert self.offer.sound is not None, "else the task has been refused"
        return SoundAnswer(request, task, call, self.offer.sound.rate, self._encoders)

    async def _video(self, request: Request) -> VideoAnswer:
        task = videotask.decode_task(request.body)
        self._choose_adapter(task, request.model)
        if task.streamed and not self._streams:
            refuse(
                "videos come as a whole here; the server needs --diffusion-streaming-output to send pieces", "stream"
            )
        mode, video = videocall.choose(task, self.offer)
        blend = await asyncio.to_thread(self.adapters.resolve, task.lora)
        inputs = await load_inputs(task, self._fetcher)
        most = self._fetcher.limits.max_video_pixels
        call = await asyncio.to_thread(videocall.plan, task, mode, video, inputs, self.offer, blend, most)
        return VideoAnswer(request, task, call, self._encoders, borrowed=self._borrows)

    async def _plan(self, task: PictureTask, kind: str) -> Call:
        """Off the event loop where it is more than arithmetic: files of adapters are looked for, inputs resized."""
        mode = choose(task, kind, self.offer)
        if not task.images and not any(choice.path for choice in task.lora):
            return plan(task, mode, Inputs(), self.offer, self.adapters.resolve(task.lora))
        blend = await asyncio.to_thread(self.adapters.resolve, task.lora)
        inputs = await load_inputs(task, self._fetcher, alpha=self.offer.transparency)
        return await asyncio.to_thread(plan, task, mode, inputs, self.offer, blend)

    async def call(self, method: str, arguments: bytes) -> bytes:
        """Answer a method; the adapters' take Adapter objects as JSON and answer null.

        Raises:
            EngineError: 404, there is no such method; what the method raises.
        """
        match method:
            case "load_adapter":
                await self._change("load", _decode_adapter(arguments), False)
            case "replace_adapter":
                await self._change("load", _decode_adapter(arguments), True)
            case "unload_adapter":
                await self._change("unload", _decode_adapter(arguments).name)
            case "set_adapters" if self.adapters.possible:
                await self._change("sync", _decode_adapters(arguments))
            case "sleep" if self._sleeper is not None:
                return msgspec.json.encode(await self._change("sleep", _decode_order(arguments)))
            case "wake_up" if self._sleeper is not None:
                return msgspec.json.encode(await self._change("wake_up"))
            case _:
                raise EngineError(Failed(404, f"this engine has no {method}", "not_found_error"))
        return b"null"

    async def _change(self, method: str, *arguments: Any) -> Any:
        """Call a method of the sleeper or the adapters on every rank; what it returns here."""
        target = self._sleeper if method in ("sleep", "wake_up") else self.adapters

        def change() -> Any:
            with together(self._group, method, *arguments):
                return getattr(target, method)(*arguments)

        return await asyncio.to_thread(change)

    @property
    def tasks(self) -> list[str]:
        """What it can do beside the pipeline's kinds of requests."""
        return ["adapters"] * self.adapters.possible + [TASK] * (self._sleeper is not None)

    def load(self) -> Load:
        """Requests of which a row is or was being drawn, the other ones, and the signs of life so far."""
        running = sum(answer.running for answer in self._answers)
        return Load(running, len(self._answers) - running, self.runner.steps)

    def close(self) -> None:
        """Fail what waits and abandon what runs."""
        for answer in self._answers:
            answer.abandon()
        self.queue.close()
        self._encoders.shutdown(wait=False, cancel_futures=True)


class _Encoded(msgspec.Struct, frozen=True):
    """A picture whose file is being made; `preview` -1: the finished one."""

    row: Row
    index: int
    preview: int
    size: tuple[int, int]
    file: Future[bytes]


class _Stepped(msgspec.Struct, frozen=True):
    row: Row
    step: int
    steps: int


class _Finished(msgspec.Struct, frozen=True):
    row: Row
    outcome: Outcome


class Answer:
    """The events of one request, in order. Its listener's methods are called on the engine's threads."""

    def __init__(
        self, request: Request, task: PictureTask, call: Call, offer: Offer, encoders: ThreadPoolExecutor
    ) -> None:
        self.rows = [Row(call, index, self) for index in range(call.n)]
        self.running = False
        self._request = request
        self._task = task
        self._offer = offer
        self._encoders = encoders
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[_Encoded | _Stepped | _Finished] = asyncio.Queue()
        self._steps = dict.fromkeys(range(call.n), 0)
        self._told = -1
        self._output_tokens = 0

    def abandon(self) -> None:
        for row in self.rows:
            row.cancelled = True

    # ------------------------------------------------------------------------------------------------ engine's threads

    def started(self, row: Row) -> None:
        self.running = True

    def stepped(self, row: Row, step: int, steps: int) -> None:
        if self._task.progress:  # otherwise the event loop is not woken: it would take turns with the pipeline
            self._tell(_Stepped(row, step, steps))

    def previewed(self, row: Row, number: int, picture: Pixels) -> None:
        self._tell(self._encoded(row, row.index, number, picture))

    def filmed(self, row: Row, frames: list[Pixels]) -> None:
        """Who asks for pictures waits for all."""

    def finished(self, row: Row, outcome: Outcome) -> None:
        if isinstance(outcome, Drawn):
            for part, picture in enumerate(outcome.pictures):
                self._tell(self._encoded(row, row.index * len(outcome.pictures) + part, -1, picture))
        self._tell(_Finished(row, outcome))

    def _encoded(self, row: Row, index: int, preview: int, picture: Pixels) -> _Encoded:
        height, width = picture.shape[:2]
        return _Encoded(row, index, preview, (width, height), self._encoders.submit(_encode, picture, self._task))

    def _tell(self, news: _Encoded | _Stepped | _Finished) -> None:
        self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    # ------------------------------------------------------------------------------------------------ event loop

    async def deliver(self) -> None:
        """Emit until every row has ended.

        Raises:
            EngineError: a row failed; the first failure is the request's.
        """
        left, tokens = len(self.rows), 0
        while left:
            match await self._news.get():
                case _Stepped(row, step, steps):
                    self._progress(row, step, steps)
                case _Encoded() as encoded:
                    await self._picture(encoded)
                case _Finished(_, EngineError() as error):
                    raise error
                case _Finished(_, Drawn(_, prompt_tokens)):
                    left -= 1
                    tokens = prompt_tokens
        self._request.emit(Usage(tokens, self._output_tokens))
        self._request.emit(Done())

    def _progress(self, row: Row, step: int, steps: int) -> None:
        """One count for all pictures: that of the average one."""
        self._steps[row.index] = step
        average = sum(self._steps.values()) // len(self._steps)
        if average != self._told:
            self._told = average
            self._request.emit(Progress(average, steps))

    async def _picture(self, encoded: _Encoded) -> None:
        await self._request.ready()
        data = await asyncio.wrap_future(encoded.file)
        width, height = encoded.size
        self._request.emit(
            Picture(
                index=encoded.index,
                data=memoryview(data),
                format=self._task.format,
                width=width,
                height=height,
                seed=encoded.row.seed,
                preview=encoded.preview,
            )
        )
        if encoded.preview < 0:
            patch = self._offer.sizes.multiple
            self._output_tokens += (width // patch) * (height // patch)


def _encode(picture: Pixels, task: PictureTask) -> bytes:
    """Runs in the encoders' threads.

    Raises:
        EngineError: 400, the format cannot hold such a picture.
    """
    try:
        data = encode_picture(picture, task.format, task.compression)
    except ValueError as error:
        raise EngineError(Failed(400, str(error), "invalid_request_error", "output_format")) from None
    return base64.b64encode(data) if task.base64 else data
