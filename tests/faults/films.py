"""The replica that makes a video is killed in the middle of it."""

from __future__ import annotations

import os
import signal
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import httpx

from tests.servers import Server, start_server, wait_for

PATH = "/v1/videos"
LONG: dict[str, Any] = {"prompt": "a boat", "num_frames": 17, "size": "64x64", "num_inference_steps": 60, "seed": 7}
MADE_S = 120.0


def killed_amid(model: Path, times: int) -> None:
    """On a server of its own: each video is made once more, to the end, and is the one that it would have been."""
    line = ("omni-app", "serve", str(model), "--port", "{port}", "--workers", "2", "--dtype", "float32")
    with start_server(line, {"OMP_NUM_THREADS": "1"}) as server:
        server.wait_ready(MADE_S)
        expected = _frames(_made(server, _begun(server)))
        for _ in range(times):
            video_id = _begun(server)
            wait_for(lambda: _status(server, video_id) == "in_progress", MADE_S, "its beginning", server=server)  # noqa: B023
            os.kill(server.replicas[0], signal.SIGKILL)
            assert _frames(_made(server, video_id)) == expected
        assert server.stop() == 0
        server.assert_nothing_left()


def _begun(server: Server) -> str:
    answer = httpx.post(server.url + PATH, json=LONG, timeout=60)
    assert answer.status_code == 200, answer.text
    video_id: str = answer.json()["id"]
    return video_id


def _status(server: Server, video_id: str) -> str:
    video = server.get(f"{PATH}/{video_id}").json()
    assert video["status"] != "failed", video
    status: str = video["status"]
    return status


def _made(server: Server, video_id: str) -> bytes:
    wait_for(lambda: _status(server, video_id) == "completed", MADE_S, "the video", 0.2, server=server)
    return server.get(f"{PATH}/{video_id}/content").content


def _frames(data: bytes) -> list[bytes]:
    with av.open(BytesIO(data)) as container:
        return [frame.to_ndarray().tobytes() for frame in container.decode(video=0)]
