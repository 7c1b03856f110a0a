"""The speech socket over a scripted model: what is said, refused, and how it ends (user_reports 123, 127, 128)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.engines import stubspeech
from app.protocol.errors import ApiError
from app.protocol.speechsocket import MAX_MESSAGE
from app.protocol.speechtask import SpeechTask, decode_task
from app.routes import speechsession
from app.store.voices import VoiceRecord
from app.telemetry import families as f
from tests.routes.serving import ScriptedOrchestrator, Served
from tests.routes.sockets import FRAME, SocketClient, Spoken, connected, refusal


class Speaking(ScriptedOrchestrator):
    """Every utterance is Spoken; `cues` are those of all."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks, self.card = ["speech"], stubspeech.CARD
        self.cues: dict[str, Exception | asyncio.Event] = {}
        self.refusal: ApiError | None = None
        self.said: list[Spoken] = []
        self.was_asked = asyncio.Event()

    async def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.was_asked.set()
        await super().submit(*args, **kwargs)
        if self.refusal is not None:
            raise self.refusal
        self.said.append(Spoken(self.cues))
        return self.said[-1]

    def task(self, number: int = -1) -> SpeechTask:
        return decode_task(self.submitted[number][2])


@pytest.fixture
def model() -> Speaking:
    return Speaking()


@pytest.fixture
def served(model: Speaking, tmp_path: Path) -> Served:
    return Served(model, tmp_path, slow_client_timeout_s=5)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[SocketClient]:
    """One that has been configured."""
    async with connected(served) as client:
        client.send("session.config")
        assert (await client.receive())["type"] == "session.configured"
        yield client


def kinds(messages: list[Any]) -> list[str]:
    return ["sound" if isinstance(message, bytes) else message["type"] for message in messages]


def say(client: SocketClient, text: str) -> None:
    client.send("input.text", text=text)
    client.send("input.done")


# -------------------------------------------------------------------------------------------------- utterances


async def test_text_becomes_sound_as_it_comes(client: SocketClient, model: Speaking) -> None:
    client.send("input.text", text="one")
    first = await client.until("audio.sentence")  # although the utterance is not complete
    assert kinds(first) == ["audio.start", "audio.sentence"]
    assert first[0] == {"type": "audio.start", "utterance_index": 0, "format": "mp3", "sample_rate": 24_000}
    client.send("input.text", text=" two")
    client.send("input.done")
    rest = await client.until("session.done")
    assert rest == [
        FRAME,
        {"type": "audio.sentence", "utterance_index": 0, "sentence_index": 1, "text": "two", "offset": 600},
        FRAME,
        {
            "type": "audio.done",
            "utterance_index": 0,
            "total_bytes": 2400,
            "samples": 1200,
            "error": False,
            "cancelled": False,
        },
        {
            "type": "session.done",
            "utterance_index": 0,
            "total_sentences": 2,
            "status": "completed",
            "usage": {
                "input_tokens": 3,
                "output_tokens": 8,
                "total_tokens": 11,
                "input_token_details": {"text_tokens": 3, "audio_tokens": 0},
            },
        },
    ]
    assert (model.said[0].appended, model.said[0].last) == (b"one two", 2)
    assert model.submitted[0][0] == "speech"


async def test_text_that_comes_before_the_replica_has_accepted_is_not_lost(
    client: SocketClient, model: Speaking
) -> None:
    accept = asyncio.Event()
    model.before = accept.wait
    for word in ("one ", "two ", "three"):
        client.send("input.text", text=word)
    client.send("input.done")
    client.send("ping")
    assert await client.receive() == {"type": "pong"}
    accept.set()
    assert (await client.until("session.done"))[-1]["total_sentences"] == 3


async def test_the_next_utterance_waits_for_the_one_before(client: SocketClient, model: Speaking) -> None:
    model.cues["slow"] = asyncio.Event()
    say(client, "slow")
    say(client, "second")
    client.send("ping", event_id="p1")
    assert await client.receive() == {"type": "pong", "event_id": "p1"}
    assert len(model.said) == 1
    model.cues["slow"].set()
    assert (await client.until("session.done"))[-1]["utterance_index"] == 0
    assert (await client.until("session.done"))[-1]["utterance_index"] == 1


