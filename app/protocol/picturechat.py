"""/v1/chat/completions where the model draws: the conversation's text is the prompt, its pictures are the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec

from app.cluster.messages import AnyEvent, Chunk, Done, Extra, Finish, Picture, Progress, Usage
from app.protocol.errors import ApiError
from app.protocol.generation import StreamOptions, UsageMode
from app.protocol.imageanswers import progress_comment
from app.protocol.images import MAX_PICTURES, MAX_SIDE, Controls, Strength, checked_prompt
from app.protocol.pictures import PictureSource

MODALITIES = ("image", "text")

_ALIASES = {"num_outputs_per_prompt": "n", "cfg_scale": "true_cfg_scale", "extra_args": "extra_params"}


class ChatControls(Controls, kw_only=True, forbid_unknown_fields=True):
    """How pictures are drawn, with vllm-omni's further names of it in chats."""

    width: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIDE)] | None = None
    height: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIDE)] | None = None
    num_outputs_per_prompt: Annotated[int, msgspec.Meta(ge=1, le=MAX_PICTURES)] | None = None
    cfg_scale: Strength | None = None
    extra_args: dict[str, Any] | None = None


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    """`detail` has no effect: pictures are taken as large as they are."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class TextPart(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Text of a message."""

    text: str


class ImagePart(msgspec.Struct, tag="image_url", tag_field="type", forbid_unknown_fields=True):
    """A picture of a message."""

    image_url: ImageUrl


class Message(msgspec.Struct):
    """One message; only those of the user are read. Answers that come back as history may have further members."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart | ImagePart] | None = None


class Usages(StreamOptions, forbid_unknown_fields=True):
    """`stream_options`, judged here: no engine sees them."""


class PictureChat(ChatControls, kw_only=True, forbid_unknown_fields=True):
    """The body. `user`, `metadata`, `store` and the like have no effect on a picture."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    model: str | None = None
    modalities: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    stream: bool | None = None
    stream_options: Usages | None = None
    extra_body: ChatControls | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None

    @property
    def usage_mode(self) -> UsageMode:
        """Where a stream carries usage."""
        return "never" if self.stream_options is None else self.stream_options.usage_mode

    def check(self) -> None:
        """
        Raises:
            ApiError: 400, modalities that are not made here.
        """
        for position, name in enumerate(self.modalities or ()):
            if name not in MODALITIES or name in (self.modalities or [])[:position]:
                problem = "is there twice" if name in MODALITIES else "is not made here"
                message = f"modalities: {name[:50]!r} {problem}; it is a list of {', '.join(MODALITIES)}."
                raise ApiError(400, message, param=f"modalities[{position}]", code="invalid_value")
        if self.modalities is not None and "image" not in self.modalities:
            message = "modalities: the served model answers with pictures, so it must hold image."
            raise ApiError(400, message, param="modalities", code="invalid_value")

    def controls(self) -> Controls:
        """The controls of the body and of its extra_body, under their names on the images routes.

        Raises:
            ApiError: 400, something is wrong or there twice.
        """
        given = _given(self, "")
        nested = _given(self.extra_body, "extra_body.") if self.extra_body is not None else {}
        for name, (path, _) in nested.items():
            if name in given:
                raise _twice(path, given[name][0])
        given |= nested
        return Controls(**{name: value for name, (_, value) in given.items()})

    def prompt(self) -> str:
        """The text of the user's messages.

        Raises:
            ApiError: 400, there is none.
        """
        return checked_prompt(
            " ".join(part.text for _, part in self._parts() if isinstance(part, TextPart)), "messages"
        )

    def sources(self) -> list[PictureSource]:
        """The pictures of the user's messages."""
        return [
            PictureSource(url=part.image_url.url, param=f"{path}.image_url.url")
            for path, part in self._parts()
            if isinstance(part, ImagePart)
        ]

    def _parts(self) -> Iterator[tuple[str, TextPart | ImagePart]]:
        for position, message in enumerate(self.messages):
            if message.role != "user" or message.content is None:
                continue
            path = f"messages[{position}].content"
            if isinstance(message.content, str):
                yield path, TextPart(message.content)
            else:
                yield from ((f"{path}[{index}]", part) for index, part in enumerate(message.content))


_NAMES = frozenset(Controls.__struct_fields__)


def _given(controls: ChatControls, prefix: str) -> dict[str, tuple[str, Any]]:
    """What is set, by its name on the images routes: the path where it was found, and the value."""
    found: dict[str, tuple[str, Any]] = {}
    for field in ChatControls.__struct_fields__:
        name, value = _ALIASES.get(field, field), getattr(controls, field)
        if value is None or name not in _NAMES:
            continue
        if name in found:
            raise _twice(prefix + field, found[name][0])
        found[name] = prefix + field, value
    if controls.width is not None or controls.height is not None:
        if "size" in found:
            raise _twice(prefix + "width", found["size"][0])
        if controls.width is None or controls.height is None:
            missing = prefix + ("width" if controls.width is None else "height")
            message = f"{missing} is required: width and height come together."
            raise ApiError(400, message, param=missing, code="missing_required_parameter")
        found["size"] = prefix + "width", f"{controls.width}x{controls.height}"
    return found


def _twice(path: str, other: str) -> ApiError:
    return ApiError(400, f"{path} says again what {other} says; give one.", param=path, code="invalid_value")


def as_message(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """Finished pictures and usage of a whole answer as the events of a chat: one message that holds all pictures."""
    pictures = [event for event in events if isinstance(event, Picture) and event.preview < 0]
    pictures.sort(key=lambda picture: picture.index)
    pieces = [piece for picture in pictures for piece in (b",", *_part(picture))][1:]
    rest = [
        _plain(event) if isinstance(event, Usage) else event for event in events if isinstance(event, Usage | Extra)
    ]
    return [Chunk(0, b"".join((b'{"message":{"content":[', *pieces, b"]}}"))), *rest, Finish(0, "stop")]


def as_deltas(events: Iterable[AnyEvent]) -> tuple[bytes, list[AnyEvent]]:
    """A batch of events as a comment on the progress, and the events of a streamed chat: a delta for each picture."""
    comment = b""
    deltas: list[AnyEvent] = []
    for event in events:
        match event:
            case Progress():
                comment = progress_comment(event)
            case Picture() if event.preview < 0:
                deltas.append(Chunk(0, b"".join((b'{"delta":{"content":[', *_part(event), b"]}}"))))
            case Extra():
                deltas.append(event)
            case Usage():
                deltas.append(_plain(event))
            case Done():
                deltas.append(Finish(0, "stop"))
    return comment, deltas


def _part(picture: Picture) -> tuple[bytes, memoryview, bytes]:
    head = b'{"type":"image_url","image_url":{"url":"data:image/%b;base64,' % picture.format.encode()
    return head, picture.data, b'"},"seed":%d}' % picture.seed


def _plain(usage: Usage) -> Usage:
    """Without the details, whose names are those of the images API."""
    return Usage(usage.prompt_tokens, usage.completion_tokens)
