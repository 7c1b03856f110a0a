"""One response as events: what the stages emit in, OpenAI's events in their order out, and the items made of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import msgspec

from app.cluster.messages import AnyEvent, Audio, Chunk, Delta, Finish, Usage
from app.protocol import realtimeserver as s
from app.protocol.realtimeitems import FunctionCall, Item, ItemStatus, Message
from app.protocol.realtimeresponse import Asked, StatusDetails, response_of, response_usage
from app.realtime.conversation import Conversation, Entry
from app.realtime.output import Calling, Output, Saying


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)


class _Choice(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Fields(msgspec.Struct):
    delta: _Choice = msgspec.field(default_factory=_Choice)


_decode = msgspec.json.Decoder(_Fields).decode


class ResponseWriter:
    """Writes one response. Order of calls: `open` once, `write` for each event, `close` once.

    What is yielded has to be encoded before the next is asked for. `conversation`: where the items go, if anywhere.
    """

    def __init__(self, asked: Asked, conversation: Conversation | None, conversation_id: str) -> None:
        self._response = response_of(asked, s.new_id("resp"), conversation_id)
        self._heard = asked.modality == "audio"
        self._conversation = conversation
        self._outputs: list[Output] = []
        self._saying: Saying | None = None
        self._calls: dict[int, Calling] = {}
        self._reason = "stop"

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return self._response.id

    def open(self) -> Iterator[s.ServerEvent]:
        """The beginning."""
        yield s.ResponseCreated(response=self._response)

    def write(self, event: AnyEvent) -> Iterator[s.ServerEvent]:
        """What the client is told of an event."""
        match event:
            case Delta() if event.text:
                yield from self._say(event.text)
            case Chunk():
                delta = _decode(event.fields).delta
                if delta.content:
                    yield from self._say(delta.content)
                for call in delta.tool_calls or ():
                    yield from self._call(call)
            case Audio():
                yield from self._sound(event)
            case Finish():
                self._reason = event.reason
            case Usage():
                self._response.usage = response_usage(event)

    @property
    def outcome(self) -> StatusDetails:
        """How a response has ended whose stages have ended well."""
        match self._reason:
            case "length":
                return StatusDetails(type="incomplete", reason="max_output_tokens")
            case "content_filter":
                return StatusDetails(type="incomplete", reason="content_filter")
        return StatusDetails(type="completed")

    def close(self, details: StatusDetails) -> Iterator[s.ServerEvent]:
        """The end."""
        status: ItemStatus = "completed" if details.type == "completed" else "incomplete"
        for output in self._outputs:
            yield from output.close(status, whole=details.type in ("completed", "incomplete"))
            item = output.entry.item
            if self._conversation is not None:
                gone = self._conversation.settle(output.entry, item)
                yield from (s.ItemDeleted(item_id=item_id) for item_id in gone)
                yield s.ItemDone(item=item, previous_item_id=self._conversation.previous(item.item_id))
            yield s.OutputItemDone(response_id=self.response_id, output_index=output.place.output_index, item=item)
            self._response.output.append(item)
        self._response.status, self._response.status_details = details.type, details
        yield s.ResponseDone(response=self._response)

    def _say(self, words: str) -> Iterator[s.ServerEvent]:
        yield from self._begin_saying()
        assert self._saying is not None
        yield self._saying.words(words)

    def _sound(self, event: Audio) -> Iterator[s.ServerEvent]:
        yield from self._begin_saying()
        assert self._saying is not None
        yield from self._saying.sound(event)

    def _begin_saying(self) -> Iterator[s.ServerEvent]:
        if self._saying is not None:
            return
        item = Message(id=s.new_id("item"), status="in_progress", role="assistant", content=[])
        entry, place = yield from self._begin(item)
        self._saying = Saying(entry, place, heard=self._heard)
        self._outputs.append(self._saying)
        yield self._saying.open()

    def _call(self, call: _ToolCall) -> Iterator[s.ServerEvent]:
        if call.index not in self._calls:
            call_id = call.id or s.new_id("call")
            name = call.function.name or ""
            item = FunctionCall(id=s.new_id("item"), status="in_progress", name=name, arguments="", call_id=call_id)
            entry, place = yield from self._begin(item)
            self._calls[call.index] = calling = Calling(entry, place, item)
            self._outputs.append(calling)
        if call.function.arguments:
            yield self._calls[call.index].arguments(call.function.arguments)

    def _begin(self, item: Item) -> Generator[s.ServerEvent, None, tuple[Entry, s.Place]]:
        entry = Entry(item, open=True)
        place = s.Place(self.response_id, item.item_id, len(self._outputs))
        yield s.OutputItemAdded(response_id=self.response_id, output_index=place.output_index, item=item)
        if self._conversation is not None:
            previous = self._conversation.last_id
            gone = self._conversation.add(entry)
            yield from (s.ItemDeleted(item_id=item_id) for item_id in gone)
            yield s.ItemAdded(item=item, previous_item_id=previous)
        return entry, place
