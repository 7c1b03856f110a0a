"""Backlog: whatever is pushed, the text and tokens of every choice come out whole and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.cluster import messages as m
from app.engines.backlog import Backlog

deltas = st.builds(m.Delta, st.integers(0, 3), st.text(max_size=3), st.integers(0, 3))
chunks = st.builds(m.Chunk, st.integers(0, 3), st.just(b"{}"))
usages = st.builds(m.Usage, st.just(1), st.integers(0, 9))


def text_and_tokens(events: list[m.AnyEvent], index: int) -> tuple[str, int]:
    own = [event for event in events if isinstance(event, m.Delta) and event.index == index]
    return "".join(event.text for event in own), sum(event.tokens for event in own)


@given(st.lists(deltas | chunks | usages))
def test_nothing_is_lost(events: list[m.AnyEvent]) -> None:
    backlog = Backlog()
    for event in events:
        backlog.push(event)
    held = backlog.take_all()
    for index in range(4):
        assert text_and_tokens(held, index) == text_and_tokens(events, index)
    assert [e for e in held if isinstance(e, m.Chunk)] == [e for e in events if isinstance(e, m.Chunk)]
    assert [e for e in held if isinstance(e, m.Usage)] == [e for e in events if isinstance(e, m.Usage)][-1:]
    assert not backlog


def test_several_choices_take_the_room_of_one_event_each() -> None:
    backlog = Backlog()
    for _ in range(100):
        for index in range(4):
            backlog.push(m.Delta(index, "x"))
    assert backlog.take_all() == [m.Delta(index, "x" * 100, 100) for index in range(4)]


def test_text_after_a_chunk_of_the_same_choice_stays_behind_it() -> None:
    backlog = Backlog()
    events: list[m.AnyEvent] = [m.Delta(0, "a"), m.Chunk(0, b"{}"), m.Delta(0, "b"), m.Finish(0, "stop"), m.Done()]
    for event in events:
        backlog.push(event)
    assert backlog.take_all() == events
