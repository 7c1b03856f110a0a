from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.messages import AnyEvent, Chunk, Delta, Done, Extra, Finish, Usage
from app.protocol.chat import chat_answer, chat_writer
from app.protocol.completion import completion_answer, completion_writer
from app.protocol.generation import Identity, UsageMode
from tests.routes.serving import events

IDENTITY = Identity("id", 1, "m")


@given(st.lists(st.tuples(st.integers(0, 3), st.text()), max_size=8))
def test_any_text_comes_out_as_it_went_in(parts: list[tuple[int, str]]) -> None:
    deltas = [Delta(index, text) for index, text in parts]
    chat = events(chat_writer(IDENTITY, "never").write(deltas))
    completion = events(completion_writer(IDENTITY, "never").write(deltas))
    expected = [(index, text) for index, text in parts if text]
    assert [(c["choices"][0]["index"], c["choices"][0]["delta"]["content"]) for c in chat] == expected
    assert [(c["choices"][0]["index"], c["choices"][0]["text"]) for c in completion] == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.text()), max_size=8))
def test_a_stream_and_a_whole_answer_hold_the_same_text(parts: list[tuple[int, str]]) -> None:
    batch: list[AnyEvent] = [Delta(index, text) for index, text in parts]
    answer = chat_answer(IDENTITY)
    answer.add(batch)
    texts: dict[int, str] = {}
    for chunk in events(chat_writer(IDENTITY, "never").write(batch)):
        choice = chunk["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"]["content"]
    whole = {choice["index"]: choice["message"]["content"] for choice in json.loads(answer.encode())["choices"]}
    assert {index: text for index, text in whole.items() if text} == texts


@pytest.mark.parametrize("mode", ["never", "last", "always"])
def test_how_a_batch_is_cut_makes_no_difference(mode: UsageMode) -> None:
    batch: list[AnyEvent] = [
        Delta(0, "a"),
        Chunk(1, b'{"delta":{"reasoning":"r"}}'),
        Chunk(1, b"{}"),
        Usage(1, 2),
        Delta(0, "b"),
        Finish(0, "stop"),
        Extra(b'{"x":1}'),
        Done(),
    ]
    one, many = chat_writer(IDENTITY, mode), chat_writer(IDENTITY, mode)
    together = one.open(2) + one.write(batch) + one.close()
    apart = many.open(2) + b"".join(many.write([event]) for event in batch) + many.close()
    assert together == apart
    assert len(events(together)) == 2 + 6 + (mode != "never")


def test_an_empty_delta_says_nothing_and_counts() -> None:
    writer = chat_writer(IDENTITY, "last")
    assert writer.write([Delta(0, "", tokens=3)]) == b""
    assert events(writer.close())[0]["usage"]["completion_tokens"] == 3


def test_a_completion_opens_with_nothing() -> None:
    assert completion_writer(IDENTITY, "never").open(2) == b""


def test_whole_answers_are_equal_on_both_paths() -> None:
    plain: list[AnyEvent] = [Delta(0, "he"), Delta(0, "y"), Finish(0, "stop"), Usage(1, 2), Done()]
    message = b'{"message":{"role":"assistant","content":"hey","tool_calls":[],"audio":null},"logprobs":null}'
    full: list[AnyEvent] = [Chunk(0, message), Finish(0, "stop"), Usage(1, 2), Done()]
    answers = [chat_answer(IDENTITY), chat_answer(IDENTITY)]
    for answer, events_ in zip(answers, (plain, full), strict=True):
        answer.add(events_)
    assert json.loads(answers[0].encode()) == json.loads(answers[1].encode())


def test_what_the_full_path_adds_stays() -> None:
    answer = chat_answer(IDENTITY)
    message = (
        b'{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c"}],"reasoning":"r"},"token_ids":[1]}'
    )
    answer.add([Chunk(0, message), Finish(0, "tool_calls"), Extra(b'{"prompt_logprobs":[null]}'), Done()])
    body = json.loads(answer.encode())
    assert body["prompt_logprobs"] == [None]
    assert body["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [{"id": "c"}],
                "reasoning": "r",
            },
            "logprobs": None,
            "token_ids": [1],
            "finish_reason": "tool_calls",
            "stop_reason": None,
        }
    ]


def test_choices_are_in_order_whatever_the_order_of_events() -> None:
    answer = completion_answer(IDENTITY)
    answer.add([Delta(2, "c"), Delta(0, "a"), Delta(1, "b"), Finish(1, "length"), Done()])
    choices = json.loads(answer.encode())["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "a"), (1, "b"), (2, "c")]
