"""The items of one response while it works on them: what is said, in words and in sound, and functions to be called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from app.cluster.messages import Audio
from app.protocol import realtimeserver as s
from app.protocol.realtimeitems import FunctionCall, ItemStatus, OutputAudio, OutputText
from app.realtime.conversation import Entry

PIECE = 32 << 10
"""Characters of base64 in one event: half a second of sound."""
_WHOLE = 8
"""Characters of base64 that are whole bytes and whole samples: six bytes."""


class Output(Protocol):
    """One item of a response."""

    entry: Entry
    place: s.Place

    def close(self, status: ItemStatus, *, whole: bool) -> Iterator[s.ServerEvent]:
        """Its end; afterwards the item is what it will be. `whole`: nothing was cut off."""


class Saying:
    """A message of the assistant's: `heard`, or read."""

    def __init__(self, entry: Entry, place: s.Place, *, heard: bool) -> None:
        self.entry = entry
        self.place = place
        self._heard = heard
        self._at = msgspec.structs.asdict(place)
        self._words: list[str] = []
        self._held = b""

    def open(self) -> s.ServerEvent:
        """Its beginning."""
        return s.ContentPartAdded(**self._at, part=self._part(""))

    def _part(self, words: str) -> dict[str, str]:
        return {"type": "audio", "transcript": words} if self._heard else {"type": "text", "text": words}

    def words(self, words: str) -> s.ServerEvent:
        """More words."""
        self._words.append(words)
        return s.TranscriptDelta(**self._at, delta=words) if self._heard else s.TextDelta(**self._at, delta=words)

    def sound(self, event: Audio) -> Iterator[s.ServerEvent]:
        """More sound: clients play each delta by itself, so none ends within a sample."""
        self.entry.soundtrack.add(event.samples, event.transcript)
        data = self._held + event.data
        whole = len(data) - len(data) % _WHOLE
        self._held = data[whole:]
        for begin in range(0, whole, PIECE):
            yield self._delta(data[begin : min(begin + PIECE, whole)])

    def _delta(self, data: bytes) -> s.ServerEvent:
        return s.AudioDelta(**self._at, delta=data.decode("ascii"))

    def close(self, status: ItemStatus, *, whole: bool) -> Iterator[s.ServerEvent]:
        """See Output."""
        words = "".join(self._words)
        if self._heard:
            if self._held and whole:
                yield self._delta(self._held)
            yield s.AudioDone(**self._at)
            yield s.TranscriptDone(**self._at, transcript=words)
        else:
            yield s.TextDone(**self._at, text=words)
        yield s.ContentPartDone(**self._at, part=self._part(words))
        content = OutputAudio(transcript=words) if self._heard else OutputText(text=words)
        self.entry.item = msgspec.structs.replace(self.entry.item, status=status, content=[content])


class Calling:
    """A function that the client shall call."""

    def __init__(self, entry: Entry, place: s.Place, call: FunctionCall) -> None:
        self.entry = entry
        self.place = place
        self._call = call
        self._at = {**msgspec.structs.asdict(place), "call_id": call.call_id or ""}
        self._arguments: list[str] = []

    def arguments(self, piece: str) -> s.ServerEvent:
        """More of the arguments' JSON."""
        self._arguments.append(piece)
        return s.ArgumentsDelta(**self._at, delta=piece)

    def close(self, status: ItemStatus, *, whole: bool) -> Iterator[s.ServerEvent]:
        """See Output."""
        arguments = "".join(self._arguments)
        yield s.ArgumentsDone(**self._at, name=self._call.name, arguments=arguments)
        self.entry.item = msgspec.structs.replace(self._call, status=status, arguments=arguments)
