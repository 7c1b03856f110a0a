"""What users of such servers report of speech. Numbers are those of the report that a test plays."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import httpx
import pytest

from app.media.soundfile import SoundEncoder
from app.protocol.speech import CONTENT_TYPES
from app.protocol.speechtask import SpeechFormat
from tests.servers import Server
from tests.sounds import decode, melody

PATH = "/v1/audio/speech"
FORMATS = list(CONTENT_TYPES)
RATE = 24_000
SENTENCE = "The old lighthouse keeper walked slowly down to the beach."


def speak(server: Server, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + PATH, json={"input": SENTENCE, **fields}, timeout=60)


def file_of(answer: httpx.Response) -> bytes:
    """The sound file in an answer, however it came."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.content
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    return b"".join(base64.b64decode(event["audio"]) for event in events if "audio" in event)


def refused(answer: httpx.Response, param: str) -> bool:
    error = answer.json()["error"]
    return (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


def seconds(server: Server, **fields: Any) -> float:
    return len(decode(file_of(speak(server, response_format="pcm", **fields)), "pcm")[0]) / RATE


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("stream", [None, False, True])
def test_109_every_way_of_every_format(voice: Server, format: SpeechFormat, stream: bool | None) -> None:
    answer = speak(voice, input="Good morning.", response_format=format, stream=stream)
    kind = "text/event-stream; charset=utf-8" if stream else CONTENT_TYPES[format]
    assert answer.headers["content-type"] == kind
    samples, rate = decode(file_of(answer), format)
    assert 0.5 < len(samples) / (rate or RATE) < 3


def test_109_another_codec_is_refused(voice: Server) -> None:
    for stream in (None, False, True):
        assert refused(speak(voice, response_format="amr", stream=stream), "response_format")


@pytest.mark.parametrize("speed", [0.24, 4.01, "1.5"])
def test_110_speeds_out_of_range_are_refused(voice: Server, speed: Any) -> None:
    assert refused(speak(voice, speed=speed), "speed")


def test_110_speeds_have_an_effect_or_are_refused(voice: Server) -> None:
    slow, usual, fast = (seconds(voice, input="Good morning.", speed=speed) for speed in (0.25, 1, 2))
    assert slow > 2.5 * usual
    assert fast < 0.75 * usual
    assert refused(speak(voice, speed=4.0), "speed"), "the voice of the demo goes to twice its speed"


def test_110_all_of_openais_range_reaches_a_model_that_has_it(speaking_stub: Server) -> None:
    for speed in (0.25, 4.0):
        answer = speak(speaking_stub, response_format="pcm", input="one two", speed=speed)
        assert len(answer.content) // 2 == int(RATE * 0.2 / speed)


@pytest.fixture(scope="module")
def recording() -> str:
    """Two seconds of sound as a data URL."""
    content = SoundEncoder("wav", RATE, streamed=False)
    file = content.push(melody(2 * RATE)) + content.finish()
    return "data:audio/wav;base64," + base64.b64encode(file).decode()


def test_112_the_same_recording_under_two_names(imitator: Server, recording: str) -> None:
    fields = {"input": "Hi.", "ref_audio": recording, "ref_text": "hello there", "response_format": "pcm"}
    first, second, again = (speak(imitator, voice=name, **fields) for name in ("a", "b", "a"))
    assert len(first.content) > 0
    assert first.content == second.content == again.content, "the name is only a name"
    assert imitator.answers("/health")


FORBIDDEN = [
    "/etc/passwd",
    "etc/passwd",
    "file:///etc/passwd",
    "file:///proc/self/environ",
    "http://169.254.169.254/",
    "http://127.0.0.1:{port}/health",
    "http://localhost:{port}/health",
    "http://[::1]:{port}/health",
    "ftp://example.org/a.wav",
    "data:audio/wav;base64,AAAA",
    "data:,",
    "x" * 10_000,
]


@pytest.mark.parametrize("url", FORBIDDEN, ids=lambda url: url[:40])
def test_115_no_file_and_no_host_of_ours_is_read(imitator: Server, url: str) -> None:
    fields = {"ref_audio": url.replace("{port}", str(imitator.port)), "ref_text": "hi"}
    answer = speak(imitator, **fields)
    assert refused(answer, "ref_audio"), answer.text
    assert "root:" not in answer.text
    batch = {"items": [{"input": "x", **fields}]}
    error = httpx.post(f"{imitator.url}{PATH}/batch", json=batch, timeout=60).json()["error"]
    assert error["param"] == "items[0].ref_audio"
    assert imitator.answers("/health")


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_116_sound_comes_as_it_is_made(speaking_stub: Server, fields: dict[str, Any]) -> None:
    """A frame every 200 ms."""
    script = {"extra_params": {"stub": {"tokens": 10, "token_s": 0.2}}}
    arrivals = []
    body = {"input": "x", "response_format": "pcm", **fields, **script}
    with httpx.stream("POST", speaking_stub.url + PATH, json=body, timeout=30) as answer:
        for _ in answer.iter_raw():
            arrivals.append(time.monotonic())  # noqa: PERF401 - the times matter
    assert len(arrivals) >= 8
    assert arrivals[-1] - arrivals[0] > 1.2


def test_118_each_item_of_a_batch_tells_how_it_went(voice: Server) -> None:
    items = [{"input": "Good morning."}, {"input": ""}, {"input": "Good night.", "voice": "nobody"}]
    answer = httpx.post(f"{voice.url}{PATH}/batch", json={"items": items, "response_format": "wav"}, timeout=60)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["succeeded"], body["failed"]) == (1, 2)
    good, empty, unknown = body["results"]
    assert len(decode(base64.b64decode(good["audio_data"]), "wav")[0]) > RATE // 2
    assert [item["error"]["param"] for item in (empty, unknown)] == ["items[1].input", "items[2].voice"]


def test_118_a_batch_of_mistakes_is_one(voice: Server) -> None:
    items = [{"input": ""}, {"input": "Good night.", "voice": "nobody"}]
    answer = httpx.post(f"{voice.url}{PATH}/batch", json={"items": items}, timeout=60)
    assert refused(answer, "items[0].input")


def test_119_a_long_text_takes_the_time_of_its_sentences(voice: Server) -> None:
    one = seconds(voice)
    assert seconds(voice, input=" ".join([SENTENCE] * 20)) > 0.9 * 20 * one > 50


def test_119_a_text_over_the_stated_limit_is_refused(voice: Server) -> None:
    assert refused(speak(voice, input="x" * 4097), "input")


def test_120_short_texts_are_heard(voice: Server, speaking_stub: Server) -> None:
    for stream in (False, True):
        assert seconds(voice, input="Hi.", stream=stream) > 0.2
        one_frame = {"response_format": "pcm", "extra_params": {"stub": {"tokens": 1}}, "stream": stream}
        assert len(file_of(speak(speaking_stub, **one_frame))) == 2 * RATE // 5


def test_121_whole_and_streamed_are_the_same_bytes(voice: Server) -> None:
    for format in FORMATS:
        whole = speak(voice, response_format=format).content
        with httpx.stream("POST", voice.url + PATH, json={"input": SENTENCE, "response_format": format}) as answer:
            assert b"".join(answer.iter_raw()) == whole
