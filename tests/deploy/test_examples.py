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


def test_a_seed_holds_for_the_prompt_and_for_the_picture(servers: dict[str, Server]) -> None:
    asked: dict[str, object] = {"prompt": "a red circle", "size": "64x64", "num_inference_steps": 2}
    path = "/v1/images/generations"
    first, again = (post(servers["prompt_expansion"], path, **asked, seed=3).json()["data"][0] for _ in range(2))
    assert first == again
    assert first["revised_prompt"] != asked["prompt"]


def test_chats_of_such_a_pipeline_are_written_or_drawn(servers: dict[str, Server]) -> None:
    server = servers["prompt_expansion"]
    asked: dict[str, object] = {"messages": [{"role": "user", "content": "a red circle"}]}
    text = post(server, "/v1/chat/completions", **asked, max_tokens=5).json()
    assert "revised_prompt" not in text
    size = {"modalities": ["image"], "size": "64x64", "num_inference_steps": 2}
    drawn = post(server, "/v1/chat/completions", **asked, **size).json()
    assert drawn["revised_prompt"]
    assert drawn["choices"][0]["message"]["content"][0]["type"] == "image_url"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"guidance_scale": 50}, "guidance_scale"), ({"prompt": "x " * 3000}, "prompt"), ({"size": "63x63"}, "size")],
)
def test_who_refuses_does_not_matter(servers: dict[str, Server], fields: dict[str, object], param: str) -> None:
    """The route, the language model, the pipeline."""
    asked = {"prompt": "x", "num_inference_steps": 2, **fields}
    answer = httpx.post(f"{servers['prompt_expansion'].url}/v1/images/generations", json=asked, timeout=120)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize("name", ["llm_speech", "prompt_expansion"])
def test_the_served_name_is_that_of_the_file(name: str, servers: dict[str, Server]) -> None:
    [model] = servers[name].get("/v1/models").json()["data"]
    assert model["id"] == name
