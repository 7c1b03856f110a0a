"""A rank of a picture stage is killed in the middle of a picture."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import httpx

from tests.faults import pictures
from tests.servers import Server, start_server, wait_for

TOLD_S = 5.0
"""By then a client knows that its picture fails."""
RETURN_S = 90.0


def killed_amid(model: Path, times: int) -> None:
    """On a server with two ranks: the client is told in time, the ranks are back, and the next picture is right."""
    line = pictures.line(model, "--cfg-parallel-size", "2", workers=1)
    with start_server(line, {"OMP_NUM_THREADS": "1"}) as server:
        server.wait_ready(RETURN_S)
        before = pictures.picture(pictures.draw(server, seed=7))
        for _ in range(times):
            assert _seconds_to_the_error(server) < TOLD_S
            wait_for(lambda: _draws(server, before), RETURN_S, "the picture of before", 0.5, server=server)
        assert server.stop() == 0
        server.assert_nothing_left()


def _seconds_to_the_error(server: Server) -> float:
    body = pictures.SMALL | {"num_inference_steps": 200, "stream": True, "partial_images": 3}
    with httpx.stream("POST", server.url + pictures.PATH, json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if "partial_image" in line)
        (rank,) = server.running("app.engines.diffusion.ranks.member")
        os.kill(rank, signal.SIGKILL)
        killed = time.monotonic()
        *_, last = (line for line in lines if line.startswith("data: "))
    told = json.loads(last.removeprefix("data: "))
    assert told["error"]["code"] == "replica_lost", told
    return time.monotonic() - killed


def _draws(server: Server, expected: bytes) -> bool:
    answer = pictures.draw(server, seed=7)
    return answer.status_code == 200 and pictures.picture(answer) == expected
