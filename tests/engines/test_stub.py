"""The stub keeps the contract of engines: app.engines.base."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import msgspec
import pytest
from PIL import Image

from app.cluster import messages as m
from app.engines.base import Engine, EngineError
from app.engines.stub import StubEngine
from app.protocol.pictures import PictureTask, encode_task
from tests.clusters import body, settings, text_of


class Asked:
    """A request that keeps its events."""

    def __init__(self, body: bytes, kind: str = "chat") -> None:
        self.request_id, self.kind, self.model, self.body = "r", kind, "", body
        self.events: list[m.AnyEvent] = []
        self.wants_tensors = False

    def emit(self, event: m.AnyEvent) -> None:
        self.events.append(event)

    async def ready(self) -> None:
        """Never short of credit."""


def stub(**engine_args: Any) -> Engine:
    return StubEngine(settings(**engine_args).stages[0])


async def answer(engine: Engine, asked: bytes) -> list[m.AnyEvent]:
    request = Asked(asked)
    await engine.run(request)
    return request.events


async def test_it_says_the_words_of_the_last_message() -> None:
    events = await answer(stub(), body("three little words"))
    assert isinstance(events[0], m.Accepted)
    assert text_of(events) == "three little words "
    assert events[-3] == m.Finish(0, "stop")
    assert isinstance(events[-2], m.Usage)
    assert events[-2].completion_tokens == 3
    assert events[-1] == m.Done()


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"prompt": "a b c"}, "a b c "),
        ({"prompt": "a b c", "max_tokens": 2}, "a b "),
        ({"prompt": "a", "stub": {"tokens": 3}}, "w0 w1 w2 "),
        ({}, ""),
    ],
)
async def test_what_decides_the_text(asked: dict[str, Any], text: str) -> None:
    assert text_of(await answer(stub(), msgspec.json.encode(asked))) == text


async def test_every_choice_is_answered() -> None:
    events = await answer(stub(), msgspec.json.encode({"prompt": "a b", "n": 2}))
    assert [x.index for x in events if isinstance(x, m.Delta)] == [0, 1, 0, 1]
    assert [x.index for x in events if isinstance(x, m.Finish)] == [0, 1]


async def test_a_refusal_comes_before_acceptance() -> None:
    request = Asked(body(refuse="no"))
    with pytest.raises(EngineError) as caught:
        await stub().run(request)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, "stub")
    assert request.events == []


async def test_it_fails_where_it_was_told_to() -> None:
    request, engine = Asked(body("a b c", fail_after=2)), stub()
    with pytest.raises(RuntimeError):
        await engine.run(request)
    assert text_of(request.events) == "a b "
    assert engine.load().running == 0


async def test_slots_bound_what_runs_and_cancelling_frees_them() -> None:
    engine = stub(slots=1)
    assert (await engine.start()).slots == 1
    hanging = asyncio.create_task(engine.run(Asked(body("x", hang_after=0))))
    waiting = Asked(body("next"))
    queued = asyncio.create_task(engine.run(waiting))
    gone = asyncio.create_task(engine.run(Asked(body("never"))))
    await asyncio.sleep(0)
    assert engine.load() == m.Load(1, 2, 0)
    for task in (gone, hanging):
        task.cancel()
    await asyncio.wait_for(queued, 5)
    assert text_of(waiting.events) == "next "
    assert engine.load() == m.Load(0, 0, 1)


async def test_a_load_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="no such checkpoint"):
        await stub(load_error="no such checkpoint").start()
    with pytest.raises(msgspec.ValidationError, match="nonsense"):
        stub(nonsense=1)


async def test_calls() -> None:
    assert msgspec.json.decode(await stub().call("tokenize", b'{"prompt": "a b"}')) == {"count": 2, "tokens": [0, 1]}
    with pytest.raises(EngineError) as caught:
        await stub().call("fly", b"{}")
    assert caught.value.failed.status == 404


async def test_it_draws_squares_of_the_colour_of_their_seed() -> None:
    engine = stub(draws=True, chats=False)
    assert (await engine.start()).tasks == ["image", "image_edit", "image_variation"]
    task = PictureTask(prompt="a b", n=2, width=16, height=8, seed=5, num_inference_steps=3, previews=1, format="webp")
    request = Asked(encode_task(task), "image")
    await engine.run(request)
    pictures = [event for event in request.events if isinstance(event, m.Picture)]
    assert [(x.index, x.preview, x.seed) for x in pictures] == [(0, 0, 5), (0, -1, 5), (1, -1, 6)]
    assert Image.open(BytesIO(pictures[1].data)).size == (16, 8)
    assert pictures[1].data != pictures[2].data
    assert [event.step for event in request.events if isinstance(event, m.Progress)] == [1, 2, 3]
    assert isinstance(request.events[-2], m.Usage)
    assert request.events[-2].prompt_tokens == 2