async def test_the_config_is_that_of_the_task(client: SocketClient, model: Speaking) -> None:
    fields = {"voice": "stone", "response_format": "pcm", "speed": 1.5, "seed": 3, "sample_rate": 8000}
    client.send("session.config", model="smol", **fields, instructions="softly", extra_params={"a": 1})
    told = await client.receive()
    session = told.pop("session_id")
    assert told == {"type": "session.configured", "model": "smol", "response_format": "pcm", "voice": "stone"}
    say(client, "x")
    await client.until("session.done")
    assert model.task() == SpeechTask(
        appended=True,
        voice="stone",
        format="pcm",
        speed=1.5,
        seed=3,
        sample_rate=8000,
        instructions="softly",
        extra={"a": 1},
        streamed=True,
    )
    assert model.submitted[0][1].startswith(session)
    assert model.submitted[0][3] == "smol"


async def test_a_config_holds_from_the_next_utterance_on(client: SocketClient, model: Speaking) -> None:
    client.send("input.text", text="one ")
    client.send("session.config", voice="stone")
    client.send("input.text", text="two")
    client.send("input.done")
    say(client, "three")
    await client.until("session.done")
    await client.until("session.done")
    assert [model.task(0).voice, model.task(1).voice] == ["", "stone"]


async def test_an_uploaded_voice(client: SocketClient, model: Speaking, served: Served) -> None:
    record = VoiceRecord(name="Ada", consent="x", created_at=1, sample=b"RIFF", size=4, text="hi")
    await served.litestar.state.voices.save(record)
    client.send("session.config", voice="ada")
    await client.receive()
    say(client, "x")
    await client.until("session.done")
    sample = model.task().sample
    assert sample is not None
    assert (sample.data, sample.text) == (b"RIFF", "hi")


# -------------------------------------------------------------------------------------------------- cancelling


async def test_cancel_stops_the_sound_and_the_socket_stays(client: SocketClient, model: Speaking) -> None:
    model.cues["never"] = asyncio.Event()
    client.send("input.text", text="one never two")
    await client.until("audio.sentence")
    say(client, "a second one")  # goes on with the first
    say(client, "a third one")
    client.send("input.cancel")
    told = await client.until("audio.done")
    assert told[-1] | {"cancelled": True, "error": False} == told[-1]
    assert (await client.receive())["status"] == "cancelled"
    waiting = await client.receive()
    assert waiting == {"type": "session.done", "utterance_index": 1, "total_sentences": 0, "status": "cancelled"}
    assert model.said[0].closed_for == ["client_disconnect"]
    assert len(model.said) == 1
    say(client, "again")
    assert (await client.until("session.done"))[-1]["status"] == "completed"


async def test_cancel_before_the_replica_has_accepted(client: SocketClient, model: Speaking) -> None:
    model.before = asyncio.Event().wait
    say(client, "one")
    await model_asked(model)
    client.send("input.cancel")
    assert (await client.receive())["status"] == "cancelled"
    model.before = None
    say(client, "two")
    assert (await client.until("session.done"))[-1]["status"] == "completed"


async def model_asked(model: Speaking) -> None:
    async with asyncio.timeout(5):
        await model.was_asked.wait()


@pytest.mark.parametrize(
    ("count", "text"), [(speechsession.MAX_UTTERANCES, "one"), (1, "x" * 60_000)], ids=["utterances", "characters"]
)
async def test_what_has_been_cancelled_takes_no_room(
    client: SocketClient, model: Speaking, count: int, text: str
) -> None:
    model.cues["never"] = asyncio.Event()
    client.send("input.text", text="never")
    await model_asked(model)
    for _ in range(count):
        client.send("input.done")
        client.send("input.text", text=text)
    client.send("input.cancel")
    say(client, text)
    messages = [(await client.until("session.done"))[-1]["status"] for _ in range(count + 2)]
    assert messages == ["cancelled"] * (count + 1) + ["completed"]
    assert model.said[-1].appended == text.encode()


async def test_cancel_of_nothing_is_no_mistake(client: SocketClient) -> None:
    client.send("input.cancel")
    client.send("ping")
    assert await client.receive() == {"type": "pong"}


