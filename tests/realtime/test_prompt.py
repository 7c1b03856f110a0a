"""A conversation as messages of a chat, for the cases that whole talks do not show."""

from __future__ import annotations

import pytest

from app.protocol.realtimeitems import BetaText, FunctionCall, FunctionCallOutput, InputText, Item, Message, OutputText
from app.realtime.prompt import chat_body, later_half
from tests.realtime.asking import asked, messages_of


def said(role: str, *texts: str) -> Message:
    kind = InputText if role == "user" else OutputText
    return Message(id="i", role=role, content=[kind(text=text) for text in texts])  # type: ignore[arg-type]


CALL = FunctionCall(id="c", name="weather", arguments="{}", call_id="1")
RESULT = FunctionCallOutput(id="r", call_id="1", output="sun")


def test_several_texts_are_one() -> None:
    assert messages_of(said("user", "a", "b")) == [{"role": "user", "content": "a\nb"}]
    beta = Message(id="i", role="assistant", content=[BetaText(text="c")])
    assert messages_of(beta) == [{"role": "assistant", "content": "c"}]


def test_an_answer_of_which_nothing_was_heard_is_left_out() -> None:
    silent = Message(id="i", role="assistant", content=[OutputText(text="")])
    empty = Message(id="i", role="assistant", content=[])
    assert messages_of(said("user", "a"), silent, empty) == [{"role": "user", "content": "a"}]


def test_a_call_without_words_is_a_message_of_its_own() -> None:
    user, assistant, tool = messages_of(said("user", "a"), CALL, RESULT)
    assert (assistant["role"], assistant["content"]) == ("assistant", None)
    assert [call["id"] for call in assistant["tool_calls"]] == [tool["tool_call_id"]] == ["1"]
    assert user["content"] == "a"


@pytest.mark.parametrize(
    ("items", "kept"),
    [
        ([said("user", "a")], []),
        ([said("user", "a"), said("user", "b"), said("user", "c")], [2]),
        ([said("user", "a"), CALL, RESULT, said("user", "b")], [3]),
    ],
)
def test_the_later_half(items: list[Item], kept: list[int]) -> None:
    assert later_half(items) == [items[position] for position in kept]


def test_what_is_not_asked_for_is_not_sent() -> None:
    assert b"temperature" not in chat_body(asked(), [])
    assert b"max_completion_tokens" not in chat_body(asked(), [])
