"""Omni models as whole servers: OpenAI's client reads and hears what transformers answers, on tiny checkpoints."""

from __future__ import annotations

import asyncio
import json
import re
import wave
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection

from tests.clusters import held_refs
from tests.compat.wire import metric
from tests.faults import talks
from tests.parity.speaking import SEED, TALKER, VOICE, Speaker, Spoken
from tests.parity.thinking import chats
from tests.routes.realtime import silence, voice
from tests.servers import ROOT, Server, start_server, wait_for
from tests.tiny_omni import SPEAKERS, build

LOAD_S = 300
FAMILIES = ("qwen2_5_omni", "qwen3_omni_moe")
TOKENS = 24
INPUTS = ("text", "audio", "image")
AT_ONCE = 16
LONG = 3000
"""Tokens of an answer that is still being written when its sound begins: after three dozen codec frames, and four."""


class Omni:
    """A server of one family, and a client of it."""

    def __init__(self, kind: str, directory: Path, server: Server) -> None:
        self.kind = kind
        self.directory = directory
        self.server = server
        self.client = openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=120)
        self.voice = next(name for name in self.card["voices"] if name.lower() == VOICE.lower())

    @property
    def card(self) -> dict[str, Any]:
        model: Any = self.client.models.retrieve("tiny")
        card: dict[str, Any] = model.card
        return card

    def heard(self, form: str = "wav", talker: dict[str, Any] | None = None, **audio: Any) -> dict[str, Any]:
        """The fields of a chat that is heard, said as the oracle says it unless the `talker` is told otherwise."""
        return {
            "modalities": ["text", "audio"],
            "audio": {"voice": self.voice, "format": form, **audio},
            "extra_body": {"sampling_params_list": [None, talker or TALKER[self.kind], {"seed": SEED}]},
        }


@pytest.fixture(scope="module", params=FAMILIES)
def omni(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Omni]:
    directory = build(request.param, tmp_path_factory.mktemp("omni"))
    line = ("omni-app", "serve", str(directory), "--port", "{port}", "--served-model-name", "tiny")
    small = (
        "--dtype",
        "float32",
        "--max-model-len",
        "3200",
        "--kv-cache-memory-bytes",
        "64MiB",
        "--max-num-seqs",
        "16",
    )
    with start_server((*line, *small), {"OMP_NUM_THREADS": "1"}) as server:
        server.wait_ready(LOAD_S)
        yield Omni(request.param, directory, server)
        assert server.stop(60) == 0, server.output()
        server.assert_nothing_left()


@pytest.fixture(scope="module")
def oracle(omni: Omni) -> Speaker:
    return Speaker(omni.kind, omni.directory)


@pytest.fixture(scope="module")
def expected(oracle: Speaker) -> dict[str, Spoken]:
    return {name: oracle.speak(chats()[name], TOKENS) for name in INPUTS}


def asked(name: str = "text", **more: Any) -> dict[str, Any]:
    messages: list[Any] = chats()[name].messages()
    return {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": TOKENS, **more}


def samples_of(data: bytes) -> NDArray[np.int16]:
    return np.frombuffer(data, np.int16)


def assert_sounds_like(samples: NDArray[np.int16], sound: NDArray[np.float32]) -> None:
    """Up to the rounding of sums, which others in a batch and pieces of a stream change: a quarter of a thousandth."""
    wanted = np.round(sound * 32767).clip(-32768, 32767)
    assert len(samples) == len(wanted)
    assert np.abs(wanted).max() > 1000
    np.testing.assert_allclose(samples.astype(np.float32), wanted, atol=8)


# ------------------------------------------------------------------------------------------------ what it tells


def test_what_the_model_can_do(omni: Omni) -> None:
    model: Any = omni.client.models.retrieve("tiny")
    assert model.output_modalities == ["text", "audio"]
    assert model.input_modalities == ["text", "audio", "image"]
    assert {"chat", "completion"} <= set(model.tasks)
    assert "talk" not in model.tasks
    assert [name.lower() for name in sorted(model.card["voices"])] == sorted(name.lower() for name in SPEAKERS)
    listed = omni.server.get("/v1/audio/voices").json()
    assert set(model.card["voices"]) < set(listed["voices"])


def test_texts_are_not_read_out(omni: Omni) -> None:
    with pytest.raises(openai.NotFoundError, match="speaks its own answers and reads out no text: ask for one with"):
        omni.client.audio.speech.create(model="tiny", voice=omni.voice, input="Read this.")


def test_no_voice_can_be_uploaded(omni: Omni) -> None:
    form = {"name": "mine", "consent": "yes"}
    sample = {"audio_sample": ("a.wav", b"RIFF\0\0\0\0WAVE", "audio/wav")}
    answer = httpx.post(f"{omni.server.url}/v1/audio/voices", data=form, files=sample, timeout=30)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "audio_sample")
    assert "imitates nobody" in answer.json()["error"]["message"]


