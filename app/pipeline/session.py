"""What requests of one session have in common, so that they can go where their prefix is in the cache."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

_READ = 64 << 10
"""How much of a message, or of a prompt, tells a session from others."""


class _Names(msgspec.Struct):
    """What a client may name its session by, OpenAI's fields, the most telling one first."""

    prompt_cache_key: Any = None
    safety_identifier: Any = None
    user: Any = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct):
    role: Any = None


_decode = msgspec.json.Decoder(_Names).decode
_messages = msgspec.json.Decoder(list[msgspec.Raw]).decode
_message = msgspec.json.Decoder(_Message).decode


def session_of(body: bytes) -> bytes:
    """A key for the session that a request of an LLM route belongs to; b"" if it tells of none.

    That is a name that the client gave, or else how the conversation begins: with its instructions and what the user
    said first, which every later turn repeats. Of a text prompt it is the beginning.
    """
    try:
        asked = _decode(body)
        for name in (asked.prompt_cache_key, asked.safety_identifier, asked.user):
            if isinstance(name, str) and name:
                return _digest(name.encode())
        return _beginning(bytes(asked.messages) or bytes(asked.input)) or _digest(bytes(asked.prompt)[: _READ // 64])
    except msgspec.DecodeError:  # no JSON object, or none of a chat: the replica judges it
        return b""


def _beginning(messages: bytes) -> bytes:
    if not messages.startswith(b"["):
        return _digest(messages[: _READ // 64])
    begun = b""
    for message in _messages(messages):
        begun += bytes(message)[:_READ]
        if _message(message).role == "user":
            break
    return _digest(begun)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest() if text else b""
