"""What users report of servers under load: clients that leave, wait, crowd in or do not read.

Numbers are those of the report that a test plays. A replica here runs 4 requests at a time and lets 16 wait.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.compat.wire import CHAT, JSON, Answer, ImpatientProxy, Wire, head, metric
from tests.servers import Server, start_server, wait_for

SLOTS, QUEUE = 4, 16
MB = 1 << 20
SLOW = {"tokens": 100_000, "token_s": 0.01}
DONE = b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server with the stub for all tests of this file."""
    overrides = {"0": {"max_queue": QUEUE, "engine_args": {"slots": SLOTS}}}
    env = {"OMNI_MODEL": "stub", "OMNI_SSE_KEEP_ALIVE": "0.2", "OMNI_STAGE_OVERRIDES": json.dumps(overrides)}
    with start_server(env=env) as server:
        yield server.wait_ready(60)


@pytest.fixture(autouse=True)
def _ends_idle(server: Server) -> Iterator[None]:
    """Every test leaves a server that has nothing to do and lost no replica."""
    replicas = server.replicas
    yield
    wait_idle(server)
    assert server.replicas == replicas


def wait_idle(server: Server) -> None:
    def busy() -> float:
        return metric(server, "omni_requests_running") + metric(server, "omni_requests_waiting")

    wait_for(lambda: busy() == 0, 20, f"the end of all requests\n{server.output()}")


def steps(server: Server) -> float:
    """Tokens that the engine has made, asked of the replica itself."""
    return metric(server, "stub:steps_total")


def crowd(server: Server, count: int, ask: Callable[[Wire], Answer]) -> list[Answer]:
    """What `count` clients are answered that ask at once."""

    def one(_: int) -> Answer:
        with Wire(server) as wire:
            return ask(wire)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


# ------------------------------------------------------------------------------------- clients that leave (51-56, 64)


@pytest.mark.parametrize("leave", ["close", "half close"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_052_work_for_a_client_that_left_stops(server: Server, stream: bool, leave: str) -> None:
    before = steps(server)
    with Wire(server) as wire:
        wire.chat(stream=stream, stub=SLOW)
        wait_for(lambda: steps(server) > before + 5, 20, "the first tokens")
        if leave == "close":
            wire.socket.close()
        else:
            wire.socket.shutdown(socket.SHUT_WR)
        wait_idle(server)
        stopped = steps(server)
        time.sleep(0.5)
        assert steps(server) == stopped


def test_051_a_queued_request_of_a_client_that_left_never_starts(server: Server) -> None:
    with ExitStack() as opened:
        running = [opened.enter_context(Wire(server)) for _ in range(SLOTS)]
        for wire in running:
            wire.chat(stream=True, stub={"hang_after": 0})
            assert b" 200 OK" in wire.read_until(b"\r\n\r\n")
        before = steps(server)
        with Wire(server) as queued:
            queued.chat(stream=True, stub=SLOW)
            queued.read_until(b"\r\n\r\n")
        wait_for(lambda: metric(server, "omni_requests_running") == SLOTS, 10, "the queued one to be gone")
    wait_idle(server)
    time.sleep(0.3)
    assert steps(server) == before


def test_054_dropped_streams_leave_nothing_behind(server: Server) -> None:
    """54, 64: of 20 streams at a time half are dropped after the first token; the others get every word."""

    def stream(wire: Wire, number: int) -> bytes:
        wire.chat(stream=True, stub={"tokens": 20 if number % 2 else 10_000, "token_s": 0.002})
        wire.read_until(b'"content":"w0 "')
        return wire.read_until(DONE) if number % 2 else b""

    def client(number: int) -> None:
        with Wire(server) as wire:
            text = stream(wire, number)
            assert text.count(b'"content":"w') == (19 if number % 2 else 0)

    def rounds(count: int) -> list[int]:
        for _ in range(count):
            with ThreadPoolExecutor(SLOTS + QUEUE) as pool:
                list(pool.map(client, range(SLOTS + QUEUE)))
            wait_idle(server)
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (*server.workers, *server.replicas)]

    before = rounds(1)
    wait_for(lambda: rounds(5) <= before, 60, f"open files to be as many as before, {before}", period=1)
    assert not [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in server.replicas)]


