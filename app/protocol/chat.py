"""/v1/chat/completions: how its answers are written."""

from __future__ import annotations

import msgspec

from app.protocol.answer import NULL, Answer, Choice, Members
from app.protocol.chunks import ChunkWriter, Dialect
from app.protocol.generation import Identity, UsageMode

_DIALECT = Dialect(
    kind="chat.completion.chunk",
    text=(b'"delta":{"content":', b"}"),
    opening=b'"delta":{"role":"assistant","content":""}',
    nothing=b'"delta":{}',
)

_ASSISTANT = msgspec.Raw(b'"assistant"')
_decode_message = msgspec.json.Decoder(Members).decode


def chat_writer(identity: Identity, usage: UsageMode) -> ChunkWriter:
    """A writer of chat.completion.chunk events."""
    return ChunkWriter(_DIALECT, identity, usage)


def chat_answer(identity: Identity) -> Answer:
    """A collector whose result is a chat.completion object."""
    return Answer("chat.completion", identity, _members)


def _members(choice: Choice) -> Members:
    """The same members from both paths of the engine: null ones go, except those that OpenAI always sends."""
    message: Members = {"role": _ASSISTANT, "content": NULL, "refusal": NULL}
    if "message" in choice.members:
        message |= _present(_decode_message(choice.members["message"]))
    if choice.texts:
        message["content"] = msgspec.Raw(msgspec.json.encode("".join(choice.texts)))
    rest = _present({name: value for name, value in choice.members.items() if name != "message"})
    return {"message": msgspec.Raw(msgspec.json.encode(message)), "logprobs": NULL, **rest}


def _present(values: Members) -> Members:
    return {name: value for name, value in values.items() if bytes(value) not in (b"null", b"[]")}