# ---------------------------------------------------------------------------------------------------- failures


async def test_an_utterance_that_is_refused_leaves_the_socket(client: SocketClient, model: Speaking) -> None:
    model.refusal = ApiError(400, "no such voice", param="voice", code="invalid_value")
    client.send("input.text", text="one ")
    error = await client.receive()
    assert error["utterance_index"] == 0
    assert refusal(error) == ("voice", "invalid_value")
    assert (await client.receive())["status"] == "failed"
    model.refusal = None
    say(client, "the rest of it is not spoken")
    say(client, "two")
    messages = await client.until("session.done")
    assert (messages[-1]["utterance_index"], messages[-1]["total_sentences"]) == (1, 1)


async def test_an_utterance_that_fails_in_the_middle(client: SocketClient, model: Speaking) -> None:
    model.cues["boom"] = ApiError(503, "the replica is lost", code="replica_lost")
    say(client, "one boom two")
    messages = await client.until("session.done")
    assert kinds(messages)[-3:] == ["error", "audio.done", "session.done"]
    assert messages[-2]["error"]
    assert messages[-1]["status"] == "failed"
    say(client, "two")
    assert (await client.until("session.done"))[-1]["status"] == "completed"


async def test_a_fault_of_ours_closes_the_socket(
    client: SocketClient, model: Speaking, caplog: pytest.LogCaptureFixture
) -> None:
    model.cues["bug"] = ValueError("a secret")
    say(client, "bug")
    assert refusal((await client.until("error"))[-1]) == (None, "internal_error")
    assert await client.end() == (1011, "internal error")
    assert "a secret" in caplog.text


MISTAKES = [
    ("x", None, "invalid_json"),
    ("[1]", None, "invalid_json"),
    ("[" * 100_000, None, "invalid_json"),
    ("{}", "type", "invalid_value"),
    ('{"type": 5}', "type", "invalid_value"),
    ('{"type": "input.txt"}', "type", "invalid_value"),
    ('{"type": "input.text"}', "text", "missing_required_parameter"),
    ('{"type": "input.text", "text": 5}', "text", "invalid_value"),
    ('{"type": "input.text", "text": "a", "txt": "b"}', "txt", "unknown_parameter"),
    ('{"type": "input.text", "text": "a", "text": "b"}', None, "invalid_json"),
    ('{"type": "input.text", "text": "%s"}' % ("x" * MAX_MESSAGE), None, "message_too_large"),
    ('{"type": "input.done"}', None, "input_empty"),
    ('{"type": "session.config", "voice": ""}', "voice", "invalid_value"),
    ('{"type": "session.config", "voices": "x"}', "voices", "unknown_parameter"),
    ('{"type": "session.config", "speed": 5}', "speed", "invalid_value"),
    ('{"type": "session.config", "model": "gpt"}', "model", "model_not_found"),
    ('{"type": "session.config", "input": "x"}', "input", "unsupported_parameter"),
    ('{"type": "session.config", "stream_format": "sse"}', "stream_format", "unsupported_parameter"),
    ('{"type": "session.config", "stream_audio": false}', "stream_audio", "unsupported_parameter"),
    ('{"type": "session.config", "split_granularity": "clause"}', "split_granularity", "unsupported_parameter"),
    ('{"type": "session.config", "word_timestamps": true}', "word_timestamps", "unsupported_parameter"),
    ('{"type": "session.config", "instructions": "%s"}' % ("x" * 501), "instructions", "invalid_value"),
    ('{"type": "session.config", "ref_audio": "%s"}' % ("x" * (4 << 20)), None, "message_too_large"),
]


@pytest.mark.parametrize(("text", "param", "code"), MISTAKES, ids=lambda value: str(value)[:50])
async def test_a_mistake_is_told_and_the_socket_stays(
    client: SocketClient, text: str, param: str | None, code: str
) -> None:
    client.send_frame(text=text)
    assert refusal(await client.receive()) == (param, code)
    say(client, "one")
    assert (await client.until("session.done"))[-1]["status"] == "completed"


