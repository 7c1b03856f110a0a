"""Answers of the routes that draw: one JSON object, or server-sent events. Base64 is the replica's, as it came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from app.cluster.messages import AnyEvent, Done, Extra, Picture, Progress, Usage
from app.protocol.generation import joined, members
from app.protocol.sse import named_frame

Family = Literal["image_generation", "image_edit"]
"""What OpenAI's events are named after."""


class Setting(msgspec.Struct, frozen=True):
    """What answers repeat of a request. `created` is Unix time in seconds; `quality` and `background` as drawn."""

    created: int
    output_format: str
    quality: str
    background: str


class Link(msgspec.Struct, frozen=True):
    """Where a picture can be fetched, until `expires_at` (Unix time in seconds)."""

    url: str
    expires_at: int


class Collected:
    """The finished pictures of one request, by their index, and what it used."""

    def __init__(self) -> None:
        self._pictures: dict[int, Picture] = {}
        self._usage = Usage(0, 0)
        self._told = b""

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Take a batch of events; previews and progress are not kept."""
        for event in events:
            if isinstance(event, Picture) and event.preview < 0:
                self._pictures[event.index] = event
            elif isinstance(event, Usage):
                self._usage = event
            elif isinstance(event, Extra):
                self._told = event.fields

    @property
    def pictures(self) -> list[Picture]:
        """In the order of their index."""
        return [self._pictures[index] for index in sorted(self._pictures)]

    def encode(self, setting: Setting, links: Sequence[Link] = ()) -> bytes:
        """The body of the response: the pictures in base64, or `links` to them, one for each."""
        pictures = self.pictures
        rest = _members(setting, pictures[0]) | {"usage": usage_object(self._usage)}
        head = msgspec.json.encode({"created": setting.created, **rest})
        pieces: list[bytes | memoryview] = []  # joined once: pictures are large
        if links:
            for link, picture in zip(links, pictures, strict=True):
                pieces += (b",{", members(msgspec.json.encode(link)), self._rest(picture))
        else:
            for picture in pictures:
                pieces += (b",{", b'"b64_json":"', picture.data, b'"', self._rest(picture))
        return b"".join((head[:-1], b',"data":[{', *pieces[1:], b"]}"))

    def _rest(self, picture: Picture) -> bytes:
        """The end of a picture's object, with what is told of all: the prompt that was written for them."""
        return b"," + joined(b'"seed":%d' % picture.seed, members(self._told)) + b"}"


class ImageEvents:
    """Writes one stream. OpenAI's events of finished pictures carry the usage, so they wait for it."""

    def __init__(self, family: Family, setting: Setting) -> None:
        self._family = family
        self._setting = setting
        self._finished: list[Picture] = []
        self._usage: Usage | None = None
        self._told: dict[str, Any] = {}

    def write(self, events: Iterable[AnyEvent]) -> bytes:
        """The frames of a batch of events: previews, finished pictures, the latest progress as a comment."""
        frames = []
        progress = b""
        for event in events:
            match event:
                case Progress():
                    progress = progress_comment(event)
                case Picture() if event.preview >= 0:
                    frames.append(self._frame(event, "partial_image", {"partial_image_index": event.preview}))
                case Picture():
                    self._finished.append(event)
                case Usage():
                    self._usage = event
                case Extra():
                    self._told = msgspec.json.decode(event.fields)
                case Done():
                    self._usage = self._usage or Usage(0, 0)
        if self._usage is not None:
            usage = {**self._told, "usage": usage_object(self._usage)}
            frames += [self._frame(picture, "completed", usage) for picture in self._finished]
            self._finished = []
        return b"".join([progress, *frames] if progress else frames)  # one frame is not copied again

    def _frame(self, picture: Picture, kind: str, further: dict[str, Any]) -> bytes:
        name = f"{self._family}.{kind}"
        fields = {
            "type": name,
            "created_at": self._setting.created,
            **_members(self._setting, picture),
            "index": picture.index,
            "seed": picture.seed,
            **further,
        }
        return named_frame(name, msgspec.json.encode(fields)[:-1], b',"b64_json":"', picture.data, b'"}')


def progress_comment(event: Progress) -> bytes:
    """A comment in a stream: clients skip it, people and proxies see that something goes on."""
    return b": step %d/%d\n\n" % (event.step, event.steps)


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage of a picture. The engine may tell the details; else input is text and output is picture."""
    told = msgspec.json.decode(usage.details) if usage.details else {}
    taken, made = usage.prompt_tokens, usage.completion_tokens
    return {
        "input_tokens": taken,
        "input_tokens_details": told.get("input_tokens_details", {"text_tokens": taken, "image_tokens": 0}),
        "output_tokens": made,
        "output_tokens_details": told.get("output_tokens_details", {"text_tokens": 0, "image_tokens": made}),
        "total_tokens": taken + made,
    }


def _members(setting: Setting, picture: Picture) -> dict[str, Any]:
    return {
        "size": f"{picture.width}x{picture.height}",
        "output_format": setting.output_format,
        "quality": setting.quality,
        "background": setting.background,
    }