# ------------------------------------------------------------------------------------------------ what it answers


@pytest.mark.parametrize("name", [*INPUTS, "all"])
def test_text_is_that_of_transformers(omni: Omni, oracle: Speaker, name: str) -> None:
    answer = omni.client.chat.completions.create(**asked(name))
    assert answer.choices[0].message.content == oracle.write(chats()[name], TOKENS)


@pytest.mark.parametrize("name", INPUTS)
def test_speech_is_that_of_transformers(omni: Omni, expected: dict[str, Spoken], name: str) -> None:
    answer = omni.client.chat.completions.create(**asked(name), **omni.heard())
    type(answer).model_validate(answer.model_dump(), strict=True)
    message = answer.choices[0].message
    assert message.audio is not None
    assert message.content == message.audio.transcript == expected[name].text
    with wave.open(BytesIO(b64decode(message.audio.data, validate=True))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        samples = samples_of(file.readframes(file.getnframes()))
    assert_sounds_like(samples, expected[name].sound)
    usage = answer.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.audio_tokens == expected[name].frames
    text_tokens = usage.completion_tokens - expected[name].frames
    assert 0 < text_tokens <= TOKENS
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_is_the_same_in_pieces(omni: Omni, expected: dict[str, Spoken]) -> None:
    options = {"include_usage": True}
    stream = omni.client.chat.completions.create(**asked(stream=True, stream_options=options), **omni.heard("pcm16"))
    chunks = list(stream)
    deltas: list[Any] = [choice.delta for chunk in chunks for choice in chunk.choices]
    audio = [delta.audio.model_dump(exclude_unset=True) for delta in deltas if delta.audio is not None]
    assert "".join(delta.content or "" for delta in deltas) == expected["text"].text
    assert "".join(part.get("transcript", "") for part in audio) == expected["text"].text
    assert_sounds_like(samples_of(b64decode("".join(part.get("data", "") for part in audio))), expected["text"].sound)
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert finishes[:-1] == [None] * (len(finishes) - 1)
    assert finishes[-1] is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details.audio_tokens == expected["text"].frames


def test_sixteen_at_once_begin_to_speak_before_they_have_ended_to_think(omni: Omni) -> None:
    """By the order of what comes; the answers are as long as their context allows."""

    def order(number: int) -> list[str]:
        more = {"ignore_eos": True, **omni.heard(talker=TALKER[omni.kind] | {"max_tokens": 60})["extra_body"]}
        heard = {**omni.heard("pcm16"), "extra_body": more}
        body = asked(max_tokens=LONG, stream=True, seed=number) | {"temperature": 1.0}
        came = []
        for chunk in omni.client.chat.completions.create(**body, **heard):
            for choice in chunk.choices:
                delta: Any = choice.delta
                came += ["text"] if delta.content else []
                came += ["sound"] if delta.audio is not None and getattr(delta.audio, "data", None) else []
        return came

    with ThreadPoolExecutor(AT_ONCE) as threads:
        orders = list(threads.map(order, range(AT_ONCE)))
    for came in orders:
        assert "sound" in came
        assert came.index("sound") < len(came) - 1 - came[::-1].index("text")


def test_who_asked_at_the_same_time_gets_their_own(omni: Omni, expected: dict[str, Spoken]) -> None:
    """Every other one streamed."""

    def ask(number: int) -> tuple[str, bytes]:
        name = INPUTS[number % len(INPUTS)]
        if number % 2:
            message = omni.client.chat.completions.create(**asked(name), **omni.heard("pcm16")).choices[0].message
            assert message.audio is not None
            return name, b64decode(message.audio.data)
        stream = omni.client.chat.completions.create(**asked(name, stream=True), **omni.heard("pcm16"))
        deltas: list[Any] = [choice.delta for chunk in stream for choice in chunk.choices]
        return name, b64decode("".join(getattr(x.audio, "data", None) or "" for x in deltas if x.audio is not None))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for name, sound in threads.map(ask, range(AT_ONCE)):
            assert_sounds_like(samples_of(sound), expected[name].sound)


def test_the_examples_of_the_page(omni: Omni, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without chance, and no longer than they have to be: random weights find no end."""
    page = (ROOT / "docs" / "omni.md").read_text()
    talker = {"temperature": 0, "max_tokens": 40}
    commands = [json.loads(body) for body in re.findall(r"-d '(.*?)'", page, re.DOTALL)]
    assert len(commands) == 2
    for body in commands:
        own = body.get("sampling_params_list", [{}, {}, None])
        body["sampling_params_list"] = [{"max_tokens": TOKENS, "temperature": 0} | own[0], own[1] | talker, own[2]]
        answer = httpx.post(f"{omni.server.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.json()["choices"][0]["message"]["audio"]["data"], answer.text
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    short = f"max_tokens={TOKENS}, temperature=0, extra_body={{'sampling_params_list': [None, {talker}]}}, stream=True"
    here = example.replace("http://127.0.0.1:8091", omni.server.url).replace("Qwen/Qwen2.5-Omni-7B", "tiny")
    monkeypatch.chdir(tmp_path)
    exec(compile(here.replace("stream=True", short), "omni.md", "exec"), {})
    assert len(samples_of((tmp_path / "answer.pcm").read_bytes())) > 0


# ------------------------------------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("audio", "param"),
    [
        ({"voice": "nobody"}, "audio.voice"),
        ({"speed": 2}, "audio.speed"),
        ({"instructions": "whisper"}, "audio.instructions"),
        ({"ref_audio": "data:audio/wav;base64,AAAA"}, "audio.ref_audio"),
        ({"extra_params": {"nope": 1}}, "audio.nope"),
    ],
)
def test_what_no_omni_model_can(omni: Omni, audio: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        omni.client.chat.completions.create(**asked(modalities=["text", "audio"], audio=audio))
    assert caught.value.param == param


@pytest.mark.parametrize(("position", "param"), [(1, "temperature"), (2, "temperature")])
def test_parameters_of_a_stage_are_judged_where_they_stand(omni: Omni, position: int, param: str) -> None:
    given: list[Any] = [None, None, None]
    given[position] = {"temperature": 9}
    body = {"modalities": ["text", "audio"], "audio": {}, "extra_body": {"sampling_params_list": given}}
    with pytest.raises(openai.BadRequestError) as caught:
        omni.client.chat.completions.create(**asked(), **body)
    assert caught.value.param == f"sampling_params_list[{position}].{param}"


# ------------------------------------------------------------------------------------------------ who leaves


def test_clients_that_leave_leave_nothing(omni: Omni) -> None:
    """When they have seen the first text, or heard the first sound."""
    body = asked(max_tokens=LONG, stream=True) | {"temperature": 1.0, "ignore_eos": True}
    heard = {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}}

    def leave(number: int) -> None:
        seen = '"transcript"' if number % 2 else '"data"'
        path = f"{omni.server.url}/v1/chat/completions"
        with httpx.stream("POST", path, json=body | heard, timeout=60) as answer:
            for line in answer.iter_lines():
                if seen in line:
                    return
        raise AssertionError("it ended before anything had come")

    def idle() -> bool:
        load: int = omni.server.get("/load").json()["server_load"]
        return load == 0 and not any(held_refs(pid) for pid in omni.server.replicas)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(leave, range(AT_ONCE)))
    wait_for(idle, 10, "the work of clients that left to end", server=omni.server)
    assert omni.client.chat.completions.create(**asked(), **omni.heard()).choices[0].message.audio is not None


# ------------------------------------------------------------------------------------------------ on a socket


async def test_a_realtime_talk_is_heard_answered_and_interrupted(omni: Omni) -> None:
    async with talks.session(omni.server) as socket:
        brief = {"max_output_tokens": TOKENS, "temperature": 0, "output_modalities": ["text"]}
        await talks.send(socket, "session.update", session=brief)
        await talks.hear(socket, silence(0.5) + voice(1) + silence(1))
        answered = (await talks.until(socket, "response.done"))[-1]["response"]
        assert answered["status"] in ("completed", "incomplete")
        assert answered["output"][0]["content"][0]["text"]
        assert answered["usage"]["input_tokens"] > 20, "sound is tokens"
        long = {"max_output_tokens": LONG, "temperature": 1, "output_modalities": ["audio"]}
        await talks.send(socket, "session.update", session=long)
        ends = [await interrupted(socket) for _ in range(6)]
        assert {"type": "cancelled", "reason": "turn_detected"} in ends
    await asyncio.to_thread(
        wait_for, lambda: metric(omni.server, "omni_requests_running") == 0, 5, "the stages to stop"
    )


async def interrupted(socket: ClientConnection) -> Any:
    """How a long answer has ended that was interrupted when it began: the model may have been faster."""
    await talks.say(socket, "Go on.")
    begun = await talks.until(socket, "response.output_audio_transcript.delta", "response.done")
    if begun[-1]["type"] == "response.done":
        return begun[-1]["response"]["status_details"]
    await talks.hear(socket, voice(0.3))
    ended = (await talks.until(socket, "response.done"))[-1]["response"]["status_details"]
    await talks.send(socket, "input_audio_buffer.clear")
    return ended
