"""Chats whose answer is heard: who gets them, what each stage is asked, what comes, and what is refused."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from app.cluster.messages import Audio, Chunk, Delta, Done, Extra, Finish, Usage
from app.protocol.errors import ApiError
from app.protocol.speechtask import SpeechTask, VoiceSample, decode_task
from tests.routes.serving import ScriptedOrchestrator, Served, Step, events
from tests.routes.speaking import CARD

URL = "/v1/chat/completions"
X: list[Any] = [{"role": "user", "content": "x"}]
ASK: dict[str, Any] = {"messages": X, "modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "pcm16"}}
USAGE = Usage(5, 12, b'{"completion_tokens_details":{"text_tokens":2,"audio_tokens":10}}')


def piece(sound: bytes, samples: int = 3) -> Audio:
    return Audio(0, memoryview(b64encode(sound)), "pcm", 24_000, samples)


SPEAKING: list[Step] = [
    [Delta(0, "Hel"), piece(b"abcdef")],
    [Delta(0, "lo"), piece(b"ghi", 1)],
    [USAGE, Finish(0, "stop"), Done()],
]


def speaking(script: list[Step] | None = None, shape: str = "openai") -> Served:
    """Routes over a pipeline that speaks."""
    orchestrator = ScriptedOrchestrator(SPEAKING if script is None else script)
    orchestrator.speaks = True
    orchestrator.tasks = ["chat", "completion", "speech"]
    orchestrator.card = msgspec.json.encode(CARD).decode()
    served = Served(orchestrator)
    served.settings.speech.chat_audio_shape = shape
    return served


@pytest.fixture
def served() -> Served:
    return speaking()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


async def post(served: Served, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        return await client.post(URL, json=ASK | fields)


async def stream(served: Served, **fields: Any) -> list[Any]:
    return events((await post(served, stream=True, **fields)).content)


def asked(served: Served) -> tuple[dict[str, Any], SpeechTask]:
    """What the two stages were asked last."""
    return json.loads(served.orchestrator.submitted[-1][2]), decode_task(served.orchestrator.spoken[-1])


# ------------------------------------------------------------------------------------------------ answers


async def test_an_answer(client: httpx.AsyncClient) -> None:
    answer = (await client.post(URL, json=ASK, headers={"X-Request-Id": "r1"})).json()
    [choice] = answer["choices"]
    audio = choice["message"].pop("audio")
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert audio == {
        "id": "audio-r1",
        "expires_at": answer["created"],
        "transcript": "Hello",
        "data": "YWJjZGVmZ2hp",
    }
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert "audio_metadata" not in choice
    details = {"text_tokens": 2, "audio_tokens": 10}
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 12,
        "total_tokens": 17,
        "completion_tokens_details": details,
    }


async def test_a_stream(served: Served) -> None:
    *chunks, done = await stream(served)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice["delta"] for choice in choices]
    created = chunks[0]["created"]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1]["audio"]["id"].startswith("audio-")
    assert deltas[2:] == [
        {"content": "Hel", "audio": {"transcript": "Hel"}},
        {"audio": {"data": "YWJjZGVm"}},
        {"content": "lo", "audio": {"transcript": "lo"}},
        {"audio": {"data": "Z2hp"}},
        {"audio": {"expires_at": created}},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 7 + ["stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_sound_alone(served: Served) -> None:
    answer = (await post(served, modalities=["audio"])).json()
    message = answer["choices"][0]["message"]
    assert (message["content"], message["audio"]["transcript"]) == (None, "Hello")
    deltas = [chunk["choices"][0]["delta"] for chunk in (await stream(served, modalities=["audio"]))[:-1]]
    assert [delta["content"] for delta in deltas if delta.get("content")] == []
    assert "".join(delta.get("audio", {}).get("transcript", "") for delta in deltas) == "Hello"


@pytest.mark.parametrize("continuous", [False, True])
async def test_usage_is_the_same_streamed_and_whole(served: Served, continuous: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    *chunks, last, _ = await stream(served, stream_options=options)
    assert last["choices"] == []
    assert last["usage"] == (await post(served)).json()["usage"]
    counts = [chunk["usage"] and chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == ([0, 0, 1, 1, 2, 2, 12, 12] if continuous else [None] * 8)


FULL: list[Step] = [
    [Extra(b'{"system_fingerprint":"f"}')],
    [Chunk(0, b'{"delta":{"reasoning":"hm"}}'), Chunk(0, b'{"delta":{"content":"a\\"b"},"logprobs":{"content":[]}}')],
    [Chunk(0, b'{"delta":{"content":""}}'), Chunk(0, b'{"delta":{"tool_calls":[{"index":0}]}}'), piece(b"abc")],
    [Finish(0, "tool_calls"), USAGE, Done()],
]


async def test_only_what_is_said_is_a_transcript() -> None:
    chunks = await stream(speaking(FULL))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert {"reasoning": "hm"} in deltas
    assert {"tool_calls": [{"index": 0}]} in deltas
    assert {"content": 'a"b', "audio": {"transcript": 'a"b'}} in deltas
    transcript = [delta["audio"]["transcript"] for delta in deltas if "transcript" in delta.get("audio", {})]
    assert transcript == ['a"b']
    [with_logprobs] = [chunk["choices"][0] for chunk in chunks[:-1] if "logprobs" in chunk["choices"][0]]
    assert with_logprobs["delta"]["content"] == 'a"b'


async def test_a_whole_answer_of_the_full_path() -> None:
    message = {"content": "a b", "reasoning": "hm", "tool_calls": [{"id": "t"}]}
    chunk = Chunk(0, msgspec.json.encode({"message": message, "logprobs": {"content": []}}))
    script: list[Step] = [[chunk, piece(b"abc")], [Finish(0, "tool_calls"), USAGE, Done()]]
    choice = (await post(speaking(script))).json()["choices"][0]
    audio = choice["message"].pop("audio")
    assert choice["message"] == {"role": "assistant", "refusal": None, **message}
    assert (audio["transcript"], audio["data"], choice["logprobs"]) == ("a b", "YWJj", {"content": []})


async def test_an_answer_without_words() -> None:
    script: list[Step] = [[Finish(0, "stop"), USAGE, Done()]]
    message = (await post(speaking(script))).json()["choices"][0]["message"]
    assert (message["content"], message["audio"]["transcript"], message["audio"]["data"]) == (None, "", "")
    *chunks, done = await stream(speaking(script))
    assert (chunks[-1]["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")


async def test_a_stream_that_fails() -> None:
    *chunks, error, done = await stream(speaking([SPEAKING[0], ApiError(503, "lost", code="replica_lost")]))
    assert (error["error"]["code"], done) == ("replica_lost", "[DONE]")
    assert chunks[-1]["choices"][0]["finish_reason"] is None


# ------------------------------------------------------------------------------------------------ vllm-omni's shape


async def test_the_other_shape_streamed() -> None:
    chunks = (await stream(speaking(shape="vllm-omni")))[:-1]
    assert [chunk.get("modality") for chunk in chunks] == [None, "text", "audio", "text", "audio", None]
    sound = [chunk["choices"][0] for chunk in chunks if chunk.get("modality") == "audio"]
    assert b"".join(b64decode(choice["delta"]["content"]) for choice in sound) == b"abcdefghi"
    assert [choice["audio_metadata"]["frame_count"] for choice in sound] == [3, 1]
    assert sound[0]["audio_metadata"] == {"format": "pcm", "sample_rate_hz": 24000, "frame_count": 3, "channels": 1}
    assert chunks[1]["choices"][0]["delta"] == {"content": "Hel"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_the_other_shape_whole() -> None:
    choice = (await post(speaking(shape="vllm-omni"))).json()["choices"][0]
    assert choice["message"]["audio"]["data"] == "YWJjZGVmZ2hp"
    assert choice["audio_metadata"]["frame_count"] == 4


# ------------------------------------------------------------------------------------------------ what stages are asked


async def test_each_stage_is_asked_its_part(client: httpx.AsyncClient, served: Served) -> None:
    sound = {"voice": "heart", "format": "mp3", "speed": 1.5, "instructions": "calm", "language": "en", "seed": 3}
    await client.post(URL, json=ASK | {"audio": sound, "temperature": 0.5, "stream": True, "model": "smol"})
    chat, task = asked(served)
    assert chat == {"messages": X, "temperature": 0.5, "stream": True, "model": "smol"}
    assert task == SpeechTask(
        appended=True,
        voice="heart",
        format="mp3",
        speed=1.5,
        instructions="calm",
        language="en",
        seed=3,
        streamed=True,
        base64=True,
    )


@pytest.mark.parametrize(
    ("audio", "format", "rate", "voice"),
    [
        ({}, "wav", 0, ""),
        ({"voice": None, "format": None}, "wav", 0, ""),
        ({"voice": {"id": "mine"}, "format": "wav"}, "wav", 0, "mine"),
        ({"voice": "a", "format": "pcm16"}, "pcm", 24_000, "a"),
        ({"voice": "a", "format": "pcm", "sample_rate": 8000}, "pcm", 8000, "a"),
        ({"voice": "a", "format": "opus"}, "opus", 0, "a"),
        ({"voice": "a", "format": "aac"}, "aac", 0, "a"),
        ({"voice": "a", "format": "flac"}, "flac", 0, "a"),
    ],
)
async def test_voice_and_format(served: Served, audio: dict[str, Any], format: str, rate: int, voice: str) -> None:
    assert (await post(served, audio=audio)).status_code == 200
    _, task = asked(served)
    assert (task.format, task.sample_rate, task.voice, task.streamed) == (format, rate, voice, False)


async def test_a_voice_that_comes_with_the_request(served: Served) -> None:
    await post(served, audio={"ref_audio": "https://a.test/b.wav", "ref_text": "hello"})
    assert asked(served)[1].sample == VoiceSample(url="https://a.test/b.wav", text="hello", param="audio.ref_audio")


async def test_parameters_by_stage(served: Served) -> None:
    params = [{"temperature": 0.1, "max_tokens": 5}, {"speed": 2, "extra_params": {"k": 1}}]
    assert (await post(served, sampling_params_list=params)).status_code == 200
    chat, task = asked(served)
    assert chat == {"messages": X, "temperature": 0.1, "max_tokens": 5}
    assert (task.speed, task.extra) == (2.0, {"k": 1})


async def test_parameters_of_the_one_stage_of_a_text(client: httpx.AsyncClient, served: Served) -> None:
    params = [{"temperature": 0.1}, None]
    assert (await client.post(URL, json={"messages": X, "sampling_params_list": params})).status_code == 200
    assert json.loads(served.orchestrator.submitted[-1][2]) == {"messages": X, "temperature": 0.1}
    answer = await client.post(URL, json={"messages": X, "sampling_params_list": [None, {"speed": 2}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sampling_params_list[1]")


@pytest.mark.parametrize(
    ("speaks", "fields", "heard"),
    [
        (True, {}, True),
        (True, {"modalities": ["audio"]}, True),
        (True, {"modalities": ["text"], "audio": None}, False),
        (True, {"modalities": None, "audio": None}, False),
        (False, {}, False),
    ],
)
async def test_who_is_asked(speaks: bool, fields: dict[str, Any], heard: bool) -> None:
    """Where nothing speaks, the text stage says so itself."""
    served = speaking()
    served.orchestrator.speaks = speaks
    assert (await post(served, **fields)).status_code == 200
    assert bool(served.orchestrator.spoken) == heard
    assert len(served.orchestrator.submitted) == 1


async def test_invocations(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/invocations", json=ASK)).json()
    assert answer["choices"][0]["message"]["audio"]["transcript"] == "Hello"


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modalities": "audio"}, "modalities"),
        ({"modalities": []}, "modalities"),
        ({"modalities": [5]}, "modalities[0]"),
        ({"modalities": ["text", "video"]}, "modalities[1]"),
        ({"modalities": ["AUDIO"]}, "modalities[0]"),
        ({"modalities": ["audio", "audio"]}, "modalities[1]"),
        ({"modalities": ["text", "audio", "image"]}, "modalities[2]"),
        ({"modalities": ["text"]}, "audio"),
        ({"modalities": None}, "audio"),
        ({"audio": None}, "audio"),
        ({"audio": "heart"}, "audio"),
        ({"audio": []}, "audio"),
        ({"audio": {"voice": 5}}, "audio.voice"),
        ({"audio": {"voice": ""}}, "audio.voice"),
        ({"audio": {"voice": {"name": "x"}}}, "audio.voice.name"),
        ({"audio": {"format": "ogg"}}, "audio.format"),
        ({"audio": {"format": "WAV"}}, "audio.format"),
        ({"audio": {"response_format": "wav"}}, "audio.response_format"),
        ({"audio": {"voice": "a", "speaker": "b"}}, "audio.speaker"),
        ({"audio": {"speed": 5}}, "audio.speed"),
        ({"audio": {"speed": "fast"}}, "audio.speed"),
        ({"audio": {"seed": -1}}, "audio.seed"),
        ({"audio": {"instructions": "x" * 501}}, "audio.instructions"),
        ({"audio": {"ref_text": "x"}}, "audio.ref_text"),
        ({"audio": {"zzz": 1}}, "audio.zzz"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"n": "x"}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": "text"}, "response_format"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 5}}, "stream_options.include_usage"),
        ({"sampling_params_list": {"temperature": 1}}, "sampling_params_list"),
        ({"sampling_params_list": [5]}, "sampling_params_list[0]"),
        ({"sampling_params_list": [{}, {}, {"x": 1}]}, "sampling_params_list[2]"),
        ({"sampling_params_list": [{"messages": []}]}, "sampling_params_list[0].messages"),
        ({"sampling_params_list": [{}, {"voice": "x"}]}, "sampling_params_list[1].voice"),
        ({"sampling_params_list": [{}, {"zzz": 1}]}, "sampling_params_list[1].zzz"),
    ],
)
async def test_refused(client: httpx.AsyncClient, served: Served, fields: dict[str, Any], param: str) -> None:
    answer = await client.post(URL, json=ASK | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert served.orchestrator.submitted == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"modalities":["audio"],"audio":{},"audio":{}}',
        b'{"modalities":["audio"],"audio":{"\xff":1}}',
    ],
)
async def test_no_json(client: httpx.AsyncClient, served: Served, body: bytes) -> None:
    answer = await client.post(URL, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert served.orchestrator.submitted == []


async def test_words_of_a_refusal(served: Served) -> None:
    wrong = (await post(served, audio={"format": "ogg"})).json()["error"]["message"]
    assert "pcm16" in wrong
    near = (await post(served, audio={"voise": "x"})).json()["error"]["message"]
    assert "voice" in near


async def test_a_model_that_is_not_served(served: Served) -> None:
    answer = await post(served, model="nope")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