# ------------------------------------------------------------------------------------------- a crowd (58, 59, 60, 66)


def test_060_what_does_not_fit_into_the_queue_is_told_when_to_come_back(server: Server) -> None:
    with ExitStack() as opened:
        wires = [opened.enter_context(Wire(server)) for _ in range(100)]
        for wire in wires:
            wire.chat(stream=True, stub={"hang_after": 0})
        heads = [wire.read_until(b"\r\n\r\n") for wire in wires]
        assert Counter(int(text.split()[1]) for text in heads) == {200: SLOTS + QUEUE, 429: 100 - SLOTS - QUEUE}
        for wire, text in zip(wires, heads, strict=True):
            if b" 429 " in text:
                assert b"retry-after: " in text
                assert b'"code":"queue_full"' in wire.read_until(b"}}")
        assert server.get("/health").status_code == 200


def test_058_a_burst_is_queued_or_refused_and_kills_nothing(server: Server) -> None:
    def ask(wire: Wire) -> Answer:
        wire.chat(stub={"tokens": 5, "token_s": 0.01})
        return wire.answer()

    statuses = Counter(answer.status for answer in crowd(server, 72, ask))
    assert set(statuses) <= {200, 429}
    assert statuses[200] >= SLOTS + QUEUE


def test_059_more_clients_than_slots_some_of_which_leave(server: Server) -> None:
    def ask(number: int) -> str:
        with Wire(server) as wire:
            wire.chat(stream=True, stub={"tokens": 20, "token_s": 0.01})
            wire.read_until(b'"content":"w0 "')
            return "" if number % 3 == 0 else wire.read_until(DONE).decode()

    with ThreadPoolExecutor(4 * SLOTS) as pool:
        texts = list(pool.map(ask, range(4 * SLOTS)))
    assert all('"finish_reason":"stop"' in text for number, text in enumerate(texts) if number % 3)


def test_066_large_bodies_do_not_hold_up_small_ones(server: Server) -> None:
    large = json.dumps({"messages": [], "user": "x" * 20 * MB}).encode()
    uploads = 4

    def upload() -> None:
        with Wire(server) as wire:
            assert [wire.ask("POST", CHAT, large, JSON).status for _ in range(uploads)] == [200] * uploads

    uploader = threading.Thread(target=upload)
    uploader.start()
    answered = 0
    with Wire(server) as wire:
        while uploader.is_alive():
            assert wire.ask("POST", CHAT, b'{"messages":[]}', JSON).status == 200
            answered += 1
    assert answered >= uploads


# ------------------------------------------------------------------------------------- silence and time (55, 67, 68)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_055_an_answer_that_never_comes_ends_with_its_time(server: Server, stream: bool) -> None:
    body = json.dumps({"messages": [], "stream": stream, "stub": {"tokens": 2, "hang_after": 1}}).encode()
    with Wire(server) as wire:
        answer = wire.ask("POST", CHAT, body, {**JSON, "X-Request-Timeout": "0.5"})
    if stream:
        assert answer.status == 200
        assert b'"code":"deadline_exceeded"' in answer.body
        assert DONE in answer.body
    else:
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")


ENDS = {
    "done": ({"stub": {"tokens": 1}}, "200 done"),
    "done-stream": ({"stub": {"tokens": 1}, "stream": True}, "200 done"),
    "refused": ({"n": 0}, "400 refused"),
    "refused-there": ({"stub": {"refuse": "no"}}, "400 refused"),
    "fault": ({"stub": {"fail_after": 0}}, "500 failed"),
    "fault-stream": ({"stub": {"tokens": 2, "fail_after": 1}, "stream": True}, "200 failed"),
    "left": ({"stub": SLOW}, "499 client gone"),
    "left-stream": ({"stub": SLOW, "stream": True}, "200 client gone"),
}