async def test_an_error_names_the_message_that_it_is_about(client: SocketClient) -> None:
    client.send("session.config", voise="x", event_id="e7")
    assert (await client.receive())["event_id"] == "e7"
    client.send("no.such", event_id="e8")
    assert (await client.receive())["event_id"] == "e8"


async def test_frames_of_bytes_are_none(client: SocketClient) -> None:
    client.send_frame(bytes=b"\0\1")
    assert refusal(await client.receive()) == ("type", "invalid_value")


async def test_text_before_a_config(served: Served) -> None:
    async with connected(served) as client:
        client.send("input.text", text="one")
        assert refusal(await client.receive()) == (None, "session_not_configured")


async def test_text_that_waits_is_bounded(client: SocketClient, model: Speaking, served: Served) -> None:
    served.settings.speech.socket_max_characters = 10
    model.cues["12345678"] = asyncio.Event()
    say(client, "12345678")
    client.send("input.text", text="901")
    assert refusal((await client.until("error"))[-1]) == ("text", "too_much_text")
    model.cues["12345678"].set()
    await client.until("session.done")
    say(client, "901")  # what has been spoken does not count any more
    assert (await client.until("session.done"))[-1]["status"] == "completed"


async def test_utterances_that_wait_are_bounded(client: SocketClient, model: Speaking) -> None:
    model.cues["slow"] = asyncio.Event()
    for _ in range(speechsession.MAX_UTTERANCES + 1):
        say(client, "slow")
        client.send("ping")
        await client.until("pong")
    client.send("input.text", text="one too many")
    assert refusal(await client.receive()) == (None, "too_many_utterances")


# -------------------------------------------------------------------------------------------------- how it ends


async def test_close_lets_it_finish(client: SocketClient, model: Speaking) -> None:
    model.cues["slow"] = asyncio.Event()
    say(client, "slow")
    client.send("input.text", text="two")
    client.send("session.close")
    client.send("input.text", text="three")
    assert refusal(await client.receive()) == (None, "session_closed")
    model.cues["slow"].set()
    await client.until("session.done")
    await client.until("session.done")
    assert await client.receive() == {"type": "session.closed", "utterances": 2}
    assert await client.end() == (1000, "")


@pytest.mark.parametrize("spoken_to", [True, False])
async def test_a_client_that_leaves_stops_the_work(client: SocketClient, model: Speaking, spoken_to: bool) -> None:
    if spoken_to:
        model.cues["never"] = asyncio.Event()
        client.send("input.text", text="one never")
        await client.until("audio.sentence")
    client.leave()
    await client.end()
    assert [said.closed_for for said in model.said] == [["client_disconnect"]] * spoken_to


async def test_nothing_said_for_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speechsession, "CONFIG_S", 0.2)
    async with connected(served) as client:
        assert refusal(await client.receive()) == (None, "idle_timeout")
        assert await client.end() == (4408, "timed out")
    served.settings.speech.socket_idle_s = 0.3
    async with connected(served) as client:
        client.send("session.config")
        await client.receive()
        client.send("input.text", text="one")  # and no more of it
        await client.until("audio.sentence")
        assert refusal((await client.until("error"))[-1]) == (None, "idle_timeout")
        assert await client.end() == (4408, "timed out")


async def test_a_client_that_listens_or_pings_is_not_idle(served: Served, model: Speaking) -> None:
    served.settings.speech.socket_idle_s = 0.8
    model.cues["slow"] = asyncio.Event()
    async with connected(served) as client:
        client.send("session.config")
        await client.receive()
        say(client, "slow")
        await asyncio.sleep(1.2)
        model.cues["slow"].set()
        await client.until("session.done")
        for _ in range(6):
            await asyncio.sleep(0.2)
            client.send("ping")
            assert await client.receive() == {"type": "pong"}


async def test_a_client_that_reads_nothing(served: Served, model: Speaking) -> None:
    served.settings.server.slow_client_timeout_s = 0.3
    async with connected(served) as client:
        client.send("session.config")
        await client.receive()
        client.reads.clear()
        say(client, "word " * 100)
        assert await client.end() == (4408, "nothing was read")
        assert client.pending == 0
        assert model.said[0].closed_for == ["client_disconnect"]


