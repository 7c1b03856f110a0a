"""A whole answer: events in, one JSON object out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from app.cluster.messages import AnyEvent, Chunk, Delta, Extra, Finish
from app.protocol.generation import Identity, Tally, joined, members

Members = dict[str, msgspec.Raw]
NULL = msgspec.Raw(b"null")

_decode = msgspec.json.Decoder(Members).decode
_encode = msgspec.json.Encoder().encode


class Choice:
    """One choice while it is collected: plain text, or the members that the engine's full path sent."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.members: Members = {}
        self.finish = Finish(0, "stop")

    def add(self, event: Delta | Chunk | Finish) -> None:
        """Take one event of this choice."""
        match event:
            case Delta():
                self.texts.append(event.text)
            case Chunk():
                self.members |= _decode(event.fields)
            case Finish():
                self.finish = event


class Answer:
    """Collects the events of one request. `members_of` says how an API writes a choice."""

    def __init__(self, kind: str, identity: Identity, members_of: Callable[[Choice], Members]) -> None:
        self._opening = identity.opening(kind)
        self._members_of = members_of
        self._choices: dict[int, Choice] = {}
        self._tally = Tally()
        self._extra: list[bytes] = []

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Take a batch of events, in their order."""
        for event in events:
            self._tally.count(event)
            if isinstance(event, Delta | Chunk | Finish):
                self._choices.setdefault(event.index, Choice()).add(event)
            elif isinstance(event, Extra):
                self._extra.append(members(event.fields))

    def encode(self) -> bytes:
        """The body of the response."""
        choices = b",".join(self._choice(index) for index in sorted(self._choices))
        usage = b'"usage":' + self._tally.encode()
        return self._opening + joined(b'"choices":[' + choices + b"]", usage, *self._extra) + b"}"

    def _choice(self, index: int) -> bytes:
        choice = self._choices[index]
        ending: Members = {
            "finish_reason": msgspec.Raw(_encode(choice.finish.reason)),
            "stop_reason": msgspec.Raw(choice.finish.stop_reason),
        }
        return _encode({"index": index, **self._members_of(choice), **ending})
