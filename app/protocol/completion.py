"""/v1/completions: how its answers are written."""

from __future__ import annotations

import msgspec

from app.protocol.answer import NULL, Answer, Choice, Members
from app.protocol.chunks import ChunkWriter, Dialect
from app.protocol.generation import Identity, UsageMode

_DIALECT = Dialect(kind="text_completion", text=(b'"text":', b""), opening=b"", nothing=b'"text":""')


def completion_writer(identity: Identity, usage: UsageMode) -> ChunkWriter:
    """A writer of streamed text_completion events."""
    return ChunkWriter(_DIALECT, identity, usage)


def completion_answer(identity: Identity) -> Answer:
    """A collector whose result is a text_completion object."""
    return Answer("text_completion", identity, _members)


def _members(choice: Choice) -> Members:
    """`text` from the plain deltas unless the full path sent it; `logprobs` is always there, as in OpenAI's answers."""
    text = msgspec.Raw(msgspec.json.encode("".join(choice.texts)))
    present = {name: value for name, value in choice.members.items() if bytes(value) != b"null"}
    return {"text": text, "logprobs": NULL, **present}
