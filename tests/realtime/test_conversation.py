"""What a conversation keeps, in which order, and what goes first when there is no room."""

from __future__ import annotations

import pytest

from app.protocol.errors import ApiError
from app.protocol.realtimeitems import InputText, ItemReference, Message, OutputText
from app.realtime import conversation
from app.realtime.conversation import ROOT, Conversation, Entry


def message(item_id: str, text: str = "x") -> Message:
    return Message(id=item_id, role="user", content=[InputText(text=text)])


def ids(kept: Conversation) -> list[str]:
    return [item.item_id for item in kept.items]


def test_items_are_put_after_others() -> None:
    kept = Conversation(1 << 20)
    for item_id, after in (("b", None), ("a", ROOT), ("d", None), ("c", "b")):
        kept.add(Entry(message(item_id)), after)
    assert ids(kept) == ["a", "b", "c", "d"]
    assert (kept.last_id, kept.previous("a"), kept.previous("c")) == ("d", None, "b")


def test_the_oldest_go_but_not_what_a_response_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_ITEMS", 3)
    kept = Conversation(1 << 20)
    kept.add(Entry(message("open"), open=True))
    gone = [kept.add(Entry(message(item_id))) for item_id in "abcd"]
    assert gone == [[], [], ["a"], ["b"]]
    assert kept.add(Entry(message("first")), ROOT) == ["c"], "what has just been put there stays"
    assert ids(kept) == ["first", "open", "d"]


def test_what_an_item_has_become_counts() -> None:
    kept = Conversation(4000)
    kept.add(Entry(message("a", "x" * 1000)))
    answer = Entry(Message(id="b", role="assistant", content=[]), open=True)
    kept.add(answer)
    said = Message(id="b", role="assistant", content=[OutputText(text="y" * 2500)])
    assert kept.settle(answer, said) == ["a"]
    assert kept.items == [said]
    assert not answer.open


def test_nothing_goes_where_nothing_may() -> None:
    kept = Conversation(2000)
    kept.add(Entry(message("a", "x" * 1000)), evict=False)
    with pytest.raises(ApiError) as refused:
        kept.add(Entry(message("b", "x" * 1000)), evict=False)
    assert (refused.value.status, refused.value.body.error.code) == (413, "conversation_full")
    assert ids(kept) == ["a"]


def test_references_are_to_items_that_are_there() -> None:
    kept = Conversation(1 << 20)
    kept.add(Entry(message("a")))
    other = message("other")
    assert [item.item_id for item in kept.referred([other, ItemReference(id="a")])] == ["other", "a"]
    with pytest.raises(ApiError) as refused:
        kept.referred([other, ItemReference(id="b")])
    assert refused.value.body.error.param == "response.input[1].id"
