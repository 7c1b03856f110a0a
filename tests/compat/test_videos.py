"""A whole server that makes videos: OpenAI's client gets what the stock pipeline makes, from any API worker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import diffusers
import httpx
import numpy as np
import openai
import pytest
import torch

from tests import tiny_diffusion
from tests.compat.wire import JSON, Wire
from tests.faults.matrix import listeners
from tests.servers import Server, start_server, wait_for

LOAD_S = 240
SIZE, FRAMES, STEPS = "96x64", 9, 3
ASK: dict[str, Any] = {"prompt": "a red circle", "size": SIZE}
MORE = {"num_frames": FRAMES, "num_inference_steps": STEPS, "seed": 7}
ENDLESS = {"num_frames": 81, "num_inference_steps": 200}
LAST_CHUNK = b"0\r\n\r\n"
FLAGS = ("--diffusion-streaming-output", "--no-vae-use-tiling", "--dtype", "float32")

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API is scheduled:DeprecationWarning")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_diffusion.build("wan", tmp_path_factory.mktemp("wan"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    line = ("omni-app", "serve", str(model), "--port", "{port}", "--served-model-name", "tiny", "--workers", "2")
    with start_server((*line, *FLAGS), {"OMP_NUM_THREADS": "1"}) as started:
        started.wait_ready(LOAD_S)
        wait_for(lambda: len(listeners(started)) == 2, 60, "both workers", server=started)
        yield started
        assert started.stop(60) == 0, started.output()
        started.assert_nothing_left()


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def expected(model: Path) -> np.ndarray[Any, Any]:
    """What the stock pipeline makes, (frames, height, width, 3) of bytes."""
    pipe = diffusers.WanPipeline.from_pretrained(model)
    generator = torch.Generator("cpu").manual_seed(7)
    call = {"prompt": ASK["prompt"], "width": 96, "height": 64, "num_frames": FRAMES, "num_inference_steps": STEPS}
    frames = pipe(**call, generator=generator, output_type="np").frames[0]
    return np.round(frames * 255).astype(np.uint8)


def decoded(data: bytes) -> np.ndarray[Any, Any]:
    with av.open(BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def assert_shows(data: bytes, expected: np.ndarray[Any, Any]) -> None:
    """Up to what compression takes, which of the noise of random weights is much."""
    seen = decoded(data)
    assert seen.shape == expected.shape
    assert np.abs(seen.astype(int) - expected).mean() < 12
    assert np.abs(seen.astype(int) - expected[::-1]).mean() > np.abs(seen.astype(int) - expected).mean()


def in_flight(server: Server) -> int:
    (stage,) = server.get("/v1/omni/status").json()["stages"]
    return sum(replica["in_flight"] for replica in stage["replicas"])


def test_what_the_model_can_do(client: openai.OpenAI) -> None:
    model: Any = client.models.retrieve("tiny")
    assert model.output_modalities == ["image", "video"]
    assert {"image", "video"} <= set(model.tasks)
    assert model.card["video"] == {"frames": 81, "frame_step": 4, "fps": 16.0}


def test_a_video_is_the_stock_pipelines(client: openai.OpenAI, server: Server, expected: np.ndarray[Any, Any]) -> None:
    video: Any = client.videos.create_and_poll(**ASK, extra_body=MORE, poll_interval_ms=100)
    assert (video.status, video.progress, video.size, video.seconds) == ("completed", 100, SIZE, "0.5625")
    assert (video.num_frames, video.fps, video.seed, video.error) == (FRAMES, 16, 7, None)
    assert_shows(client.videos.download_content(video.id).read(), expected)
    for _ in range(8):  # each on a connection of its own, so that both workers are asked
        assert httpx.get(f"{server.url}/v1/videos/{video.id}", timeout=30).json()["status"] == "completed"
    assert video.id in [listed.id for listed in client.videos.list()]
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(video.id)


@pytest.mark.parametrize("stream", [False, True])
def test_a_video_in_the_response(stream: bool, server: Server, expected: np.ndarray[Any, Any]) -> None:
    body = {**ASK, **MORE, "stream": stream}
    with httpx.stream("POST", f"{server.url}/v1/videos/sync", json=body, timeout=120) as answer:
        assert answer.status_code == 200
        pieces = list(answer.iter_raw())
    assert len(pieces) > 2 * stream
    assert_shows(b"".join(pieces), expected)
    if stream:
        assert len(decoded(b"".join(pieces[:-1]))) < FRAMES, "what came before the last piece was not all"


def test_a_stream_begins_before_the_video_is_decoded(server: Server) -> None:
    """Its replica is held at the first fragment: the last one is not there yet."""
    body = ASK | {"size": "128x96", "num_frames": 41, "num_inference_steps": 1, "stream": True}
    (replica,) = server.replicas
    with Wire(server, limit_s=60) as wire:
        wire.send("POST", "/v1/videos/sync", json.dumps(body).encode(), JSON)
        wire.read_until(b"moof")
        os.kill(replica, signal.SIGSTOP)
        try:
            wire.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                wire.read_until(LAST_CHUNK)
        finally:
            os.kill(replica, signal.SIGCONT)
        wire.socket.settimeout(60)
        assert wire.read_until(LAST_CHUNK).count(b"moof") > 1
    wait_for(lambda: in_flight(server) == 0, 30, "its end", server=server)


def test_seconds_are_as_near_as_the_model_can(client: openai.OpenAI) -> None:
    short = {"seconds": "1", "num_inference_steps": 1}
    video: Any = client.videos.create_and_poll(**ASK, extra_body=short, poll_interval_ms=100)
    assert (video.num_frames, video.seconds) == (17, "1.0625")


def test_what_cannot_be_made_is_refused_at_once(client: openai.OpenAI) -> None:
    for body, param in (
        ({"size": "50x50"}, "size"),
        ({"num_frames": 6}, "num_frames"),
        ({"true_cfg_scale": 2}, "true_cfg_scale"),
        ({"input_reference": "data:image/png;base64,AAAA"}, "input_reference"),
        ({"extra_params": {"nonsense": 1}}, "extra_params.nonsense"),
        ({"seconds": 600}, "seconds"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.videos.create(prompt="a red circle", extra_body=body)
        assert caught.value.param == param


def test_one_that_is_deleted_stops(client: openai.OpenAI, server: Server) -> None:
    video = client.videos.create(**ASK, extra_body=ENDLESS)
    wait_for(lambda: in_flight(server) == 1, 30, "its beginning", server=server)
    client.videos.delete(video.id)
    wait_for(lambda: in_flight(server) == 0, 30, "its end", server=server)


def test_a_client_that_leaves_stops_it(server: Server) -> None:
    with Wire(server) as wire:
        wire.send("POST", "/v1/videos/sync", json.dumps(ASK | ENDLESS).encode(), JSON)
        wait_for(lambda: in_flight(server) == 1, 30, "its beginning", server=server)
    wait_for(lambda: in_flight(server) == 0, 30, "its end", server=server)


def test_one_whose_worker_dies_has_failed(client: openai.OpenAI, server: Server) -> None:
    video = client.videos.create(**ASK, extra_body=ENDLESS)
    for pid in server.workers:
        os.kill(pid, signal.SIGKILL)

    def told() -> Any:
        try:
            found: Any = client.videos.retrieve(video.id)
        except openai.APIConnectionError:
            return None
        return found if found.status == "failed" else None

    failed = wait_for(told, 60, "its failure", server=server)
    assert "has ended" in failed.error.message
    wait_for(lambda: len(listeners(server)) == 2 and in_flight(server) == 0, 60, "both workers", server=server)


@pytest.mark.parametrize("path", ["/v1/videos", "/v1/videos/sync"])
def test_other_models_make_none(path: str, speaking_stub: Server) -> None:
    with Wire(speaking_stub) as wire:
        answer = wire.ask("POST", path, json.dumps(ASK).encode(), JSON)
    assert (answer.status, answer.error["code"]) == (404, "unsupported_task")


def test_the_server_stops_with_one_that_runs(model: Path) -> None:
    line = ("omni-app", "serve", str(model), "--port", "{port}", "--dtype", "float32", "--shutdown-timeout", "2")
    with start_server(line, {"OMP_NUM_THREADS": "1"}) as server:
        server.wait_ready(LOAD_S)
        answer = httpx.post(f"{server.url}/v1/videos", json=ASK | ENDLESS, timeout=60)
        assert answer.status_code == 200, answer.text
        wait_for(lambda: in_flight(server) == 1, 30, "its beginning", server=server)
        refused = httpx.post(f"{server.url}/v1/videos/sync", json=ASK | {"stream": True}, timeout=60)
        assert "--diffusion-streaming-output" in refused.json()["error"]["message"]
        assert server.stop(60) == 0, server.output()
        server.assert_nothing_left()
