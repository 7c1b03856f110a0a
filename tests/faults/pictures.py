"""Clients of a server that draws: some whose picture is known, some that leave, some that ask for what cannot be."""

from __future__ import annotations

import base64
import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.servers import Server, wait_for

PATH = "/v1/images/generations"
SMALL: dict[str, Any] = {"prompt": "a red circle", "size": "64x64", "num_inference_steps": 4, "guidance_scale": 5}
SEEDS = range(20)
SETTLE_S = 20.0

BAD: tuple[tuple[int, dict[str, Any]], ...] = (
    (400, {"size": "100000x8"}),
    (400, {"n": 99}),
    (400, {"num_inference_steps": 0}),
    (400, {"prompt": ""}),
    (400, {"true_cfg_scale": 3}),
    (400, {"extra_params": {"nonsense": 1}}),
    (404, {"lora": {"name": "nobody"}}),
    (404, {"model": "another"}),
)
"""What is refused, some of it by the API worker and some by the engine, with the status."""


def line(model: Path, *flags: str, workers: int = 2) -> tuple[str, ...]:
    """The command that serves it."""
    return (
        "omni-app",
        "serve",
        str(model),
        "--port",
        "{port}",
        "--workers",
        str(workers),
        "--dtype",
        "float32",
        *flags,
    )


def draw(server: Server, **fields: Any) -> httpx.Response:
    """One picture request on a connection of its own."""
    return httpx.post(server.url + PATH, json=SMALL | fields, timeout=60)


def picture(answer: httpx.Response) -> bytes:
    """The file in an answer."""
    assert answer.status_code == 200, answer.text
    return base64.b64decode(answer.json()["data"][0]["b64_json"])


def album(server: Server) -> dict[int, bytes]:
    """The pictures of all SEEDS, asked for one after the other."""
    return {seed: picture(draw(server, seed=seed)) for seed in SEEDS}


def leave_at_random(server: Server, rounds: int) -> None:
    """So many clients ask, four at a time, and go away somewhere between their request and their answer."""
    chance = random.Random(rounds)
    plans = [(chance.random() < 0.5, chance.randint(1, 40), chance.expovariate(8)) for _ in range(rounds)]
    with ThreadPoolExecutor(4) as threads:
        for gone in [threads.submit(_leave, server, *plan) for plan in plans]:
            gone.result()
    wait_for(lambda: load(server) == 0, SETTLE_S, "the work of clients that left to end", server=server)


def _leave(server: Server, streamed: bool, steps: int, after_s: float) -> None:
    fields: dict[str, Any] = {"num_inference_steps": steps, "stream": streamed}
    body = json.dumps(SMALL | fields | ({"partial_images": 2} if streamed else {})).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        time.sleep(after_s)


def load(server: Server) -> int:
    """Requests in the engines, as their last heartbeat said."""
    count: int = server.get("/load").json()["server_load"]
    return count


def ask_for_what_cannot_be(server: Server) -> list[tuple[int, dict[str, Any]]]:
    """All of BAD at once: what was answered."""
    with ThreadPoolExecutor(len(BAD)) as threads:
        answers = list(threads.map(lambda bad: draw(server, **bad[1]), BAD))
    return [(answer.status_code, answer.json().get("error", {})) for answer in answers]
