"""What the stage that chats is asked for a response: the conversation as messages of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from app.protocol.realtimeaudio import wav_base64
from app.protocol.realtimeitems import (
    BetaText,
    Content,
    FunctionCall,
    FunctionCallOutput,
    InputAudio,
    InputImage,
    InputText,
    Item,
    Message,
    OutputAudio,
    OutputText,
)
from app.protocol.realtimeresponse import Asked
from app.protocol.realtimesession import ChosenFunction, FunctionTool

Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode


def chat_body(asked: Asked, items: Sequence[Item]) -> bytes:
    """The body of the chat that answers `items`."""
    body: Json = {
        "model": asked.model,
        "messages": _messages(asked.instructions, items),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if asked.temperature is not None:
        body["temperature"] = asked.temperature
    if asked.max_output_tokens != "inf":
        body["max_completion_tokens"] = asked.max_output_tokens
    if asked.tools and asked.tool_choice != "none":
        body["tools"] = [_tool(tool) for tool in asked.tools]
        body["tool_choice"] = _choice(asked.tool_choice)
        if asked.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = asked.parallel_tool_calls
    return _encode(body)


def _tool(tool: FunctionTool) -> Json:
    told = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": {name: value for name, value in told.items() if value is not None}}


def _choice(choice: str | ChosenFunction) -> str | Json:
    return choice if isinstance(choice, str) else {"type": "function", "function": {"name": choice.name}}


def _messages(instructions: str, items: Sequence[Item]) -> list[Json]:
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        match item:
            case Message() if content := _content(item.content):  # nothing may have been said before an interruption
                messages.append({"role": item.role, "content": content})
            case FunctionCall():
                _add_call(messages, item)
            case FunctionCallOutput():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
    return messages


def _add_call(messages: list[Json], call: FunctionCall) -> None:
    """Calls belong to the message of the assistant before them, where there is one."""
    told = {"name": call.name, "arguments": call.arguments}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append({"id": call.call_id, "type": "function", "function": told})


def _content(parts: Sequence[Content]) -> str | list[Json]:
    """Plain text where it is nothing else: there are chat templates that know no parts."""
    texts = [_text(part) for part in parts]
    if None not in texts:
        return "\n".join(text for text in texts if text is not None)
    return [_part(part) for part in parts]


def _text(part: Content) -> str | None:
    match part:
        case InputText() | OutputText() | BetaText():
            return part.text
        case OutputAudio():
            return part.transcript or ""
    return None


def _part(part: Content) -> Json:
    match part:
        case InputAudio():
            return {"type": "input_audio", "input_audio": {"data": wav_base64(part.audio or ""), "format": "wav"}}
        case InputImage():
            detail = {} if part.detail is None else {"detail": part.detail}
            return {"type": "image_url", "image_url": {"url": part.image_url, **detail}}
    return {"type": "text", "text": _text(part) or ""}


def later_half(items: Sequence[Item]) -> list[Item]:
    """The later items, without what a call has returned that is not among them."""
    rest = list(items[(len(items) + 1) // 2 :])
    while rest and isinstance(rest[0], FunctionCallOutput):
        del rest[0]
    return rest
