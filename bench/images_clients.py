"""Who asks for pictures in bench.images: the loop's process, HTTP clients, clients that leave, a prober."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from bench.images_loop import Picture
from bench.server import BenchError, Server
from bench.variants import PICTURE_PATH, ROOT
from bench.worker import Worker

_LIMIT_S = 120.0


class Loop(Worker):
    """The plain pipeline in a process of its own, for the time of a `with` block."""

    def __init__(self, model: Path) -> None:
        super().__init__("bench.images_loop", str(model), hello="ready")

    def draw(self, picture: Picture) -> float:
        """Seconds that the pipeline's call took."""
        return float(self.ask(asdict(picture)))

    def encoding_s(self, side: int) -> float:
        """Seconds to encode a noisy square picture as PNG."""
        return float(self.ask({"encode": side}))

    def sequence(self, pictures: Sequence[Picture]) -> float:
        """Seconds for all of them, one after the other."""
        return sum(self.draw(picture) for picture in pictures)


def ask(server: Server, picture: Picture) -> float:
    """Seconds from the request to the last byte of the answer.

    Raises:
        BenchError: the answer is no picture.
    """
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_LIMIT_S)
    try:
        connection.connect()
        begin = time.perf_counter()
        connection.request("POST", PICTURE_PATH, _body(picture), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - begin
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"{server.variant.name}: {error!r}") from error
    finally:
        connection.close()
    if answer.status != 200 or not json.loads(body)["data"][0]["b64_json"]:
        raise BenchError(f"{server.variant.name} answers {answer.status}: {body[:500]!r}")
    return seconds


def at_once(server: Server, pictures: Sequence[Picture]) -> float:
    """Seconds until all of them are there, when they are asked for at the same time."""
    gate = threading.Barrier(len(pictures) + 1)

    def one(picture: Picture) -> None:
        gate.wait()
        ask(server, picture)

    with ThreadPoolExecutor(len(pictures)) as threads:
        answers = [threads.submit(one, picture) for picture in pictures]
        gate.wait()
        begin = time.perf_counter()
        for answer in answers:
            answer.result()
        return time.perf_counter() - begin


def leave(server: Server, picture: Picture, after_s: float) -> None:
    """Ask for a picture and close the connection before it is there.

    Raises:
        BenchError: it was there sooner.
    """
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=after_s)
    connection.request("POST", PICTURE_PATH, _body(picture), {"Content-Type": "application/json"})
    try:
        connection.getresponse()
    except TimeoutError:
        return
    finally:
        connection.close()
    raise BenchError(f"{server.variant.name} had finished before the client could leave")


def health_during(server: Server, load: Callable[[], object], seconds: float, period_s: float = 0.02) -> list[float]:
    """Seconds that /health took while `load` was called again and again; the prober is a process of its own.

    Raises:
        BenchError: a probe failed.
    """
    command = [sys.executable, "-m", "bench.prober", str(server.port), str(seconds), str(period_s)]
    prober = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    while prober.poll() is None:
        load()
    seen = json.loads(prober.communicate()[0])
    if seen["failures"]:
        raise BenchError(f"{server.variant.name}: /health: {seen['failures'][:3]}")
    times: list[float] = seen["times_s"]
    return times


def _body(picture: Picture) -> str:
    return json.dumps(
        {
            "model": "tiny",
            "prompt": picture.prompt,
            "num_inference_steps": picture.steps,
            "size": f"{picture.side}x{picture.side}",
            "seed": picture.seed,
        }
    )
