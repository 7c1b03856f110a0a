"""What users report of starts and stops, of whole servers. Numbers are those of the report that a test plays.

The rest of them: tests/faults/ (signals at every moment, the kill matrix).
"""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.compat.wire import CHAT, JSON, Wire, head, metric
from tests.servers import Server, start_server, wait_for
from tests.tiny import tiny_qwen3

SERVE = ("omni-app", "serve", "stub", "--port", "{port}")
NOISE = ("Traceback", "resource_tracker", "leaked", "never awaited", "was destroyed but", "unraisable")


def noise(server: Server) -> list[str]:
    return [line for line in server.output().splitlines() if any(word in line for word in NOISE)]


# ------------------------------------------------------------------------------------------------ start (38, 39)


def test_038_a_stage_that_is_never_ready_ends_the_start() -> None:
    """38, 39: it is named, nothing is left, and the port is free again."""
    overrides = json.dumps({"0": {"engine_args": {"load_s": 600}}})
    env = {"OMNI_STAGE_OVERRIDES": overrides, "OMNI_STAGE_INIT_TIMEOUT": "2"}
    with start_server(SERVE, env) as server:
        assert server.wait(30) != 0
        assert "stage 0 (stub/0" in server.output()
        assert "--stage-init-timeout 2 s" in server.output()
        server.assert_nothing_left()
        with start_server(SERVE, port=server.port) as next_one:
            next_one.wait_ready(30)


# ------------------------------------------------------------------------------------------- stop (33, 47, 50, 156)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_047_kept_connections_do_not_hold_up_the_end(busy: bool) -> None:
    """A client keeps one connection and goes on asking; with and without another one that is still being answered."""
    with start_server(SERVE, {"OMNI_SHUTDOWN_TIMEOUT": "20"}) as server:
        server.wait_ready()
        with Wire(server) as kept, Wire(server) as other:
            if busy:
                other.chat(stub={"tokens": 10, "token_s": 0.3})
                wait_for(lambda: metric(server, "omni_requests_running") == 1, 10, "the request to run")
            assert kept.ask("GET", "/health").status == 200
            server.terminate()
            asked_on(kept)
            if busy:
                assert_takes_nothing_new(server)
                answer = other.answer()
                assert answer.status == 200
                assert b'"finish_reason":"stop"' in answer.body
            assert server.wait(15) == 0
        server.assert_nothing_left()
        assert not noise(server)


def asked_on(kept: Wire) -> None:
    """Ask until the server closes the connection, after an answer that says so or between two."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            answer = kept.ask("GET", "/health")
        except (OSError, AssertionError):
            return
        if answer.headers.get("connection") == "close":
            return
        assert answer.status in (200, 503)
        time.sleep(0.1)
    raise AssertionError("the connection is still kept")


def assert_takes_nothing_new(server: Server) -> None:
    try:
        answer = httpx.post(server.url + CHAT, json={"messages": []}, timeout=10)
    except httpx.TransportError:
        return
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert answer.headers["connection"] == "close"


def test_033_an_upload_that_stops_does_not_hold_up_the_end() -> None:
    """33, 150: a plain Granian waits for it without a limit, and `serve` until the worker is killed."""
    with start_server(env={"OMNI_MODEL": "stub", "OMNI_SHUTDOWN_TIMEOUT": "1"}) as server:
        server.wait_ready()
        with Wire(server) as wire:
            wire.socket.sendall(head("POST", CHAT, {**JSON, "Content-Length": "1000"}) + b"{")
            wait_for(lambda: server.answers("/livez"), 5, "an answer")
            server.terminate()
            answer = wire.answer()
            assert (answer.status, answer.error["code"]) == (503, "shutting_down")
            assert server.wait(10) == 0
        server.assert_nothing_left()


def test_156_a_worker_that_does_not_react_is_killed() -> None:
    """One signal is enough."""
    with start_server(SERVE, {"OMNI_SHUTDOWN_TIMEOUT": "0.5"}) as server:
        server.wait_ready()
        os.kill(server.workers[0], signal.SIGSTOP)
        server.terminate()
        server.wait(40)
        server.assert_nothing_left()


# --------------------------------------------------------------------------------------- several API processes (136)


def test_136_four_api_processes_answer_400_at_once_and_one_may_die() -> None:
    with start_server((*SERVE, "--workers", "4")) as server:
        server.wait_ready()
        started = "omni_requests_ended_total"
        limits = httpx.Limits(max_connections=400)
        with httpx.Client(base_url=server.url, timeout=60, limits=limits) as client, ThreadPoolExecutor(40) as pool:
            assert all(pool.map(lambda number: is_answered(client, number), range(400)))
        assert metric(server, started, reason="done") == 400
        os.kill(victim := server.workers[0], signal.SIGKILL)
        wait_for(lambda: victim not in server.workers and len(server.workers) == 4, 20, "the new worker")
        with httpx.Client(base_url=server.url, timeout=60) as client:
            assert all(is_answered(client, number) for number in range(8))
        assert metric(server, started, reason="done") == 408
        assert server.stop() == 0
        server.assert_nothing_left()


def is_answered(client: httpx.Client, number: int) -> bool:
    """Whether the answer is that to this request and no other's; streams, whole answers, both APIs in turn."""
    text = f"{number} is{' very' * (number % 7)} much"
    if number % 2:
        answer = client.post("/v1/completions", json={"prompt": text, "stream": bool(number % 4 == 1)})
    else:
        messages = [{"role": "user", "content": text}]
        answer = client.post(CHAT, json={"messages": messages, "stream": bool(number % 4 == 2)})
    said = "".join(piece_of(choice) for event in events_of(answer) for choice in event["choices"])
    return answer.status_code == 200 and said == text + " "


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return [answer.json()]
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def piece_of(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""


# --------------------------------------------------------------------------------------- with the real engine (37, 50)


def test_037_ctrl_c_ends_a_server_with_vllm_without_orphans_or_noise(tmp_path: Path) -> None:
    """37, 50: after whole answers, streams and clients that left. 79: what a request sets leaves the defaults alone."""
    stage: dict[str, Any] = {"stage_id": 0, "devices": "cpu", "engine_args": {"dtype": "float32", "max_model_len": 512}}
    stage["default_sampling_params"] = {"max_tokens": 12}
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(json.dumps({"pipeline": "llm", "stages": [stage]}))
    line = ("omni-app", "serve", str(tiny_qwen3()), "--port", "{port}", "--deploy-config", str(deploy))
    with start_server(line) as server:
        server.wait_ready(240)
        for number in range(10):
            with Wire(server, limit_s=60) as wire:
                wire.chat(stream=number % 2 == 0, **({"seed": 1} if number % 3 else {"max_tokens": 500}))
                if number % 3:
                    body = wire.answer().body
                    assert number % 2 == 0 or json.loads(body)["usage"]["completion_tokens"] <= 12
        server.press_ctrl_c()
        assert server.wait(40) == 0
        server.assert_nothing_left()
        assert not noise(server)
