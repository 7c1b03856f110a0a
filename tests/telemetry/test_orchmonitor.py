"""What --enable-orch-monitor and --enable-ar-profiler tell of a server that works."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from app.pipeline.orchestrator import Orchestrator
from app.telemetry import orchmonitor
from app.telemetry.orchmonitor import ReplicaWindow, Window, keep_monitoring
from tests.servers import start_server, wait_for
from tests.tiny import tiny_qwen3


def windows(path: Path) -> list[Window]:
    return [msgspec.json.decode(line, type=Window) for line in path.read_bytes().splitlines()]


def test_a_server_tells_of_its_requests_and_its_orchestrator(tmp_path: Path) -> None:
    flags = ("--enable-orch-monitor", "--enable-ar-profiler", "--log-stats")
    small = ("--max-model-len", "256", "--kv-cache-memory-bytes", "64MiB")
    line = ("omni-app", "serve", str(tiny_qwen3()), "--served-model-name", "tiny", "--port", "{port}", *small, *flags)
    with start_server(line, {"OMP_NUM_THREADS": "1"}, cwd=tmp_path) as server:
        server.wait_ready(120)
        client = openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=60)
        body = {"ignore_eos": True}
        usage: Any = client.completions.create(model="tiny", prompt="one two", max_tokens=7, extra_body=body).usage
        told = r"request (\S+) took queue [\d.]+ ms, prefill [\d.]+ ms, decode [\d.]+ ms, total [\d.]+ ms: "
        wait_for(lambda: re.search(told, server.output()), 10, "a line of the request", server=server)
        assert f"{usage.prompt_tokens} tokens of prompt, of which 0 were cached, and 7 made" in server.output()
        name = "omni-orchestrator-*.jsonl"
        (file,) = wait_for(lambda: list(tmp_path.glob(name)), 10, "the first window", server=server)
        wait_for(lambda: len(windows(file)) >= 2, 10, "two windows", server=server)
        for window in windows(file):
            assert 0 <= window.busy < 16
            assert window.lag_s >= 0
            assert window.seconds == pytest.approx(1 + window.lag_s)
        assert windows(file)[-1].replicas == [ReplicaWindow(0, 0, 0, 0)]
        assert server.stop(60) == 0, server.output()


async def test_a_file_that_cannot_be_written_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(orchmonitor, "WINDOW_S", 0.01)

    class Idle:
        def in_flight(self) -> list[Any]:
            return []

    idle: Any = Idle()
    assert hasattr(Orchestrator, "in_flight")
    with caplog.at_level(logging.WARNING, "app.server"):
        await asyncio.wait_for(keep_monitoring(lambda: idle, tmp_path), 10)  # a directory
    assert "cannot be written (Is a directory)" in caplog.text
