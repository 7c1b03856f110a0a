"""/v1/audio/voices over a scripted model that imitates: what is kept, what is refused, who may."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cluster.messages import Done
from app.engines import stubspeech
from app.engines.base import EngineError
from app.pipeline.connection import ReplicaLostError, api_error
from app.routes.voices import voice_sample
from tests.routes.serving import ScriptedOrchestrator, Served, Step

PATH = "/v1/audio/voices"
WAV = stubspeech.wav_header(24_000, 4800) + stubspeech.ramp(0, 2400)
UPLOAD = {"name": "Ada", "consent": "I am Ada, and I agree."}


class Imitating(ScriptedOrchestrator):
    """Its replicas judge voices as the stub engine does. `answers`: what they answer in its place."""

    def __init__(self, card: str = stubspeech.CARD) -> None:
        script: list[Step] = [[Done()]]
        super().__init__(script)
        self.tasks, self.card = ["speech"], card
        self.answers: list[bytes | BaseException] | None = None

    async def call_stage(self, task: str, method: str, arguments: bytes) -> list[bytes | BaseException]:
        assert (task, method) == ("speech", "check_voice")
        if self.answers is not None:
            return self.answers
        try:
            return [stubspeech.check_voice(arguments)]
        except EngineError as error:
            return [api_error(error.failed)]


@pytest.fixture
def imitating() -> Imitating:
    return Imitating()


@pytest.fixture
def served(imitating: Imitating, tmp_path: Path) -> Served:
    return Served(imitating, tmp_path)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        yield client


async def upload(
    client: httpx.AsyncClient, sample: bytes = WAV, file: str = "voice.txt", **fields: Any
) -> httpx.Response:
    return await client.post(PATH, data={**UPLOAD, **fields}, files={"audio_sample": (file, sample, "text/plain")})


def refusal(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


# ------------------------------------------------------------------------------------------------ what is kept


async def test_an_upload_is_kept_and_listed(client: httpx.AsyncClient) -> None:
    answer = await upload(client, ref_text=" Good morning. ", speaker_description="calm")
    assert answer.status_code == 200, answer.text
    shown = answer.json()["voice"]
    assert answer.json() == {**shown, "success": True, "voice": shown}
    assert shown | {"created_at": 0} == {
        "id": "Ada",
        "object": "audio.voice",
        "type": "audio_sample",
        "name": "Ada",
        "created_at": 0,
        "consent": UPLOAD["consent"],
        "file_size": len(WAV),
        "mime_type": "audio/wav",
        "embedding_source": "audio",
        "ref_text": "Good morning.",
        "speaker_description": "calm",
    }
    listed = (await client.get(PATH)).json()
    assert listed == {"voices": ["Ada", "default", *stubspeech.VOICES], "uploaded_voices": [shown]}
    assert (await client.get(f"{PATH}/ADA")).json() == shown


async def test_a_recording_comes_in_json_too(client: httpx.AsyncClient, served: Served) -> None:
    url = "data:audio/wav;base64," + base64.b64encode(WAV).decode()
    answer = await client.post(PATH, json={**UPLOAD, "audio_sample": url, "ref_text": "hi"})
    assert answer.status_code == 200, answer.text
    sample = await voice_sample(served.litestar, "ada")
    assert sample is not None
    assert (sample.data, sample.text, sample.param) == (WAV, "hi", "voice")


@pytest.mark.parametrize("form", [True, False])
async def test_an_embedding(client: httpx.AsyncClient, served: Served, form: bool) -> None:
    embedding = [0.5, -1, 2e-9, 4]
    if form:
        parts = {name: (None, text) for name, text in UPLOAD.items()}
        answer = await client.post(PATH, files=parts | {"speaker_embedding": (None, json.dumps(embedding))})
    else:
        answer = await client.post(PATH, json={**UPLOAD, "speaker_embedding": embedding})
    assert answer.status_code == 200, answer.text
    assert answer.json()["voice"]["embedding_dim"] == 4
    sample = await voice_sample(served.litestar, "Ada")
    assert sample is not None
    assert (sample.data, sample.embedding) == (b"", embedding)


async def test_the_model_own_voices_are_listed(client: httpx.AsyncClient) -> None:
    heart = {"id": "heart", "object": "audio.voice", "type": "built_in", "name": "heart"}
    assert (await client.get(f"{PATH}/Heart")).json() == heart
    assert (await client.get(PATH)).json() == {"voices": ["default", *stubspeech.VOICES], "uploaded_voices": []}


async def test_a_deleted_voice_is_gone(client: httpx.AsyncClient, served: Served) -> None:
    await upload(client)
    answer = await client.delete(f"{PATH}/ada")
    assert (answer.status_code, answer.json()["deleted"], answer.json()["success"]) == (200, True, True)
    assert await voice_sample(served.litestar, "Ada") is None
    assert refusal(await client.delete(f"{PATH}/Ada")) == (404, "name", "voice_not_found")
    assert refusal(await client.get(f"{PATH}/Ada")) == (404, "name", "voice_not_found")


async def test_a_bad_upload_leaves_the_voice_that_is_there(client: httpx.AsyncClient, served: Served) -> None:
    await upload(client)
    for sample in (WAV + b"noise", b"", b"no sound", WAV + b"x" * (10 << 20)):
        assert (await upload(client, sample)).status_code in (400, 413)
    kept = await voice_sample(served.litestar, "Ada")
    assert kept is not None
    assert kept.data == WAV


async def test_voices_are_replaced_unless_they_may_not_be(client: httpx.AsyncClient, served: Served) -> None:
    await upload(client)
    assert (await upload(client, WAV + b"\0" * 20, name="ADA")).status_code == 200
    assert [voice["file_size"] for voice in (await client.get(PATH)).json()["uploaded_voices"]] == [len(WAV) + 20]
    served.settings.speech.voices_policy = "immutable"
    assert refusal(await upload(client)) == (409, "name", "voice_exists")


async def test_there_is_a_most_of_voices(client: httpx.AsyncClient, served: Served) -> None:
    served.settings.speech.voices_max = 1
    await upload(client)
    assert refusal(await upload(client, name="Bob")) == (409, None, "voices_full")


# --------------------------------------------------------------------------------------------- what is refused

NAMES = ["", " ", ".", "..", ".x", "-x", " x", "x ", "x.", "a/b", "a\\b", "a\0b", "ä", "a\nb", "x" * 65, "a%b"]


@pytest.mark.parametrize("name", NAMES)
async def test_names(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post(PATH, json={**UPLOAD, "name": name, "speaker_embedding": [1, 2, 3, 4]})
    assert refusal(answer) == (400, "name", "invalid_value")


@pytest.mark.parametrize("name", ["heart", "STONE", "Default"])
async def test_names_of_the_model(client: httpx.AsyncClient, name: str) -> None:
    assert refusal(await upload(client, name=name)) == (409, "name", "voice_exists")
    assert refusal(await client.delete(f"{PATH}/heart")) == (400, "name", "invalid_value")


@pytest.mark.parametrize("name", ["x", "A b", "a.b-c_d", "_9", "x" * 64])
async def test_good_names(client: httpx.AsyncClient, name: str) -> None:
    assert (await upload(client, name=name)).status_code == 200
    assert (await client.get(f"{PATH}/{name}")).json()["name"] == name


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"consent": " "}, "consent", "invalid_value"),
        ({"consent": "x" * 2001}, "consent", "invalid_value"),
        ({"consent": None}, "consent", "missing_required_parameter"),
        ({"name": None}, "name", "missing_required_parameter"),
        ({"audio_sample": None}, "audio_sample", "invalid_value"),
        ({"speaker_embedding": [1, 2, 3, 4]}, "audio_sample", "invalid_value"),
        ({"audio_sample": None, "speaker_embedding": []}, "speaker_embedding", "invalid_value"),
        ({"audio_sample": None, "speaker_embedding": [1, 2, 3]}, "speaker_embedding", "invalid_value"),
        ({"audio_sample": None, "speaker_embedding": "x"}, "speaker_embedding", "invalid_value"),
        ({"audio_sample": None, "speaker_embedding": "[1e999]"}, "speaker_embedding", "invalid_value"),
        ({"audio_sample": None, "speaker_embedding": [1] * 8193}, "speaker_embedding", "invalid_value"),
        ({"audio_sample": None, "speaker_embedding": [1, 2, 3, 4], "ref_text": "x"}, "ref_text", "invalid_value"),
        ({"audio_sample": "https://example.org/x.wav"}, "audio_sample", "invalid_value"),
        ({"audio_sample": "/etc/passwd"}, "audio_sample", "invalid_value"),
        ({"audio_sample": "data:audio/wav;base64,!"}, "audio_sample", "invalid_media"),
        ({"audio_sample": "data:audio/wav;base64,"}, "audio_sample", "invalid_media"),
        ({"ref_text": "x" * 4097}, "ref_text", "invalid_value"),
        ({"speaker_description": "x" * 1001}, "speaker_description", "invalid_value"),
        ({"type": "prompt"}, "type", "invalid_value"),
        ({"prompt": "a deep voice"}, "prompt", "unsupported_parameter"),
        ({"ref_audio": "x"}, "ref_audio", "unsupported_parameter"),
        ({"nmae": "x"}, "nmae", "unknown_parameter"),
    ],
)
async def test_fields(client: httpx.AsyncClient, fields: dict[str, Any], param: str, code: str) -> None:
    body = {**UPLOAD, "audio_sample": "data:;base64," + base64.b64encode(WAV).decode()} | fields
    answer = await client.post(PATH, json={name: value for name, value in body.items() if value is not None})
    assert refusal(answer) == (400, param, code)


async def test_parts_of_a_form(client: httpx.AsyncClient) -> None:
    text = {name: (None, value) for name, value in UPLOAD.items()}
    assert refusal(await client.post(PATH, files=text | {"audio_sample": (None, "x")}))[:2] == (400, "audio_sample")
    file = ("x.wav", WAV)
    assert refusal(await client.post(PATH, files=text | {"name": file, "audio_sample": file}))[:2] == (400, "name")
    twice = [*text.items(), ("name", (None, "Bob")), ("audio_sample", file)]
    assert refusal(await client.post(PATH, files=twice))[:2] == (400, "name")
    twice = [*text.items(), ("audio_sample", file), ("audio_sample", file)]
    assert refusal(await client.post(PATH, files=twice))[:2] == (400, "audio_sample")


async def test_large_recordings(client: httpx.AsyncClient) -> None:
    large = WAV + b"\0" * (10 << 20)
    assert refusal(await upload(client, large)) == (413, "audio_sample", "media_too_large")
    url = "data:;base64," + base64.b64encode(large).decode()
    answer = await client.post(PATH, json={**UPLOAD, "audio_sample": url})
    assert refusal(answer) == (413, "audio_sample", "media_too_large")


async def test_what_the_replicas_say_is_told(client: httpx.AsyncClient, imitating: Imitating) -> None:
    answer = await upload(client, WAV + b"noise")
    assert refusal(answer) == (400, "audio_sample", "invalid_value")
    assert "hears nobody" in answer.json()["error"]["message"]
    imitating.answers = [ReplicaLostError()]
    assert refusal(await upload(client)) == (503, None, "no_replica")
    imitating.answers = [TimeoutError()]
    assert refusal(await upload(client)) == (504, None, "timeout")
    imitating.answers = [ReplicaLostError(), b"{}"]  # one that is left is enough
    assert (await upload(client)).status_code == 200


async def test_a_model_that_does_not_speak(client: httpx.AsyncClient, imitating: Imitating) -> None:
    imitating.tasks = ["chat"]
    for answer in (await upload(client), await client.get(PATH), await client.delete(f"{PATH}/x")):
        assert refusal(answer) == (404, None, "unsupported_task")


async def test_nothing_is_begun_while_the_server_stops(client: httpx.AsyncClient, served: Served) -> None:
    served.stopping.set()
    assert refusal(await upload(client)) == (503, None, "shutting_down")


# ------------------------------------------------------------------------------------------- where they are kept


async def test_without_sqlalchemy(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.delitem(sys.modules, "app.store.voicetable", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    answer = await upload(client)
    assert refusal(answer) == (501, None, "voices_not_installed")
    assert "omni-app[voices]" in answer.json()["error"]["message"]
    assert (await client.get(PATH)).json() == {"voices": ["default", *stubspeech.VOICES], "uploaded_voices": []}
    assert await voice_sample(served.litestar, "Ada") is None


async def test_a_lost_database_is_ours(
    client: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "voices.sqlite3").write_text("not a database, but long enough to be looked at" * 100)
    answer = await client.get(PATH)
    assert refusal(answer) == (503, None, "voices_unavailable")
    assert "not a database" not in answer.text  # what is wrong with it is no business of clients
    assert "not a database" in caplog.text


async def test_no_database_is_asked_for_the_model_own_voices(served: Served, tmp_path: Path) -> None:
    for name in ("heart", "HEART", ""):
        assert await voice_sample(served.litestar, name) is None
    assert not files_in(tmp_path)


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


# ----------------------------------------------------------------------------------------------------- who may


async def test_a_key_is_needed(imitating: Imitating, tmp_path: Path) -> None:
    served = Served(imitating, tmp_path, api_keys=["secret"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://test") as client:
        for answer in (await upload(client), await client.get(PATH), await client.delete(f"{PATH}/Ada")):
            assert refusal(answer)[0] == 401
        client.headers["Authorization"] = "Bearer secret"
        assert (await upload(client)).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://test", 200), ("https://ai.example.org", 200), ("http://evil.test", 403), ("null", 403)],
)
async def test_pages_of_other_origins(imitating: Imitating, tmp_path: Path, origin: str, status: int) -> None:
    """A browser sends a form for any page without asking; it would only keep the answer from it."""
    served = Served(imitating, tmp_path, public_base_url="https://ai.example.org/omni")
    transport = httpx.ASGITransport(served.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers={"Origin": origin}) as client:
        assert (await upload(client)).status_code == status
        assert (await client.delete(f"{PATH}/Ada")).status_code == status
        assert (await client.get(PATH)).status_code == 200
