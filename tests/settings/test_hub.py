"""The real look-up against a hub that runs here, and against none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.settings.hub import Hub
from app.settings.resolve import ConfigError, examine, resolve

CARDS: dict[str, Any] = {
    "org/text": {"config": {"model_type": "llama"}, "siblings": [{"rfilename": "config.json"}], "likes": 3},
    "org/omni": {"config": {"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}},
    "org/thinking": {"config": {"model_type": "qwen3_omni_moe"}},
    "org/pictures": {"config": {"diffusers": {"_class_name": "FluxPipeline"}}},
    "org/video": {"config": {"diffusers": {"_class_name": "WanPipeline"}}},
    "org/painter": {"config": {"diffusers": {"_class_name": "GlmImagePipeline"}}},
    "org/voice": {"config": {"model_type": "vits"}},
    "org/talker": {"config": {"model_type": "qwen3_tts"}},
    "org/modular": {"siblings": [{"rfilename": "modular_model_index.json"}]},
    "org/weights": {"siblings": [{"rfilename": "flux1-dev.safetensors"}]},
    "org/gguf": {"siblings": [{"rfilename": "a.gguf"}]},
    "org/empty": {"siblings": [{"rfilename": "README.md"}]},
}


CONFIGS: dict[str, Any] = {
    "org/omni": {"model_type": "qwen3_omni_moe", "talker_config": {}},
    "org/thinking": {"model_type": "qwen3_omni_moe", "enable_audio_output": False},
}


class Requests(list[tuple[str, str | None]]):
    """What was asked: path and Authorization."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[dict[str, str], Requests]]:
    """The environment that leads to a hub of ours, and the requests that it got."""
    asked = Requests()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            if self.path.startswith("/api/"):
                card = CARDS.get("/".join(self.path.split("/")[3:5]))
            else:
                card = CONFIGS.get(self.path.removesuffix("/resolve/main/config.json").removeprefix("/"))
            self.send_response(200 if card else 500 if "broken" in self.path else 404)
            self.end_headers()
            self.wfile.write(json.dumps(card or {}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}/", "HF_HOME": str(tmp_path)}, asked
        server.shutdown()
        thread.join()


def test_one_request_tells_what_a_model_is(hub: tuple[dict[str, str], Requests]) -> None:
    environ, asked = hub
    settings = examine({"model": "org/text", "revision": "v2"}, {**environ, "HF_TOKEN": "t"}, ask_hub=True).settings
    assert settings.pipeline == "llm"
    assert asked == [("/api/models/org/text/revision/v2", "Bearer t")]


@pytest.mark.parametrize(
    ("model", "pipeline", "output"),
    [
        ("org/pictures", "diffusion", "image"),
        ("org/video", "wan", "video"),
        ("org/modular", "diffusion", "image"),
        ("org/painter", "glm_image", "image"),
        ("org/voice", "speech", "audio"),
    ],
)
def test_a_model_of_another_kind_is_known_by_the_hubs_word(
    model: str, pipeline: str, output: str, hub: tuple[dict[str, str], Requests]
) -> None:
    settings = examine({"model": model}, hub[0], ask_hub=True).settings
    assert (settings.pipeline, settings.stages[0].outputs) == (pipeline, [output])


def test_whether_an_omni_model_talks_is_asked_for(hub: tuple[dict[str, str], Requests]) -> None:
    environ, asked = hub
    assert examine({"model": "org/omni"}, environ, ask_hub=True).settings.pipeline == "qwen3_omni_moe"
    assert [path for path, _ in asked] == ["/api/models/org/omni/revision/main", "/org/omni/resolve/main/config.json"]
    resolution = examine({"model": "org/thinking"}, environ, ask_hub=True)
    assert resolution.settings.pipeline == "llm"
    assert resolution.warnings[0].startswith("org/thinking: it answers in text only: enable_audio_output is false in")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("org/talker", "org/talker is a model of type qwen3_tts: the pipeline qwen3_tts cannot run: neither vLLM 0.32"),
        ("org/gguf", "the model org/gguf cannot be served: it has only GGUF files"),
        (
            "org/weights",
            "it has neither config.json nor model_index.json, only weights; download the file and give its",
        ),
        ("org/empty", "it has neither config.json nor model_index.json"),
        ("org/nothing", "the model org/nothing cannot be served: http://.* has no such model or revision, or HF_TOKEN"),
    ],
)
def test_what_cannot_be_served_is_told_before_any_download(
    model: str, message: str, hub: tuple[dict[str, str], Requests]
) -> None:
    with pytest.raises(ConfigError, match=message):
        examine({"model": model}, hub[0], ask_hub=True)


def test_every_stage_is_asked_about_in_its_own_revision(hub: tuple[dict[str, str], Requests], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "pipeline: custom\nstages:\n"
        "- {stage_id: 0, name: text, kind: llm, model: org/text, revision: v3}\n"
        "- {stage_id: 1, name: voice, kind: speech, model: org/voice, sources: [text]}\n"
    )
    examine({"deploy_config": str(file)}, hub[0], ask_hub=True)
    assert [path for path, _ in hub[1]] == ["/api/models/org/text/revision/v3", "/api/models/org/voice/revision/main"]
    file.write_text(file.read_text().replace("kind: speech", "kind: diffusion, prompt_template: '{prompt}'"))
    with pytest.raises(ConfigError, match="of kind diffusion, but org/voice is a model of type vits"):
        examine({"deploy_config": str(file)}, hub[0], ask_hub=True)


def test_nobody_is_asked_without_need(hub: tuple[dict[str, str], Requests], model: str) -> None:
    environ, asked = hub
    examine({"model": "org/text"}, environ)
    examine({"model": model}, environ, ask_hub=True)
    examine({"model": "org/omni", "deploy_config": "llm.yaml"}, environ, ask_hub=True)
    assert asked == []


def test_a_hub_that_does_not_answer_is_a_warning(hub: tuple[dict[str, str], Requests], tmp_path: Path) -> None:
    for environ in (hub[0], {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}):
        resolution = examine({"model": "org/broken"}, environ, ask_hub=True)
        assert resolution.settings.pipeline == "llm"
        [warning] = resolution.warnings
        assert warning.startswith("the hub cannot be asked about org/broken (")
        assert warning.endswith("it is taken for a language model")
        named = examine({"model": "org/broken", "model_class_name": "WanPipeline"}, environ, ask_hub=True).settings
        assert named.pipeline == "wan"


def test_the_workers_of_a_bare_server_ask_too(hub: tuple[dict[str, str], Requests]) -> None:
    settings = resolve({}, {**hub[0], "OMNI_MODEL": "org/video"})
    assert (settings.pipeline, len(hub[1])) == ("wan", 1)


def test_the_cache_is_looked_at_first_and_offline_is_respected(
    hub: tuple[dict[str, str], Requests], tmp_path: Path
) -> None:
    environ, asked = {**hub[0], "HF_HUB_OFFLINE": "1"}, hub[1]
    snapshot = tmp_path / "hub" / "models--org--text" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    (tmp_path / "hub" / "models--org--text" / "refs").mkdir()
    (tmp_path / "hub" / "models--org--text" / "refs" / "main").write_text("abc")
    warnings: list[str] = []
    found = Hub(environ, warnings).look_up("org/text")
    assert found is not None
    assert found.pipeline.name == "wan"
    assert Hub(environ, warnings).look_up("org/else") is None
    assert warnings == ["org/else is not in the hub's cache, and HF_HUB_OFFLINE forbids to ask for it"]
    assert asked == []
