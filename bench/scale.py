"""How the server grows: API workers, replicas, and a registry of a thousand: `python -m bench.scale`.

First, whole answers of stub replicas (no model, 8 words) through 1, 2 and 4 API workers and 1, 2 and 3 replicas on this
host: answers a second, and the CPU time of an answer in API workers and in replicas, which is what the hop between them
costs. The load comes from one process on the same cores. Then a registry with 1,000 replicas that another process plays
over real sockets: its CPU time and its traffic with heartbeats alone, and while replicas come and go.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app import __version__
from app.cluster import messages as m
from app.cluster.access import access_of
from app.cluster.registry import Registry
from app.cluster.transport import Channel, Frames, dealer, new_context
from app.settings.schema import MasterConfig, Settings, StageConfig, stage_digest
from bench.measure import load_average, percentile
from bench.report import ROOT, conditions, environment
from tests.faults.matrix import wait_serving
from tests.servers import Server, start_server

WORKERS, REPLICAS = (1, 2, 4), (1, 2, 3)
CONNECTIONS = 64
WORDS = 8
_BODY = json.dumps({"messages": [{"role": "user", "content": "w " * WORDS}]}).encode()
_REQUEST = (
    f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(_BODY)}\r\n\r\n"
).encode() + _BODY
_TICKS = os.sysconf("SC_CLK_TCK")
_CHANGES = 100


@dataclass
class Point:
    """One combination: answers a second, seconds of the median and the slow ones, CPU seconds of an answer."""

    workers: int
    replicas: int
    per_s: float
    p50_s: float
    p99_s: float
    api_cpu_s: float
    replica_cpu_s: float


@dataclass
class Crowd:
    """A registry of so many replicas: share of a core and bytes a second at rest, CPU seconds of a change."""

    replicas: int
    workers: int
    period_s: float
    idle_cpu: float
    told_bytes_per_s: float
    membership_bytes: int
    change_cpu_s: float


# ------------------------------------------------------------------------------------------------ throughput


async def _client(server: Server, until: float, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        while (began := time.perf_counter()) < until:
            writer.write(_REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode(errors="replace"))
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            took.append(time.perf_counter() - began)
    finally:
        writer.close()


def _load(server: Server, seconds: float) -> list[float]:
    took: list[float] = []

    async def run() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(_client(server, until, took) for _ in range(CONNECTIONS)))

    asyncio.run(run())
    return took


def _point(workers: int, replicas: int, seconds: float) -> Point:
    line = ("omni-app", "serve", "stub", "--port", "{port}", "--workers", str(workers), "--disable-access-log")
    with start_server(line, {"OMNI_STAGE_OVERRIDES": json.dumps({"0": {"num_replicas": replicas}})}) as server:
        wait_serving(server, workers)
        _load(server, min(1.0, seconds))
        before = _cpu(server.workers), _cpu(server.replicas)
        took = _load(server, seconds)
        after = _cpu(server.workers), _cpu(server.replicas)
    return Point(
        workers,
        replicas,
        len(took) / seconds,
        percentile(took, 50),
        percentile(took, 99),
        (after[0] - before[0]) / len(took),
        (after[1] - before[1]) / len(took),
    )


def _cpu(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


# ------------------------------------------------------------------------------------------------ the registry


def _settings() -> Settings:
    stage = StageConfig(stage_id=0, name="text", kind="stub", model="stub")
    master = MasterConfig(heartbeat_timeout=30)
    return Settings(model="stub", served_model_names=["stub"], pipeline="stub", stages=[stage], master=master)


async def _play(address: str, replicas: int, workers: int) -> None:
    """Be all replicas and API workers of a registry until standard input says otherwise; print what the workers got."""
    config = _settings()
    access = access_of(config.master)
    context = new_context()
    context.set(1, 4)  # IO_THREADS
    context.max_sockets = 4 * replicas
    got = [0, 0]

    def heard(frames: Frames) -> None:
        got[0] += sum(len(frame.buffer) for frame in frames)
        got[1] = max(got[1], *(len(frame.buffer) for frame in frames))

    def ignored(_: Frames) -> None:
        """A Welcome."""

    told = [Channel(dealer(context, address, os.urandom(8), access), heard) for _ in range(workers)]
    for number, worker in enumerate(told):
        worker.send([m.encode(m.Subscribe(m.PROTOCOL, f"w{number}", os.getpid()))])
    members = [Channel(dealer(context, address, os.urandom(8), access), ignored) for _ in range(replicas)]
    for number, member in enumerate(members):
        register = m.Register(
            m.PROTOCOL, __version__, "stub", 0, -1, stage_digest(config.stages[0]), f"tcp://10.0.0.1:{number}", "h", 1
        )
        member.send([m.encode(register)])
        member.send([m.encode(m.Ready(m.Capabilities(["chat"], 4096, ["text"], ["text"], 64)))])
        if not number % 50:
            await asyncio.sleep(0.05)
    tick = 0
    commands = asyncio.Queue[str]()
    asyncio.get_running_loop().add_reader(0, lambda: commands.put_nowait(sys.stdin.readline().strip()))
    beat = asyncio.create_task(asyncio.sleep(0))
    while True:
        tick += 1
        with suppress(TimeoutError):
            command = await asyncio.wait_for(commands.get(), 1.0 if beat.done() else 0)
            if command == "count":
                sys.stdout.write(json.dumps(got) + "\n")
                sys.stdout.flush()
                got[0] = 0
                continue
            if command == "change":
                for member in members[:_CHANGES]:
                    member.send([m.encode(m.Heartbeat("draining" if tick % 2 else "up", tick, m.Load()))])
                    await asyncio.sleep(0.02)
                sys.stdout.write("changed\n")
                sys.stdout.flush()
                continue
            return
        for member in members:
            member.send([m.encode(m.Heartbeat("up", tick, m.Load(steps=tick)))])


async def _crowd(replicas: int, workers: int, seconds: float) -> Crowd:
    config = _settings()
    with tempfile.TemporaryDirectory(prefix="sc") as directory:
        address = f"ipc://{directory}/registry.sock"
        registry = Registry(config, address)
        await registry.start()
        line = [sys.executable, "-m", "bench.scale", "--play", address, str(replicas), str(workers)]
        others = await asyncio.create_subprocess_exec(*line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        assert others.stdin is not None
        assert others.stdout is not None

        async def say(command: str) -> bytes:
            assert others.stdin is not None
            assert others.stdout is not None
            others.stdin.write(f"{command}\n".encode())
            return await asyncio.wait_for(others.stdout.readline(), 60)

        try:
            async with asyncio.timeout(120):
                while registry.states(0)["up"] < replicas:  # noqa: ASYNC110 - bounded
                    await asyncio.sleep(0.2)
            await say("count")
            cpu, began = time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            idle, wall = time.process_time() - cpu, time.monotonic() - began
            told, largest = json.loads(await say("count"))
            cpu, began = time.process_time(), time.monotonic()
            await say("change")
            changed = time.process_time() - cpu - (time.monotonic() - began) * idle / wall
        finally:
            others.kill()
            await others.wait()
            await registry.stop()
    period = config.master.heartbeat_period
    return Crowd(replicas, workers, period, idle / wall, told / wall, largest, max(0.0, changed) / _CHANGES)


# ------------------------------------------------------------------------------------------------ the page


def _page(points: list[Point], crowds: list[Crowd], around: dict[str, object]) -> str:
    rows = [
        f"| {x.workers} | {x.replicas} | {x.per_s:.0f} | {x.p50_s * 1e3:.0f} / {x.p99_s * 1e3:.0f} | "
        f"{x.api_cpu_s * 1e6:.0f} | {x.replica_cpu_s * 1e6:.0f} |"
        for x in points
    ]
    crowd = [
        f"| {x.replicas} | {x.workers} | {x.period_s:g} | {x.idle_cpu:.1%} | {x.told_bytes_per_s / 1024:.0f} | "
        f"{x.membership_bytes / 1024:.0f} | {x.change_cpu_s * 1e3:.2f} |"
        for x in crowds
    ]
    return "\n".join(
        [
            "# How the server grows",
            "",
            "Written by `python -m bench.scale`, which says how it measures. Replicas are stubs: what is measured is",
            f"the way of a request, not a model. {CONNECTIONS} connections, whole answers of {WORDS} words. The load",
            "comes from one more process on the same cores, so that more processes than cores cannot make it faster.",
            "",
            f"{conditions(around)}, after: {load_average():.2f}.",
            "",
            "| API workers | replicas | answers/s | p50 / p99 ms | CPU µs an answer, API workers | CPU µs, replicas |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "The replica's share is what the hop costs: a request and its events, packed, sent, read and acknowledged.",
            "",
            "The registry of the master, with replicas that another process plays over real sockets:",
            "",
            "| replicas | API workers | heartbeat s | of a core | told, KiB/s | all members, KiB | CPU ms a change |",
            "|---|---|---|---|---|---|---|",
            *crowd,
            "",
            "A change is told to every API worker at once, with all members: that grows with both numbers.",
            "",
        ]
    )


def main() -> None:
    options = _options()
    if options.play:
        address, replicas, workers = options.play
        asyncio.run(_play(address, int(replicas), int(workers)))
        return
    around = environment()
    points = [_point(x, y, options.seconds) for x in options.workers for y in options.replicas]
    crowds = [asyncio.run(_crowd(number, 4, options.seconds)) for number in options.crowds]
    options.out.write_text(text := _page(points, crowds, around))
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default: 5)")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="API workers")
    parser.add_argument("--replicas", type=int, nargs="+", default=REPLICAS, help="stub replicas")
    parser.add_argument("--crowds", type=int, nargs="+", default=[10, 100, 1000], help="replicas of the registry")
    parser.add_argument("--out", type=Path, default=Path("scale.md"), help="Markdown file (default: scale.md)")
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
