"""How answers are written that are read and heard: one chat.completion, or chunks; in OpenAI's shape or vllm-omni's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from app.cluster.messages import AnyEvent, Audio, Chunk, Delta, Finish
from app.protocol.answer import Members
from app.protocol.chat import chat_answer, chat_writer
from app.protocol.generation import Identity, UsageMode

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Members).decode
_text = msgspec.json.Decoder(str | None).decode
_NOTHING = (b"null", b'""')


class Voicing(msgspec.Struct, frozen=True):
    """What all pieces of an answer's sound have in common. `readable`: the text stands in `content` as well.

    `expires_at` is Unix time in seconds. `separate`: vllm-omni's shape, in which sound comes as chunks of its own.
    """

    id: str
    expires_at: int
    readable: bool
    separate: bool = False


class SpokenMessage:
    """Collects the events of one answer."""

    def __init__(self, identity: Identity, voicing: Voicing) -> None:
        self._answer = chat_answer(identity)
        self._voicing = voicing
        self._texts: list[str] = []
        self._message: Members = {}
        self._sound: list[Audio] = []

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Take a batch of events, in their order."""
        for event in events:
            match event:
                case Delta():
                    self._texts.append(event.text)
                case Chunk():
                    members = _decode(event.fields)
                    self._message |= _decode(members.pop("message", b"{}"))
                    self._answer.add([Chunk(0, _encode(members))])
                case Audio():
                    self._sound.append(event)
                case _:
                    self._answer.add([event])

    def encode(self) -> bytes:
        """The body of the response."""
        words = "".join(self._texts) or _text(self._message.get("content", b"null")) or ""
        message: dict[str, object] = {**self._message, "content": words if self._voicing.readable else None}
        if not words:
            del message["content"]
        told = {"id": self._voicing.id, "expires_at": self._voicing.expires_at, "transcript": words}
        sound = [piece.data for piece in self._sound]
        audio = b"".join((_encode(told)[:-1], b',"data":"', *sound, b'"}'))
        choice: dict[str, object] = {"message": {**message, "audio": msgspec.Raw(audio)}}
        if self._voicing.separate and self._sound:
            choice["audio_metadata"] = _metadata(self._sound)
        self._answer.add([Chunk(0, _encode(choice))])
        return self._answer.encode()


class SpokenChunks:
    """Writes one stream. Order of calls: `open` once, `write` for each batch of events, `close` once."""

    def __init__(self, identity: Identity, usage: UsageMode, voicing: Voicing) -> None:
        self._writer = chat_writer(identity, usage)
        self._voicing = voicing

    def open(self) -> bytes:
        """The chunks that tell the role, and the id of the sound."""
        begin = self._writer.open(1)
        return begin if self._voicing.separate else begin + self._audio({"id": self._voicing.id})

    def write(self, events: Iterable[AnyEvent]) -> bytes:
        """One chunk for each event that has something to say."""
        return b"".join(frame for event in events for frame in self._frames(event))

    def close(self) -> bytes:
        """The chunk with the usage, when the client asked for one."""
        return self._writer.close()

    def _frames(self, event: AnyEvent) -> Iterator[bytes]:
        match event:
            case Delta():
                self._writer.write([Delta(0, "", event.tokens)])
                if event.text:
                    yield self._worded({}, {}, msgspec.Raw(_encode(event.text)))
            case Chunk():
                choice = _decode(event.fields)
                delta = _decode(choice.pop("delta", b"{}"))
                yield self._worded(choice, delta, delta.pop("content", msgspec.Raw(b"null")))
            case Audio():
                if event.data:
                    yield self._sounding(event)
            case Finish():
                if not self._voicing.separate:
                    yield self._audio({"expires_at": self._voicing.expires_at})
                yield self._writer.write([event])
            case _:
                yield self._writer.write([event])

    def _worded(self, choice: Members, delta: Members, content: msgspec.Raw) -> bytes:
        """A piece of the text stage; what it says in plain words is the transcript, too."""
        members: dict[str, object] = dict(delta)
        if bytes(content) not in _NOTHING:
            if self._voicing.readable:
                members["content"] = content
            if not self._voicing.separate:
                members["audio"] = {"transcript": content}
        if not members and not choice:
            return b""
        return self._piece(_encode({"delta": members, **choice}), "text")

    def _audio(self, members: dict[str, object]) -> bytes:
        return self._piece(_encode({"delta": {"audio": members}}), "audio")

    def _sounding(self, event: Audio) -> bytes:
        if not self._voicing.separate:
            return self._piece(b"".join((b'{"delta":{"audio":{"data":"', event.data, b'"}}}')), "audio")
        rest = _encode({"audio_metadata": _metadata([event])})[1:]
        head = b'{"delta":{"role":"assistant","content":"'
        return self._piece(b"".join((head, event.data, b'"},', rest)), "audio")

    def _piece(self, fields: bytes, modality: str) -> bytes:
        extra = b'"modality":"%b"' % modality.encode() if self._voicing.separate else b""
        return self._writer.piece(fields, extra)


def _metadata(sound: list[Audio]) -> dict[str, object]:
    frames = sum(piece.samples for piece in sound)
    first = sound[0]
    return {"format": first.format, "sample_rate_hz": first.sample_rate, "frame_count": frames, "channels": 1}
