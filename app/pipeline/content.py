"""The plain words among the events of a text stage: what a person would read of its answer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from app.cluster.messages import AnyEvent, Chunk, Delta


class _Part(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Part | None = None
    message: _Part | None = None


_decode = msgspec.json.Decoder(_Choice).decode


def content_of(events: Iterable[AnyEvent]) -> str:
    """The content of an answer without reasoning and tool calls; markdown stays as it is."""
    return "".join(_words(event) for event in events)


def _words(event: AnyEvent) -> str:
    if isinstance(event, Delta):
        return event.text
    if isinstance(event, Chunk):
        choice = _decode(event.fields)
        part = choice.delta or choice.message
        return part.content or "" if part is not None else ""
    return ""
