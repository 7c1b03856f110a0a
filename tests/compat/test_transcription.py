"""A tiny Whisper on the real vLLM behind real workers: the `openai` package, refusals, and docs/transcription.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.recordings import as_file, as_wav, chirp, silent_film
from tests.servers import ROOT, Server, start_server
from tests.tiny_listening import tiny_whisper

PAGE = (ROOT / "docs" / "transcription.md").read_text()
COMMANDS = re.findall(r"^curl .*", PAGE, re.MULTILINE)
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
WAV = as_wav(chirp(1.5))
FILE = ("recording.wav", WAV, "audio/wav")
SHORT = {"max_completion_tokens": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    line = ("omni-app", "serve", str(tiny_whisper()), "--port", "{port}", "--workers", "2", "--dtype", "float32")
    limits = ("--max-media-bytes", "300000", "--max-media-seconds", "8", "--max-num-seqs", "16")
    with start_server((*line, *limits, "--served-model-name", "tiny")) as server:
        yield server.wait_ready(180)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client:
        yield client


def strict(answer: Any) -> Any:
    """OpenAI's own types hold what they promise."""
    type(answer).model_validate(answer.model_dump(), strict=True)
    return answer


def test_the_model_tells_what_it_does(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert {"transcription", "translation"} <= set(model.tasks)  # type: ignore[attr-defined]


def test_json_and_text_say_the_same(client: openai.OpenAI) -> None:
    create = client.audio.transcriptions.create
    answer = strict(create(model="tiny", file=FILE, language="en", extra_body=SHORT))
    assert (answer.usage.type, answer.usage.seconds) == ("duration", 2)
    text = create(model="tiny", file=FILE, language="en", response_format="text", extra_body=SHORT)
    assert text == answer.text + "\n"


def test_times(client: openai.OpenAI) -> None:
    create = client.audio.transcriptions.create
    fields: Any = {"model": "tiny", "file": FILE, "language": "en"}
    answer = create(**fields, response_format="verbose_json", timestamp_granularities=["segment"])
    assert (answer.duration, answer.language) == (1.5, "en")
    assert answer.segments
    srt, vtt = create(**fields, response_format="srt"), create(**fields, response_format="vtt")
    assert srt.count(" --> ") == vtt.count(" --> ") == len(answer.segments)
    assert vtt.startswith("WEBVTT\n\n00:00:0")


def test_translations(client: openai.OpenAI) -> None:
    answer = strict(client.audio.translations.create(model="tiny", file=FILE, extra_body=SHORT))
    assert answer.text
    verbose = client.audio.translations.create(model="tiny", file=FILE, response_format="verbose_json")
    assert verbose.duration == 1.5


def test_a_stream_says_what_the_whole_does(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "file": FILE, "language": "en", "extra_body": SHORT}
    whole = client.audio.transcriptions.create(**fields)
    events = [strict(event) for event in client.audio.transcriptions.create(**fields, stream=True)]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == whole.text
    usage = events[-1].usage
    assert (usage.input_token_details.text_tokens, usage.input_token_details.audio_tokens) == (4, 100)
    assert (usage.output_tokens, usage.total_tokens) == (8, 112)


def test_many_at_a_time(client: openai.OpenAI) -> None:
    """The same text for all, whatever else is computed beside them."""

    def ask(number: int) -> str:
        file = WAV if number % 2 else as_wav(chirp(5))
        return client.audio.transcriptions.create(model="tiny", file=file, language="en", extra_body=SHORT).text

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, range(16)))
    assert len(set(texts[::2])) == len(set(texts[1::2])) == 1
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("container", "codec", "status"), [("asf", "wmav2", 200), ("matroska", "libopus", 200), ("mp3", "libmp3lame", 200)]
)
def test_odd_containers(server: Server, container: str, codec: str, status: int) -> None:
    rate = 48_000 if codec == "libopus" else 16_000
    file = as_file(chirp(1.5, rate=rate), container, codec, rate)
    answer = httpx.post(server.url + TRANSCRIPTIONS, files={"file": ("x.bin", file)}, data={"language": "en"})
    assert answer.status_code == status, answer.text


REFUSED: list[tuple[str, bytes, dict[str, Any], int, str]] = [
    ("no recording at all", b"\0" * 1000, {}, 400, "file"),
    ("playlist", b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n", {}, 400, "file"),
    ("cut off", as_file(chirp(1.5), "mp4", "aac")[:900], {}, 400, "file"),
    ("a film without sound", silent_film(), {}, 400, "file"),
    ("a film of one picture in asf", silent_film("asf", "wmv2", 1), {}, 400, "file"),
    ("too long", as_wav(chirp(8.5)), {}, 400, "file"),
    ("too short", as_wav(chirp(0.01)), {}, 400, "file"),
    ("too large", b"RIFF" + b"\0" * 300_000, {}, 413, "file"),
    ("unknown model", WAV, {"model": "nope"}, 404, "model"),
    ("unknown language", WAV, {"language": "xx"}, 400, "language"),
    ("unknown field", WAV, {"lang": "en"}, 400, "lang"),
    ("unknown format", WAV, {"response_format": "docx"}, 400, "response_format"),
    ("speakers", WAV, {"response_format": "diarized_json"}, 400, "response_format"),
    ("words", WAV, {"response_format": "srt", "timestamp_granularities[]": "word"}, 400, "timestamp_granularities"),
    ("hotwords", WAV, {"hotwords": "Zürich"}, 400, "hotwords"),
    *[
        (f"{name}={value}", WAV, {name: value}, 400, name)
        for name, values in {
            "temperature": ("x", "-1", "nan", "1e400", ""),
            "top_p": ("2", "0", "inf"),
            "seed": ("1.5", "9" * 40),
            "max_completion_tokens": ("0", "-1", "many"),
            "n": ("0", "2", "x"),
            "stream": ("7", "maybe"),
            "use_beam_search": ("7",),
        }.items()
        for value in values
    ],
]


@pytest.mark.parametrize(
    ("file", "fields", "status", "param"), [row[1:] for row in REFUSED], ids=[x[0] for x in REFUSED]
)
def test_refusals(server: Server, file: bytes, fields: dict[str, Any], status: int, param: str) -> None:
    for route in (TRANSCRIPTIONS, TRANSLATIONS):
        answer = httpx.post(server.url + route, files={"file": ("a.wav", file)}, data=fields, timeout=30)
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.json()["error"]["param"] == param, answer.text


def test_a_prompt_too_long_for_the_model(server: Server) -> None:
    answer = httpx.post(server.url + TRANSCRIPTIONS, files={"file": FILE}, data={"prompt": "x" * 500}, timeout=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded"), answer.text


def test_it_does_not_chat(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_task")


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page(server: Server, tmp_path: Path, line: str) -> None:
    (tmp_path / "recording.wav").write_bytes(WAV)
    line = line.replace("http://127.0.0.1:8091", server.url).replace("curl ", "curl --fail -s ")
    out = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, timeout=60, check=True).stdout
    assert (tmp_path / "recording.srt").exists() if " -o " in line else out.strip()


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_the_page(server: Server, tmp_path: Path, program: str) -> None:
    (tmp_path / "recording.wav").write_bytes(WAV)
    program = program.replace("http://127.0.0.1:8091", server.url)
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True, text=True).stdout
    assert len(out) > 5


def test_there_are_examples() -> None:
    assert (len(COMMANDS), len(PROGRAMS)) == (4, 1)
