"""What happens on one realtime socket: the client is always heard, and every response runs beside that."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from litestar import Litestar

from app.protocol import realtimeserver as s
from app.protocol.errors import ApiError
from app.protocol.models import served_name
from app.protocol.realtimeaudio import decode_samples
from app.protocol.realtimeclient import (
    AudioAppend,
    AudioClear,
    AudioCommit,
    BadEventError,
    ClientEvent,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    decode_event,
)
from app.protocol.realtimeitems import FunctionCall, InputAudio, Item, ItemReference, Message, judge_item, told
from app.protocol.realtimeresponse import ResponseParams, asked_of, response_params
from app.protocol.realtimesession import (
    AudioInput,
    Session,
    SessionAudio,
    TurnDetection,
    changed,
)
from app.realtime.abilities import abilities_of
from app.realtime.audiobuffer import InputAudioBuffer, SpeechStarted, SpeechStopped
from app.realtime.conversation import Conversation, Entry
from app.realtime.writer import ResponseWriter
from app.routes.errors import shutting_down
from app.routes.realtimeanswer import Answer
from app.routes.realtimerunning import Running
from app.routes.realtimetranscription import Writing
from app.routes.socketlife import LARGE, Ending, first_ending, idle_for, until_gone, until_stopped
from app.routes.state import draining, model_names, orchestrator, settings, stopping
from app.routes.wire import Wire

_FRAMES_A_TURN = 25
"""Frames of sound that are judged before others have their turn: a millisecond."""


class RealtimeSession:
    """One client. `model` is the one that it named in the URL, "" for none; `session_id` is for the log."""

    def __init__(self, app: Litestar, wire: Wire, model: str, session_id: str) -> None:
        self._app = app
        self._wire = wire
        self._id = session_id
        self._limits = settings(app).speech
        self._numbers = s.EventNumbers()
        self._session = self._first_session(model)
        self._conversation = Conversation(self._limits.realtime_max_conversation_bytes)
        self._conversation_id = s.new_id("conv")
        self._buffer = InputAudioBuffer(self._limits.realtime_max_audio_s, self._session.audio.input.turn_detection)
        self._turn_id = s.new_id("item")
        self._running = Running()
        self._clock = asyncio.get_running_loop().time
        self._heard = self._clock()

    def _first_session(self, model: str) -> Session:
        abilities = abilities_of(orchestrator(self._app))
        detection = TurnDetection() if abilities.hears else None
        return Session(
            id=f"sess_{self._id}",
            model=served_name(model_names(self._app), model or None),
            output_modalities=["audio"] if abilities.speaks else ["text"],
            audio=SessionAudio(input=AudioInput(turn_detection=detection)),
        )

    async def run(self) -> None:
        """Serve the client until one of the two has had enough, then close the socket."""
        idle, failed = self._running.idle, self._running.failed()
        parts = (self._listen(), failed, until_gone(self._wire), until_stopped(self._app, idle))
        ending = await first_ending(parts, self._id, self._on_end)
        await self._running.stop()
        last_words = "" if ending.error is None else self._numbers.encode(s.error_event(ending.error))
        await self._wire.close(ending.code, ending.reason, last_words)

    def _on_end(self) -> None:
        if draining(self._app).is_set():
            self._running.shut_down()

    async def _send(self, event: s.ServerEvent) -> None:
        await self._wire.send(self._numbers.encode(event))

    # ------------------------------------------------------------------------------------------------ listening

    async def _listen(self) -> Ending:
        await self._send(s.SessionCreated(session=self._session))
        while (deadline := self._deadline()) > self._clock():
            try:
                async with asyncio.timeout_at(deadline):
                    frame = await self._wire.receive()
            except TimeoutError:
                continue  # something may have been sent meanwhile
            await self._take(frame)
            self._heard = self._clock()
        return idle_for(self._limits.realtime_idle_s, "event")

    def _deadline(self) -> float:
        """Until when the client has time for its next event; it has all the time in the world while it is answered."""
        since = max(self._heard, self._wire.sent_at) if self._running.idle.is_set() else self._clock()
        return since + self._limits.realtime_idle_s

    async def _take(self, frame: str | bytes) -> None:
        """Act on a frame; a mistake in it is told, and nothing else happens."""
        try:
            event = decode_event(frame) if len(frame) < LARGE else await asyncio.to_thread(decode_event, frame)
        except BadEventError as mistake:
            await self._send(s.error_event(mistake.error, mistake.event_id))
            return
        try:
            await self._act_on(event)
        except ApiError as error:
            await self._send(s.error_event(error, event.event_id))

    async def _act_on(self, event: ClientEvent) -> None:
        match event:
            case SessionUpdate():
                await self._update(event.session)
            case AudioAppend():
                await self._append(event.audio)
            case AudioCommit():
                await self._commit(self._buffer.commit())
            case AudioClear():
                self._buffer.clear()
                await self._send(s.BufferCleared())
            case ResponseCreate():
                self._respond(response_params(event.response or {}), event.event_id)
            case ResponseCancel():
                await self._running.cancel(self._running.found(event.response_id), "client_cancelled")
            case _:
                await self._act_on_item(event)

    async def _act_on_item(self, event: ItemCreate | ItemRetrieve | ItemDelete | ItemTruncate) -> None:
        match event:
            case ItemCreate():
                item = self._judged(event.item, "item")
                await self._tell_added(item, self._put(item, event.previous_item_id))
            case ItemRetrieve():
                await self._send(s.ItemRetrieved(item=self._conversation.entry(event.item_id).item))
            case ItemDelete():
                self._conversation.delete(event.item_id)
                await self._send(s.ItemDeleted(item_id=event.item_id))
            case ItemTruncate():
                index, end_ms = event.content_index, event.audio_end_ms
                self._conversation.truncate(event.item_id, index, end_ms)
                truncated = s.ItemTruncated(item_id=event.item_id, content_index=index, audio_end_ms=end_ms)
                await self._send(truncated)

    async def _update(self, change: dict[str, Any]) -> None:
        new = changed(self._session, change)
        served_name(model_names(self._app), new.model)
        abilities_of(orchestrator(self._app)).check_session(new)
        self._session = new
        self._buffer.detect(new.audio.input.turn_detection)
        await self._send(s.SessionUpdated(session=new))

    # -------------------------------------------------------------------------------------------- what is heard

    async def _append(self, audio: str) -> None:
        abilities_of(orchestrator(self._app)).check_hears("audio")
        self._buffer.append(decode_samples(audio, "audio"))
        for count, change in enumerate(self._buffer.turns(), 1):
            match change:
                case SpeechStarted():
                    await self._speech_started(change)
                case SpeechStopped():
                    await self._speech_stopped(change)
            if count % _FRAMES_A_TURN == 0:
                await asyncio.sleep(0)

    @property
    def _detection(self) -> TurnDetection:
        return self._session.audio.input.turn_detection or TurnDetection()

    async def _speech_started(self, change: SpeechStarted) -> None:
        await self._send(s.SpeechStartedEvent(audio_start_ms=change.at_ms, item_id=self._turn_id))
        if self._detection.interrupt_response and (answer := self._running.active) is not None:
            await self._running.cancel(answer, "turn_detected")

    async def _speech_stopped(self, change: SpeechStopped) -> None:
        await self._send(s.SpeechStoppedEvent(audio_end_ms=change.at_ms, item_id=self._turn_id))
        await self._commit(self._buffer.take_turn())
        if self._detection.create_response:
            self._respond(ResponseParams(), None)

    async def _commit(self, samples: bytes) -> None:
        encoded = (
            base64.b64encode(samples) if len(samples) < LARGE else await asyncio.to_thread(base64.b64encode, samples)
        )
        content = InputAudio(audio=encoded.decode("ascii"))
        item = Message(id=self._turn_id, role="user", content=[content])
        self._turn_id = s.new_id("item")
        previous = self._conversation.last_id
        gone = self._put(item, None)
        await self._send(s.BufferCommitted(item_id=item.item_id, previous_item_id=previous))
        await self._tell_added(item, gone)
        if (transcription := self._session.audio.input.transcription) is not None:
            model = self._session.model
            writing = Writing(self._app, self._send, item.item_id, content, samples, transcription, model, self._id)
            await self._running.write_down(writing)

    # ------------------------------------------------------------------------------------------ the conversation

    def _judged(self, item: Item, param: str) -> Item:
        """An item of the client's, complete.

        Raises:
            ApiError: 400, there is something wrong with it, or the model does not take it.
        """
        judge_item(item, param)
        abilities_of(orchestrator(self._app)).check_item(item, param)
        for position, part in enumerate(item.content if isinstance(item, Message) else ()):
            if isinstance(part, InputAudio):
                decode_samples(part.audio or "", f"{param}.content[{position}].audio")
        if isinstance(item, FunctionCall) and item.call_id is None:
            item.call_id = s.new_id("call")
        item.id, item.status = item.id or s.new_id("item"), "completed"
        return item

    def _put(self, item: Item, after: str | None) -> list[str]:
        return self._conversation.add(Entry(item), after, evict=self._session.truncation == "auto")

    async def _tell_added(self, item: Item, gone: list[str]) -> None:
        for item_id in gone:
            await self._send(s.ItemDeleted(item_id=item_id))
        previous = self._conversation.previous(item.item_id)
        for kind in (s.ItemAdded, s.ItemDone):
            await self._send(kind(item=told(item), previous_item_id=previous))

    # ------------------------------------------------------------------------------------------------- responses

    def _respond(self, params: ResponseParams, event_id: str | None) -> None:
        """Begin a response.

        Raises:
            ApiError: 400, it asks for what there is not; 409, another one runs; 503, the server stops.
        """
        if stopping(self._app).is_set():
            raise shutting_down()
        asked = asked_of(self._session, params, self._input(params))
        abilities_of(orchestrator(self._app)).check_modalities([asked.modality], "response.output_modalities")
        if not asked.items and not asked.instructions:
            raise ApiError(400, "There is nothing to answer: the conversation is empty.", code="conversation_empty")
        self._running.check_room(in_conversation=asked.in_conversation)
        conversation = self._conversation if asked.in_conversation else None
        writer = ResponseWriter(asked, conversation, self._conversation_id)
        self._running.begin(Answer(self._app, self._send, asked, writer, self._id, event_id))

    def _input(self, params: ResponseParams) -> list[Item]:
        if params.input is None:
            return self._conversation.items
        for position, item in enumerate(params.input):
            if not isinstance(item, ItemReference):
                self._judged(item, f"response.input[{position}]")
        return self._conversation.referred(params.input)
