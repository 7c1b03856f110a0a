"""/v1/realtime: the items of a conversation and their content, as clients send them and are told of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from app.protocol.errors import ApiError, invalid, unsupported

ItemId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
ItemStatus = Literal["completed", "incomplete", "in_progress"]


class InputText(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="input_text"):
    """What a user or a system message says."""

    text: str


class InputAudio(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="input_audio", omit_defaults=True):
    """What a user has said: `audio` is base64 of samples as app.protocol.realtimeaudio describes them."""

    audio: str | None = None
    transcript: str | None = None


class InputImage(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="input_image", omit_defaults=True):
    """A picture, as a data URL."""

    image_url: str
    detail: Literal["auto", "low", "high"] | None = None


class OutputText(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    """What an assistant has written."""

    text: str


class BetaText(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """The name of output_text before the API was complete."""

    text: str


class OutputAudio(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="output_audio", omit_defaults=True):
    """What an assistant has said. Its sound has gone to the client and is not kept."""

    transcript: str | None = None
    audio: str | None = None


Content = InputText | InputAudio | InputImage | OutputText | BetaText | OutputAudio


class _Item(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    id: ItemId | None = None
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus = "completed"

    @property
    def item_id(self) -> str:
        """The id, which every item of a conversation has."""
        assert self.id is not None, "items get an id when they are judged"
        return self.id


class Message(_Item, kw_only=True, forbid_unknown_fields=True, tag="message"):
    """Something that somebody says."""

    role: Literal["user", "assistant", "system"]
    content: list[Content]


class FunctionCall(_Item, kw_only=True, forbid_unknown_fields=True, tag="function_call"):
    """A function that the model wants called; `arguments` is JSON."""

    name: str
    arguments: str
    call_id: str | None = None


class FunctionCallOutput(_Item, kw_only=True, forbid_unknown_fields=True, tag="function_call_output"):
    """What the call of that id has returned."""

    call_id: str
    output: str


class ItemReference(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="item_reference"):
    """An item of the conversation, in the input of a response."""

    id: ItemId


Item = Message | FunctionCall | FunctionCallOutput

_MAY_SAY: dict[str, tuple[type[Content], ...]] = {
    "user": (InputText, InputAudio, InputImage),
    "assistant": (OutputText, BetaText, OutputAudio),
    "system": (InputText,),
}


def judge_item(item: Item, param: str) -> None:
    """Check what the types of its fields do not show; `param` is where it stands in the event.

    Raises:
        ApiError: 400, content that its role cannot have, or that is not kept here.
    """
    if not isinstance(item, Message):
        return
    if not item.content:
        raise invalid(f"{param}.content", "must not be empty")
    allowed = _MAY_SAY[item.role]
    for position, part in enumerate(item.content):
        place = f"{param}.content[{position}]"
        if not isinstance(part, allowed):
            names = ", ".join(str(kind.__struct_config__.tag) for kind in allowed)
            raise invalid(f"{place}.type", f"a message of the role {item.role} has content of the types {names}")
        match part:
            case InputAudio(audio=None):
                raise _missing(f"{place}.audio")
            case OutputAudio() if part.audio is not None:
                raise unsupported(f"{place}.audio", "what an assistant has said is kept as its transcript only")
            case OutputAudio(transcript=None):
                raise _missing(f"{place}.transcript")


def _missing(param: str) -> ApiError:
    return ApiError(400, f"{param} is required.", param=param, code="missing_required_parameter")


def told(item: Item, *, with_audio: bool = False) -> Item:
    """The item as events show it: with the sound of its content only where a client asks for that."""
    if with_audio or not isinstance(item, Message):
        return item
    content = [
        msgspec.structs.replace(part, audio=None) if isinstance(part, InputAudio) else part for part in item.content
    ]
    return msgspec.structs.replace(item, content=content)


def size_of(item: Item) -> int:
    """How many bytes it keeps, about."""
    return _OVERHEAD + sum(len(text) for text in _texts(item))


def _texts(item: Item) -> Iterator[str]:
    match item:
        case Message():
            for part in item.content:
                yield from (text for text in msgspec.structs.astuple(part) if text)
        case FunctionCall():
            yield item.arguments
            yield item.name
        case FunctionCallOutput():
            yield item.output


_OVERHEAD = 512
"""Of the objects that an item consists of."""
