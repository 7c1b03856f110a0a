"""A streamed answer: events in, server-sent chunks out.

This runs once per token. All that the chunks of a choice have in common is encoded once; a token costs the JSON
encoding of its text and one concatenation.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from app.cluster.messages import AnyEvent, Chunk, Delta, Extra, Finish, Usage
from app.protocol.generation import Identity, Tally, UsageMode, joined, members

_encode = msgspec.json.Encoder().encode


class Dialect(msgspec.Struct, frozen=True):
    """How an API writes a choice: members of the choice object as encoded JSON.

    `text` stands before and after the encoded text; `opening` begins every choice (b"": nothing does); `nothing` is a
    choice without text.
    """

    kind: str
    text: tuple[bytes, bytes]
    opening: bytes
    nothing: bytes


class ChunkWriter:
    """Writes one stream. Order of calls: `open` once, `write` for each batch of events, `close` once."""

    def __init__(self, dialect: Dialect, identity: Identity, usage: UsageMode = "never") -> None:
        self._dialect = dialect
        self._usage = usage
        self._tally = Tally()
        self._head = b"data: " + identity.opening(dialect.kind)
        self._prefixes: dict[int, bytes] = {}
        self._end = b'],"usage":null}\n\n' if usage != "never" else b"]}\n\n"
        self._text_end = dialect.text[1] + b',"finish_reason":null}'
        self._suffix = self._text_end + self._end

    def open(self, choices: int) -> bytes:
        """The first chunk of each choice, which tells the role; empty in APIs without roles."""
        if not self._dialect.opening:
            return b""
        return b"".join(self._chunk(index, self._dialect.opening) for index in range(choices))

    def write(self, events: Iterable[AnyEvent]) -> bytes:
        """One chunk for each event that has something to say."""
        return b"".join([self._delta(event) if type(event) is Delta else self._other(event) for event in events])

    def piece(self, fields: bytes, extra: bytes = b"") -> bytes:
        """One chunk of choice 0: a choice object as in Chunk, beside members of the top level."""
        return self._chunk(0, members(fields), extra=extra)

    def close(self) -> bytes:
        """The chunk with the usage, when the client asked for one. [DONE] is the caller's."""
        if self._usage == "never":
            return b""
        return self._head + b'"choices":[],"usage":' + self._tally.encode() + b"}\n\n"

    def _delta(self, event: Delta) -> bytes:
        self._tally.add(event.tokens)
        if not event.text:
            return b""
        prefix = self._prefixes.get(event.index) or self._prefix(event.index)
        if self._usage == "always":
            return prefix + _encode(event.text) + self._text_end + self._with_usage()
        return prefix + _encode(event.text) + self._suffix

    def _other(self, event: AnyEvent) -> bytes:
        match event:
            case Chunk():
                return self._chunk(event.index, members(event.fields))
            case Finish():
                return self._chunk(event.index, self._dialect.nothing, event)
            case Extra():
                return self._chunk(0, self._dialect.nothing, extra=members(event.fields))
            case Usage():
                self._tally.count(event)
        return b""

    def _chunk(self, index: int, choice: bytes, finish: Finish | None = None, extra: bytes = b"") -> bytes:
        ending = b'"finish_reason":null'
        if finish is not None:
            ending = b'"finish_reason":%b,"stop_reason":%b' % (_encode(finish.reason), finish.stop_reason)
        begin = self._head + joined(extra, b'"choices":[{' + joined(b'"index":%d' % index, choice, ending)) + b"}"
        return begin + (self._with_usage() if self._usage == "always" else self._end)

    def _with_usage(self) -> bytes:
        return b'],"usage":' + self._tally.encode() + b"}\n\n"

    def _prefix(self, index: int) -> bytes:
        prefix = self._head + b'"choices":[{"index":%d,' % index + self._dialect.text[0]
        self._prefixes[index] = prefix
        return prefix
