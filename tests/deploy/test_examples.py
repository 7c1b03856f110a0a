"""The deploy files that ship as examples, with tiny models in place of large ones."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from PIL import Image

from tests import tiny_diffusion, tiny_speech
from tests.servers import Server, start_server
from tests.tiny import tiny_qwen3

LOAD_S = 300
SMALL = {"max_model_len": 1024, "kv_cache_memory_bytes": 1 << 26, "devices": "cpu", "enforce_eager": True}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Both at the same time: most of their start is imports."""
    directory = tmp_path_factory.mktemp("examples")
    voice = tiny_speech.build("vits", directory / "voice")
    painter = tiny_diffusion.build("sd", directory / "painter")
    text = {"stage_id": 0, "model": str(tiny_qwen3()), **SMALL}
    changed = {
        "llm_speech": [text, {"stage_id": 1, "model": str(voice)}],
        "prompt_expansion": [text, {"stage_id": 1, "model": str(painter), "devices": "cpu"}],
    }
    with ExitStack() as stack:
        started = {}
        for name, stages in changed.items():
            file = directory / f"{name}.yaml"
            # devices stand again in a section that is stronger than a stage's
            platforms = {"cpu": {"stages": [text]}}
            file.write_text(json.dumps({"base_config": f"{name}.yaml", "stages": stages, "platforms": platforms}))
            line = ("omni-app", "serve", "--deploy-config", str(file), "--port", "{port}")
            started[name] = stack.enter_context(start_server(line, {"OMP_NUM_THREADS": "1"}))
        for server in started.values():
            server.wait_ready(LOAD_S)
        yield started
        for server in started.values():
            assert server.stop(60) == 0, server.output()
            server.assert_nothing_left()


def post(server: Server, path: str, **body: object) -> httpx.Response:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


def test_any_language_model_speaks_with_any_voice(servers: dict[str, Server]) -> None:
    server = servers["llm_speech"]
    sound = post(server, "/v1/audio/speech", input="Good morning.", response_format="wav").content
    assert sound.startswith(b"RIFF")
    chat = post(
        server,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Say something."}],
        max_tokens=8,
        modalities=["text", "audio"],
        audio={"voice": "default", "format": "wav"},
    ).json()
    message = chat["choices"][0]["message"]
    assert message["audio"]["transcript"] == message["content"]
    assert base64.b64decode(message["audio"]["data"]).startswith(b"RIFF")


def test_a_language_model_writes_the_prompts_of_pictures(servers: dict[str, Server]) -> None:
    server = servers["prompt_expansion"]
    answer = post(
        server, "/v1/images/generations", prompt="a red circle", size="64x64", num_inference_steps=2, seed=1
    ).json()
    [picture] = answer["data"]
    assert Image.open(io.BytesIO(base64.b64decode(picture["b64_json"]))).size == (64, 64)
    assert picture["revised_prompt"]


@pytest.mark.parametrize("name", ["llm_speech", "prompt_expansion"])
def test_the_served_name_is_that_of_the_file(name: str, servers: dict[str, Server]) -> None:
    [model] = servers[name].get("/v1/models").json()["data"]
    assert model["id"] == name