async def test_a_stop_lets_what_has_begun_finish(client: SocketClient, model: Speaking, served: Served) -> None:
    model.cues["slow"] = asyncio.Event()
    say(client, "slow")
    await model_asked(model)
    served.stopping.set()
    client.send("input.text", text="two")
    assert refusal(await client.receive()) == (None, "shutting_down")
    model.cues["slow"].set()
    await client.until("session.done")
    assert await client.end() == (1001, "the server is shutting down")


async def test_a_stop_closes_idle_sockets(client: SocketClient, served: Served) -> None:
    served.stopping.set()
    assert await client.end() == (1001, "the server is shutting down")


async def test_the_end_of_the_time_to_drain(client: SocketClient, model: Speaking, served: Served) -> None:
    model.cues["never"] = asyncio.Event()
    client.send("input.text", text="one never")
    await client.until("audio.sentence")
    await client.receive()
    served.stopping.set()
    served.draining.set()
    assert refusal(await client.receive()) == (None, "shutting_down")
    assert await client.end() == (1001, "the server is shutting down")
    assert model.said[0].closed_for == ["shutdown"]


# ------------------------------------------------------------------------------------------------- the handshake


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"query": "api_key=secret"}, 401),  # URLs end up in logs
        ({"protocols": ("realtime", "openai-insecure-api-key.wrong")}, 401),
        ({"protocols": ("realtime", "openai-insecure-api-key.\udcf0\u20ac")}, 401),  # as uvicorn decodes other bytes
        ({"authorization": "Bearer secret"}, 101),
        ({"x_api_key": "secret"}, 101),
        ({"protocols": ("realtime", "openai-insecure-api-key.secret")}, 101),
        ({"protocols": ("openai-insecure-api-key.secret",)}, 101),
    ],
)
async def test_keys(model: Speaking, tmp_path: Path, how: dict[str, Any], status: int) -> None:
    served = Served(model, tmp_path, api_keys=["secret"])
    async with connected(served, **how) as client:
        if status == 101:
            client.send("session.config")
            assert (await client.receive())["type"] == "session.configured"
            assert client.protocol == next(iter(how.get("protocols", ())), None)
        else:
            await client.end()
            assert client.body["error"]["code"] == "invalid_api_key"
        assert client.status == status


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ({"origin": "http://evil.test"}, 403, "cors_refused"),
        ({"query": "model=gpt"}, 404, "model_not_found"),
    ],
)
async def test_refused_handshakes(served: Served, how: dict[str, Any], status: int, code: str) -> None:
    async with connected(served, **how) as client:
        await client.end()
        assert (client.status, client.body["error"]["code"]) == (status, code)


async def test_that_nobody_is_up_is_told_before_the_upgrade(served: Served, model: Speaking) -> None:
    model.replicas = 0
    async with connected(served) as client:
        await client.end()
        assert (client.status, client.body["error"]["code"]) == (503, "no_replica")


async def test_what_the_model_cannot_do_is_told_before_the_upgrade(served: Served, model: Speaking) -> None:
    model.tasks = ["chat"]
    async with connected(served) as client:
        await client.end()
        assert (client.status, client.body["error"]["code"]) == (404, "unsupported_task")
    served.stopping.set()
    async with connected(served) as client:
        await client.end()
        assert (client.status, client.body["error"]["code"]) == (503, "shutting_down")


async def test_the_model_in_the_url(served: Served, model: Speaking) -> None:
    async with connected(served, query="model=smol", origin="http://test") as client:
        client.send("session.config")
        assert (await client.receive())["model"] == "smol"
        say(client, "x")
        await client.until("session.done")
        assert model.submitted[0][3] == "smol"


async def test_one_line_in_the_log_and_one_count(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "app.access")
    async with connected(served, x_request_id="my-id") as client:
        client.send("session.config")
        assert (await client.receive())["session_id"] == "my-id"
        client.send("session.close")
        await client.end()
    (line,) = [record for record in caplog.records if record.name == "app.access"]
    assert "WEBSOCKET /v1/audio/speech/stream" in line.getMessage()
    assert " 101 done " in line.getMessage()
    counted = served.litestar.state.metrics.collect()[f.HTTP_REQUESTS]
    assert list(counted) == [("/v1/audio/speech/stream", "WEBSOCKET", "1xx")]
