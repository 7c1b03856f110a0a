"""A stop signal at awkward moments: while the target is imported, with requests that do not end, twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import GRANIAN, ROOT, Server, start_server, wait_for

STUB = {"OMNI_MODEL": "stub"}
IMPORTS = {
    "before": "import time\nprint('importing', flush=True)\ntime.sleep(3)\nfrom app import create_app\n",
    "after": "import time\nfrom app import create_app\nprint('importing', flush=True)\ntime.sleep(3)\n",
}


@pytest.mark.parametrize("stop", ["terminate", "press_ctrl_c", "kill"])
@pytest.mark.parametrize("moment", IMPORTS)
def test_while_workers_import_the_target(tmp_path: Path, moment: str, stop: str) -> None:
    (tmp_path / "slow.py").write_text(IMPORTS[moment])
    line = ["granian", "--interface", "asgi", "slow:create_app", "--workers", "2"]
    with start_server(line, {**STUB, "PYTHONPATH": f"{tmp_path}:{ROOT}"}, cwd=tmp_path) as server:
        wait_for(lambda: server.output().count("importing") == 2, 10, "the import")
        getattr(server, stop)()
        assert server.wait(10) == (-signal.SIGKILL if stop == "kill" else 0)
        server.assert_nothing_left()
        assert not server.masters


class Request:
    """A chat request that runs in a thread until the server ends it."""

    def __init__(self, server: Server, **fields: Any) -> None:
        self.status = 0
        self.text = ""
        self._body = {"messages": [{"role": "user", "content": "x"}], **fields}
        self._url = f"{server.url}/v1/chat/completions"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=60) as response:
                self.status = response.status_code
                for text in response.iter_text():
                    self.text += text
        except httpx.TransportError as error:
            self.text += repr(error)

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def serving(workers: int = 2, **env: str) -> Iterator[Server]:
    with start_server([*GRANIAN, "--workers", str(workers)], {**STUB, **env}) as server:
        yield server.wait_ready()


@pytest.mark.parametrize(
    "line",
    [(*GRANIAN, "--workers", "2"), (*GRANIAN, "--workers", "4", "--factory"), ("uvicorn", "app:create_app")],
    ids=["granian", "granian factory", "uvicorn"],
)
def test_endless_streams_end_in_order_when_the_time_is_over(line: tuple[str, ...]) -> None:
    with start_server(line, {**STUB, "OMNI_SHUTDOWN_TIMEOUT": "2"}) as server:
        server.wait_ready()
        streams = [Request(server, stream=True, stub={"tokens": 100000, "token_s": 0.05}) for _ in range(4)]
        wait_for(lambda: all("data:" in stream.text for stream in streams), 10, "the streams")
        began = time.monotonic()
        assert server.stop() in (0, -signal.SIGTERM)
        assert 1.5 < time.monotonic() - began < 6
        for stream in streams:
            stream.join()
            assert '"error"' in stream.text
            assert stream.text.endswith("data: [DONE]\n\n")
        server.assert_nothing_left()


def test_requests_that_do_not_end_have_the_shutdown_timeout() -> None:
    with serving(OMNI_SHUTDOWN_TIMEOUT="2") as server:
        request = Request(server, stub={"hang_after": 1})
        time.sleep(1)
        began = time.monotonic()
        assert server.stop() == 0
        assert 1.5 < time.monotonic() - began < 8
        request.join()
        assert request.status == 503, request.text
        assert '"error"' in request.text
        server.assert_nothing_left()


@pytest.mark.parametrize("stream", [True, False])
def test_requests_that_end_in_time_are_answered(stream: bool) -> None:
    with serving() as server:
        request = Request(server, stream=stream, stub={"tokens": 4, "token_s": 0.5})
        time.sleep(1)
        assert server.stop() == 0
        request.join()
        assert request.status == 200, request.text
        assert '"finish_reason":"stop"' in request.text
        server.assert_nothing_left()


SERVE = ("omni-app", "serve", "stub", "--port", "{port}", "--workers", "2")


@pytest.mark.parametrize(
    ("line", "stop"),
    [((*GRANIAN, "--workers", "2"), "press_ctrl_c"), (SERVE, "press_ctrl_c"), (SERVE, "terminate")],
    ids=["granian, Ctrl-C", "serve, Ctrl-C", "serve, SIGTERM"],
)
def test_the_second_signal_ends_it_at_once(line: tuple[str, ...], stop: str) -> None:
    with start_server(line, STUB) as server:
        server.wait_ready()
        requests = [Request(server, stream=stream, stub={"hang_after": 1}) for stream in (True, False)]
        time.sleep(1)
        getattr(server, stop)()
        with pytest.raises(AssertionError, match="still running"):
            server.wait(2)
        getattr(server, stop)()
        server.wait(3)
        for request in requests:
            request.join()
            assert "shutting_down" in request.text
        server.assert_nothing_left()


def test_a_stopped_worker_does_not_hold_up_the_second_signal() -> None:
    with start_server(SERVE) as server:
        server.wait_ready()
        os.kill(server.workers[0], signal.SIGSTOP)
        server.terminate()
        time.sleep(0.5)
        server.terminate()
        server.wait(5)
        server.assert_nothing_left()


def test_sigterm_to_one_worker_ends_the_server() -> None:
    with serving() as server:
        os.kill(server.workers[0], signal.SIGTERM)
        assert server.wait(10) == 1
        server.assert_nothing_left()
