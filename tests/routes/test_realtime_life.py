"""How realtime sockets begin and end (user_reports 48, 123, 127, 128)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.cluster.messages import Delta
from app.telemetry import families as f
from tests.routes.realtime import PATH, Talk, Talking, kinds, refusal, soon, sound, spoken, talking, words
from tests.routes.serving import Served, Step
from tests.routes.sockets import connected


@pytest.fixture
def model() -> Talking:
    return Talking()


@pytest.fixture
def served(model: Talking, tmp_path: Path) -> Served:
    return Served(model, tmp_path, slow_client_timeout_s=5)


@pytest.fixture
async def talk(served: Served) -> AsyncIterator[Talk]:
    async with talking(served) as talk:
        yield talk


def hangs() -> list[Step]:
    """An answer without an end."""
    return [[Delta(0, "a")], asyncio.Event()]


async def begun(talk: Talk) -> None:
    """A response that does not end."""
    await talk.say("Hi")
    talk.send("response.create")
    await talk.until("response.output_text.delta")


# ---------------------------------------------------------------------------------------------------- the handshake


async def test_the_session_is_told_at_once(served: Served, model: Talking) -> None:
    for hears, speaks in ((False, False), (True, True)):
        model.inputs, model.speaks = ["text", "audio"] if hears else ["text"], speaks
        async with connected(served, path=PATH, x_request_id="mine") as socket:
            event = await socket.receive()
        assert event["type"] == "session.created"
        session = event["session"]
        assert (session["object"], session["type"], session["id"]) == ("realtime.session", "realtime", "sess_mine")
        assert (session["model"], session["output_modalities"]) == ("smol", ["audio"] if speaks else ["text"])
        assert (session["audio"]["input"]["turn_detection"] is not None) == hears


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"query": "api_key=secret"}, 401),
        ({"protocols": ("realtime", "openai-insecure-api-key.wrong")}, 401),
        ({"authorization": "Bearer secret"}, 101),
        ({"x_api_key": "secret"}, 101),
        ({"protocols": ("realtime", "openai-insecure-api-key.secret", "openai-beta.realtime-v1")}, 101),
    ],
)
async def test_keys(model: Talking, tmp_path: Path, how: dict[str, Any], status: int) -> None:
    served = Served(model, tmp_path, api_keys=["secret"])
    async with connected(served, path=PATH, **how) as socket:
        if status == 101:
            assert (await socket.receive())["type"] == "session.created"
            assert socket.protocol == next(iter(how.get("protocols", ())), None)
        else:
            await socket.end()
            assert socket.body["error"]["code"] == "invalid_api_key"
        assert socket.status == status


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ({"origin": "http://evil.test"}, 403, "cors_refused"),
        ({"query": "model=gpt-realtime"}, 404, "model_not_found"),
        ({"query": "intent=transcription"}, 400, "unsupported_parameter"),
        ({"query": "call_id=x"}, 400, "unsupported_parameter"),
    ],
)
async def test_refused_handshakes(served: Served, how: dict[str, Any], status: int, code: str) -> None:
    async with connected(served, path=PATH, **how) as socket:
        await socket.end()
        assert (socket.status, socket.body["error"]["code"]) == (status, code)


async def test_what_cannot_be_served_now_is_told_before_the_upgrade(served: Served, model: Talking) -> None:
    async def refused() -> tuple[int, str]:
        async with connected(served, path=PATH) as socket:
            await socket.end()
            return socket.status, socket.body["error"]["code"]

    model.replicas = 0
    assert await refused() == (503, "no_replica")
    model.replicas, model.tasks = 1, ["speech"]
    assert await refused() == (404, "unsupported_task")
    served.stopping.set()
    assert await refused() == (503, "shutting_down")


async def test_the_model_in_the_url(served: Served, model: Talking) -> None:
    async with talking(served, query="model=HuggingFaceTB/SmolLM2", origin="http://test") as talk:
        await talk.say("Hi")
        await talk.answer()
        assert (model.body()["model"], model.submitted[0][3]) == ("HuggingFaceTB/SmolLM2",) * 2
        assert (await talk.update(model="smol"))["model"] == "smol"
        await talk.answer()
        assert model.body()["model"] == "smol"


# ----------------------------------------------------------------------------------------------------------- its end


async def test_the_server_does_not_hang_up_on_an_answer(talk: Talk, model: Talking) -> None:
    go_on = asyncio.Event()
    model.scripts = [[go_on, *words("Late.")]]
    await talk.say("Hi")
    talk.send("response.create")
    await talk.until("response.created")
    await asyncio.sleep(0.3)
    go_on.set()
    assert kinds(await talk.until("response.done"))[-2:] == ["response.output_item.done", "response.done"]
    await talk.update()
    assert talk.socket.closed is None


@pytest.mark.parametrize("answering", [True, False])
async def test_a_client_that_leaves_stops_the_work(talk: Talk, model: Talking, answering: bool) -> None:
    model.scripts = [hangs()]
    if answering:
        await begun(talk)
    talk.socket.leave()
    await talk.socket.end()
    assert model.closed_for == ["client_disconnect"] * answering


async def test_nothing_said_for_long(served: Served) -> None:
    served.settings.speech.realtime_idle_s = 0.3
    async with talking(served) as talk:
        for _ in range(3):
            await asyncio.sleep(0.15)
            await talk.update()
        assert refusal(await talk.receive()) == (None, "idle_timeout")
        assert await talk.socket.end() == (4408, "timed out")


async def test_a_client_that_is_answered_is_not_idle(served: Served, model: Talking) -> None:
    served.settings.speech.realtime_idle_s = 0.3
    go_on = asyncio.Event()
    model.scripts = [[[Delta(0, "a")], go_on, *words("b")]]
    async with talking(served) as talk:
        await begun(talk)
        await asyncio.sleep(0.8)
        go_on.set()
        assert (await talk.until("response.done"))[-1]["response"]["status"] == "completed"


async def test_a_client_that_reads_nothing(served: Served, model: Talking) -> None:
    served.settings.server.slow_client_timeout_s = 0.3
    model.speak_aloud()
    model.scripts = [spoken(Delta(0, "x"), *(sound(24_000) for _ in range(100)))]
    async with talking(served) as talk:
        await talk.say("Hi")
        talk.socket.reads.clear()
        talk.send("response.create")
        assert await talk.socket.end() == (4408, "nothing was read")
        assert talk.socket.pending == 0
        assert model.closed_for == ["client_disconnect"]


async def test_a_stop_closes_idle_sockets(talk: Talk, served: Served) -> None:
    served.stopping.set()
    assert await talk.socket.end() == (1001, "the server is shutting down")


async def test_a_stop_lets_a_response_finish(talk: Talk, model: Talking, served: Served) -> None:
    go_on = asyncio.Event()
    model.scripts = [[[Delta(0, "a")], go_on, *words("b")]]
    await begun(talk)
    served.stopping.set()
    talk.send("response.create", response={"conversation": "none"})
    assert refusal(await talk.receive()) == (None, "shutting_down")
    go_on.set()
    assert (await talk.until("response.done"))[-1]["response"]["status"] == "completed"
    assert await talk.socket.end() == (1001, "the server is shutting down")


async def test_the_end_of_the_time_to_drain(talk: Talk, model: Talking, served: Served) -> None:
    model.scripts = [hangs()]
    await begun(talk)
    served.stopping.set()
    served.draining.set()
    assert refusal(await talk.receive()) == (None, "shutting_down")
    assert await talk.socket.end() == (1001, "the server is shutting down")
    assert model.closed_for == ["shutdown"]


async def test_a_client_that_leaves_before_a_replica_has_taken_its_response(talk: Talk, model: Talking) -> None:
    cancelled = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    model.before = never
    await talk.say("Hi")
    talk.send("response.create")
    await asyncio.sleep(0.1)
    talk.socket.leave()
    await talk.socket.end()
    await soon(cancelled)


async def test_one_line_in_the_log_and_one_count(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "app.access")
    async with talking(served) as talk:
        await talk.say("Hi")
        await talk.answer()
        talk.socket.leave()
        await talk.socket.end()
    (line,) = [record for record in caplog.records if record.name == "app.access"]
    assert "WEBSOCKET /v1/realtime" in line.getMessage()
    assert " 101 done " in line.getMessage()
    counted = served.litestar.state.metrics.collect()[f.HTTP_REQUESTS]
    assert list(counted) == [("/v1/realtime", "WEBSOCKET", "1xx")]