def test_067_every_ended_request_has_one_line_with_its_reason(server: Server) -> None:
    """With the log as it is by default."""
    for name, (fields, end) in ENDS.items():
        body = json.dumps({"messages": [], **fields}).encode()
        with Wire(server) as wire:
            wire.send("POST", CHAT, body, {**JSON, "X-Request-Id": f"case-67-{name}"})
            if "client gone" in end:
                wait_for(lambda: metric(server, "omni_requests_running") > 0, 10, "it to run")
            else:
                wire.answer()

    def lines(name: str) -> list[str]:
        return [line for line in server.output().splitlines() if line.endswith(f" id=case-67-{name}")]

    wait_for(lambda: all(map(lines, ENDS)), 10, f"their lines\n{server.output()}")
    wait_idle(server)
    for name, (_, end) in ENDS.items():
        (line,) = lines(name)
        assert f'"POST {CHAT}" {end} ' in line


def test_068_a_proxy_with_a_time_limit_does_not_cut_a_silent_stream(server: Server) -> None:
    proxy = ImpatientProxy(server, limit_s=2)
    body = json.dumps({"messages": [], "stream": True, "stub": {"tokens": 1, "token_s": 3}}).encode()
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=20)) as client:
        client.sendall(head("POST", CHAT, {**JSON, "Content-Length": str(len(body))}) + body)
        text = b""
        while DONE not in text:
            piece = client.recv(1 << 16)
            assert piece, f"the proxy cut it: {text!r}"
            text += piece
    assert text.count(b": keep-alive\n\n") >= 2
    fields = text.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert b"cache-control: no-cache" in fields
    assert b"x-accel-buffering: no" in fields


# --------------------------------------------------------------------------------------------- memory (152, 155)


def memory(pid: int, field: str) -> int:
    """VmRSS (now) or VmHWM (the most since `forget_peak`) of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def test_155_clients_that_do_not_read_cost_bounded_memory(server: Server) -> None:
    (worker,) = server.workers
    clients, choices, words = 8, 10, " ".join("x" * 999 for _ in range(1000))
    body = {"messages": [{"role": "user", "content": words}], "stream": True, "n": choices}
    with ExitStack() as opened:
        wires = [opened.enter_context(Wire(server, receive_buffer=1 << 16)) for _ in range(clients)]
        for wire in wires:
            wire.send("POST", CHAT, json.dumps(body).encode(), JSON)
            wire.read_until(b"\r\n\r\n")
        before = memory(worker, "VmRSS")
        time.sleep(1)
        assert memory(worker, "VmRSS") - before < clients * choices * MB / 2, "80 MB are waiting to be read"
        assert server.get("/health").status_code == 200
        with ThreadPoolExecutor(clients) as pool:
            texts = pool.map(lambda wire: wire.read_until(DONE), wires)
            assert [text.count(b"x" * 999 + b" ") for text in texts] == [choices * 1000] * clients


def test_152_a_large_upload_costs_no_multiple_of_itself(server: Server) -> None:
    (worker,) = server.workers
    size = 200 * MB
    before, lead, tail = memory(worker, "VmRSS"), b'{"messages":[],"user":"', b'"}'
    forget_peak(worker)
    with Wire(server, limit_s=120) as wire:
        wire.socket.sendall(head("POST", CHAT, {**JSON, "Content-Length": str(len(lead) + size + len(tail))}) + lead)
        for _ in range(size // MB):
            wire.socket.sendall(b"x" * MB)
        wire.socket.sendall(tail)
        assert wire.answer().status == 200
    assert memory(worker, "VmHWM") - before < 2.5 * size
    wait_for(lambda: memory(worker, "VmRSS") - before < size, 20, "the memory to be given back")
