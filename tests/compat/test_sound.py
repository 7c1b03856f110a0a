"""A tiny Stable Audio behind real workers: the commands of docs/sound.md, and what is refused."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import httpx
import pytest

from tests import tiny_diffusion
from tests.servers import ROOT, Server, start_server

COMMANDS = re.findall(r"^curl (?:.*\\\n)*.*", (ROOT / "docs" / "sound.md").read_text(), re.MULTILINE)
GENERATE = "/v1/audio/generate"
BODY = {"input": "rain", "audio_length": 0.5, "num_inference_steps": 2, "seed": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = tiny_diffusion.build("stableaudio", tmp_path_factory.mktemp("tiny") / "stableaudio")
    line = ("omni-app", "serve", str(model), "--port", "{port}", "--workers", "2", "--dtype", "float32")
    with start_server((*line, "--served-model-name", "tiny")) as server:
        yield server.wait_ready(180)


def ask(server: Server, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + GENERATE, json=BODY | fields, timeout=60)


def length(file: bytes) -> tuple[float, int]:
    """Seconds and channels of a file."""
    with av.open(BytesIO(file)) as sound:
        frames = list(sound.decode(audio=0))
    return sum(frame.samples for frame in frames) / frames[0].sample_rate, frames[0].layout.nb_channels


def test_the_model_tells_what_it_does(server: Server) -> None:
    (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert (model["tasks"], model["output_modalities"]) == (["sound"], ["audio"])
    assert (model["card"]["sample_rate"], model["card"]["max_seconds"]) == (16_000, 2.048)


@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "opus", "aac"])
def test_every_format(server: Server, format: str) -> None:
    answer = ask(server, response_format=format)
    assert answer.status_code == 200, answer.text
    seconds, channels = length(answer.content)
    assert channels == 2
    assert abs(seconds - 0.5) < (0.13 if format == "aac" else 0.001)


def test_a_seed_gives_one_sound(server: Server) -> None:
    first, again, other = ask(server), ask(server), ask(server, seed=2)
    assert first.content == again.content
    assert first.content != other.content
    assert len(ask(server, sample_rate=8000).content) == 44 + 4000 * 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio_length": 2.1}, "audio_length"),
        ({"audio_start": 1.9}, "audio_length"),
        ({"guidance_scale": 1, "negative_prompt": "thunder"}, "negative_prompt"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"extra_params": {"strength": 1}}, "extra_params.strength"),
        ({"response_format": "mp3", "sample_rate": 96_000}, "sample_rate"),
        ({"input": ""}, "input"),
        ({"seed": -1}, "seed"),
    ],
)
def test_refusals(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = ask(server, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/images/generations", {"prompt": "x"}), ("/v1/audio/speech", {"input": "x", "voice": "v"})]
)
def test_it_neither_draws_nor_speaks(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = httpx.post(server.url + path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_task"), answer.text


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page(server: Server, tmp_path: Path, line: str) -> None:
    line = line.replace("http://127.0.0.1:8091", server.url).replace("curl ", "curl --fail -s ")
    subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    (file,) = tmp_path.iterdir()
    assert length(file.read_bytes())[0] >= 1.5


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 2
