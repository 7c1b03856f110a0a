"""The rows of the soak: the kill matrix of tests/faults, start and stop loops, storms of clients that leave."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from tests import tiny_diffusion
from tests.compat import heard
from tests.faults import chains, edges, failover, films, matrix, pictures, ranks, remote, sounds, talks
from tests.faults.streams import Streams
from tests.servers import Server, free_port, start_server, wait_for

STORM = 200
PICTURE_LEAVERS = 200
SPEECH_LEAVERS = 500
TALKS = 50
SETTLE_S = 10.0


def start_and_stop(stop: str) -> None:
    """Start, serve, end: nothing is left, and the port is free for the next one."""
    port = free_port()
    line = ("omni-app", "serve", "stub", "--port", str(port), "--workers", "2")
    for _ in range(2):
        with start_server(line, port=port) as server:
            matrix.wait_serving(server)
            assert matrix.ask(server).status_code == 200
            getattr(server, stop)()
            server.wait()
            server.assert_nothing_left()


def stop_at_a_random_moment() -> None:
    """A stop signal somewhere in the start."""
    with start_server(("omni-app", "serve", "stub", "--port", "{port}", "--workers", "2")) as server:
        time.sleep(random.uniform(0.05, 3.0))
        random.choice((server.terminate, server.press_ctrl_c))()
        server.wait()
        server.assert_nothing_left()


def disconnect_storm() -> None:
    """Many clients leave at random moments: no request, descriptor or memory is left of them."""
    with start_server(matrix.SERVE) as server:
        matrix.wait_serving(server)
        _storm(server)
        before = {pid: open_files(pid) for pid in (*server.workers, *server.replicas)}
        for _ in range(5):
            _storm(server)
        assert matrix.ask(server).status_code == 200
        after = {pid: open_files(pid) for pid in before}
        assert all(after[pid] <= before[pid] + 2 for pid in before), f"open files: {before}, then {after}"
        assert server.stop() == 0
        server.assert_nothing_left()


def _storm(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "stub": {"tokens": 10_000, "token_s": 0.05}}
    with httpx.Client(limits=httpx.Limits(max_keepalive_connections=0)) as client:
        for _ in range(STORM):
            url = f"{server.url}/v1/chat/completions"
            try:
                with client.stream("POST", url, json=body | {"stream": random.random() < 0.7}, timeout=0.02) as answer:
                    for _ in zip(range(random.randint(0, 3)), answer.iter_raw(), strict=False):
                        pass
            except httpx.TimeoutException:
                continue  # it left while it waited
    wait_for(lambda: load(server) == 0, SETTLE_S, "the work of clients that left to end", server=server)


def load(server: Server) -> int:
    """Requests in the engines, as their last heartbeat said."""
    count: int = server.get("/load").json()["server_load"]
    return count


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def replica_crash_loop() -> None:
    """Five kills in a row amid streams; each time it comes back, and nobody waits for ever."""
    with start_server(matrix.SERVE, matrix.ENV) as server:
        matrix.wait_serving(server)
        for _ in range(5):
            streams = Streams(server, matrix.STREAMS, stub=matrix.SCRIPT).wait_begun()
            os.kill(server.replicas[0], signal.SIGKILL)
            assert streams.join().keys() == {"error"}
            wait_for(server.answers, 30, "its return", 0.2, server=server)
        assert server.stop() == 0
        server.assert_nothing_left()


def picture_clients_leave() -> None:
    """A real pipeline: many clients leave in the middle of their pictures, and those of twenty others are right."""
    with tempfile.TemporaryDirectory(prefix="soak") as directory:
        model = tiny_diffusion.build("sd", Path(directory) / "sd")
        with start_server(pictures.line(model), {"OMP_NUM_THREADS": "1"}) as server:
            server.wait_ready(120)
            before = pictures.album(server)
            files = {pid: open_files(pid) for pid in (*server.workers, *server.replicas)}
            pictures.leave_at_random(server, PICTURE_LEAVERS)
            assert pictures.album(server) == before
            after = {pid: open_files(pid) for pid in files}
            assert all(after[pid] <= files[pid] + 2 for pid in files), f"open files: {files}, then {after}"
            assert server.stop() == 0
            server.assert_nothing_left()


def makers_are_killed(kind: str, killed_amid: Callable[[Path, int], None]) -> None:
    """Whoever makes a picture or a video, five times amid it."""
    with tempfile.TemporaryDirectory(prefix="soak") as directory:
        killed_amid(tiny_diffusion.build(kind, Path(directory) / kind), 5)


def speech_clients_leave() -> None:
    """Requests dropped after their first piece of sound, which lies in shared memory: nothing is left of them."""
    stage = {"engine_args": {"speaks": True}, "shm_threshold_bytes": 1024}
    with start_server(matrix.SERVE, {"OMNI_STAGE_OVERRIDES": json.dumps({"0": stage})}) as server:
        matrix.wait_serving(server)
        sounds.left_after_the_first_piece(server, sounds.AT_A_TIME)
        before = sounds.open_files(server)
        sounds.left_after_the_first_piece(server, SPEECH_LEAVERS)
        sounds.assert_nothing_is_left(server, before)
        assert server.stop() == 0
        server.assert_nothing_left()


def talks_are_interrupted() -> None:
    """Realtime sockets whose answers are interrupted by speech: no request and no descriptor is left of them."""
    with tempfile.TemporaryDirectory(prefix="so") as directory:
        environment = talks.environment(Path(directory))
        with start_server(talks.SERVE, environment) as server:
            _talk_at_once(server)
            assert server.stop() == 0
            server.assert_nothing_left()


def _talk_at_once(server: Server) -> None:
    matrix.wait_serving(server)
    asyncio.run(talks.many_talks(server, TALKS))
    before = {pid: open_files(pid) for pid in (*server.workers, *server.replicas)}
    for _ in range(10):
        asyncio.run(talks.many_talks(server, TALKS))
    wait_for(lambda: load(server) == 0, SETTLE_S, "the work of interrupted answers to end", server=server)
    after = {pid: open_files(pid) for pid in before}
    assert all(after[pid] <= before[pid] + 2 for pid in before), f"open files: {before}, then {after}"


def edge_faults() -> None:
    """Two stages of two replicas each: every way in which an edge ends, five times, and 500 clients that leave."""
    with tempfile.TemporaryDirectory(prefix="so") as directory:
        asyncio.run(edges.every_end(Path(directory), 5))


def chain_faults() -> None:
    """Thinker, talker and vocoder, two of each: every way in which one ends a chat, five times, and 500 that leave."""
    with tempfile.TemporaryDirectory(prefix="so") as directory:
        asyncio.run(chains.every_end(Path(directory), 5))


def everything_is_understood() -> None:
    """A recogniser listens to the demo: each sentence in each format, whole and streamed, and to answers of a chat."""
    with start_server(("omni-app", "serve", "demo", "--port", "{port}"), {"OMP_NUM_THREADS": "1"}) as server:
        server.wait_ready(180)
        seed = random.randrange(1 << 32)
        rates = heard.every_way(server, seed) | heard.chats(server)
        assert max(rates.values()) <= heard.UNDERSTOOD, f"word error rates with seed {seed}: {rates}"
        assert server.stop() == 0
        server.assert_nothing_left()


def _between_hosts(fault: remote.Fault, moment: remote.Moment) -> None:
    times = remote.run(fault, moment)
    print(f"{fault}, {moment}: known after {times.detect_s:.1f} s, well again {times.recover_s:.1f} s after its end")


def one_of_two_dies() -> None:
    """Fifty times amid 200 requests, on ten servers: pauses grow where a replica keeps dying young."""
    total: Counter[str] = Counter()
    for _ in range(10):
        with start_server(matrix.SERVE, {"OMNI_STAGE_OVERRIDES": json.dumps({"0": {"num_replicas": 2}})}) as server:
            server.wait_ready(60)
            for _ in range(5):
                total += failover.kill_one_amid(server, random.Random())
            assert server.stop() == 0
            server.assert_nothing_left()
    print(f"50 x one of two replicas killed amid {failover.AT_ONCE} requests: {dict(total)}")


ROWS: dict[str, Callable[[], None]] = {
    **{f"matrix: {row.kind}, {row.fault}, {row.moment}": partial(matrix.run, row) for row in matrix.ROWS},
    **{f"hosts: {fault}, {moment}": partial(_between_hosts, fault, moment) for fault, moment in remote.ROWS},
    "start, stop (SIGTERM), again": partial(start_and_stop, "terminate"),
    "start, stop (Ctrl-C), again": partial(start_and_stop, "press_ctrl_c"),
    "start, kill -9, again": partial(start_and_stop, "kill"),
    "stop at a random moment of the start": stop_at_a_random_moment,
    f"6 x {STORM} clients that leave": disconnect_storm,
    f"{PICTURE_LEAVERS} clients that leave while a real pipeline draws": picture_clients_leave,
    f"{SPEECH_LEAVERS} clients that leave after the first piece of speech": speech_clients_leave,
    f"11 x {TALKS} realtime talks that are interrupted": talks_are_interrupted,
    "12 x 30 sentences and chats of the demo are understood": everything_is_understood,
    "5 x a rank killed amid a picture": partial(makers_are_killed, "sd", ranks.killed_amid),
    "5 x the replica killed amid a video": partial(makers_are_killed, "wan", films.killed_amid),
    "5 x the replica killed amid streams": replica_crash_loop,
    f"50 x one of two replicas killed amid {failover.AT_ONCE} requests": one_of_two_dies,
    "tensors from stage to stage, every end of an edge five times": edge_faults,
    "thinker, talker and vocoder, every end of a chat five times": chain_faults,
}
