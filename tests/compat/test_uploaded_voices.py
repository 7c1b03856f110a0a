"""Uploaded voices of a whole server: through its client, by several workers, over a restart; and what is refused."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.engines import stubspeech
from tests.compat.negative import Case, Route, cases, problem, send
from tests.servers import ROOT, Server, start_server

PATH = "/v1/audio/voices"
WAV = stubspeech.wav_header(24_000, 4800) + stubspeech.ramp(0, 2400)
ROUTE = Route(
    PATH,
    {"name": "x", "consent": "mine", "speaker_embedding": [1, 2, 3, 4]},
    {"name": "text", "consent": "text"},
    {"audio_sample": "text", "ref_text": "text", "speaker_description": "text", "type": "choice"},
    ("name", "consent"),
    strict=True,
)


@pytest.fixture(scope="module")
def client(speaking_stub: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=speaking_stub.url, timeout=30) as client:
        yield client


def all_cases() -> list[Any]:
    """A form without boundary is judged as a form here."""
    return [
        pytest.param(case._replace(status=(400,)) if "boundary" in case.name else case, id=case.name)
        for case in cases(ROUTE)
    ]


@pytest.mark.parametrize("case", all_cases())
def test_refused(client: httpx.Client, case: Case) -> None:
    assert problem(case, send(client, case)) is None


# ----------------------------------------------------------- user_reports 113: uploaded, used, deleted, restarted


@contextmanager
def serving(state: Path) -> Iterator[Server]:
    env = {
        "OMNI_STAGE_OVERRIDES": json.dumps({"0": {"engine_args": {"chats": False, "speaks": True}}}),
        "XDG_STATE_HOME": str(state),
    }
    with start_server(("omni-app", "serve", "stub", "--port", "{port}", "--workers", "3"), env) as server:
        yield server.wait_ready(60)


def speak(server: Server, voice: str) -> httpx.Response:
    body = {"input": "one two", "voice": voice, "response_format": "wav"}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=30)


def listed(server: Server) -> list[list[str]]:
    """What each of a few connections is told, which go to different workers."""
    return [[x["name"] for x in server.get(PATH).json()["uploaded_voices"]] for _ in range(12)]


def test_an_uploaded_voice_can_be_used_wherever_and_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert [speak(server, "Ada").status_code for _ in range(6)] == [400] * 6
        openai_client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
        file = ("ada.wav", io.BytesIO(WAV), "audio/wav")
        voice = openai_client.audio.voices.create(name="Ada", consent="cons_1", audio_sample=file)
        assert (voice.id, voice.name, voice.object, voice.type) == ("Ada", "Ada", "audio.voice", "audio_sample")
        assert listed(server) == [["Ada"]] * 12
        assert [speak(server, "ada").status_code for _ in range(12)] == [200] * 12
        assert server.stop() == 0
    with serving(tmp_path) as server:
        assert listed(server) == [["Ada"]] * 12
        assert speak(server, "Ada").status_code == 200
        openai_client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
        assert openai_client.audio.voices.delete("Ada").deleted
        assert listed(server) == [[]] * 12
        answers = [speak(server, "Ada") for _ in range(6)]
        assert {answer.status_code for answer in answers} == {400}
        assert answers[0].json()["error"]["param"] == "voice"


def test_the_commands_of_the_page(speaking_stub: Server, tmp_path: Path) -> None:
    (tmp_path / "ada.wav").write_bytes(WAV)
    page = (ROOT / "docs" / "voices.md").read_text().replace("127.0.0.1:8091", f"127.0.0.1:{speaking_stub.port}")
    commands = re.findall(r"^curl .*", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        line = shlex.split(command)
        subprocess.run([line[0], "--fail-with-body", *line[1:]], cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "morning.wav").read_bytes().startswith(b"RIFF")


def test_the_demo_imitates_nobody_and_says_so(voice: Server) -> None:
    answer = httpx.post(f"{voice.url}{PATH}", data={"name": "Ada", "consent": "x"}, files={"audio_sample": WAV})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "audio_sample"
    assert "imitate" in answer.json()["error"]["message"]
    assert "heart" in voice.get(PATH).json()["voices"]
