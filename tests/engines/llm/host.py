"""A process around one engine, for tests that kill things: `python -m tests.engines.llm.host WHAT`.

Prints one JSON line when the engine is up ({"core": pid}) and one with what happened.
WHAT: `wait` (until killed), `lose-core` (kills EngineCore under running requests), `stop`, `spawn` (no engine: a child
of multiprocessing's spawn method with vLLM's plugins loaded).
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.llm.engine import LlmEngine
from tests.engines.llm.conftest import tiny_stage
from tests.engines.llm.recorder import recorder, until


def say(**words: Any) -> None:
    print(json.dumps({"host": words}), flush=True)  # noqa: T201 -- it is this program's purpose


async def with_engine(what: str) -> None:
    engine = LlmEngine(tiny_stage(), ["tiny"])
    signals: list[int] = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signals.append, signal.SIGTERM)
    await engine.start()
    (core,) = multiprocessing.active_children()
    say(core=core.pid)
    match what:
        case "wait":
            await asyncio.Event().wait()
        case "lose-core":
            assert core.pid is not None
            await lose_core(engine, core.pid)
        case "stop":
            await engine.stop()
            await asyncio.sleep(0.1)
            say(children=len(multiprocessing.active_children()), signals=signals)


async def lose_core(engine: LlmEngine, core: int) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("chat", {"messages": [{"role": "user", "content": "x"}], "stream": True}),
        ("chat", {"messages": [{"role": "user", "content": "x"}]}),
        ("chat", {"messages": [{"role": "user", "content": "x"}], "stream": True, "logprobs": True}),
        ("completion", {"prompt": "x"}),
        ("completion", {"prompt": ["x", "y"], "stream": True}),
        ("completion", {"prompt": "x", "stream": True, "logprobs": 1}),
    ]
    requests = [recorder(kind, body | {"max_tokens": 1000, "ignore_eos": True}) for kind, body in bodies]
    tasks = [asyncio.create_task(engine.run(request)) for request in requests]
    await until(lambda: all(m.Accepted() in request.events for request in requests))
    os.kill(core, signal.SIGKILL)
    start = time.monotonic()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    seconds = time.monotonic() - start
    failed = [[error.failed.status, error.failed.code] for error in outcomes if isinstance(error, EngineError)]
    late = recorder("chat", {"messages": [{"role": "user", "content": "x"}]})
    (after,) = await asyncio.gather(engine.run(late), return_exceptions=True)
    (health,) = await asyncio.gather(engine.check_health(), return_exceptions=True)
    await engine.stop()
    say(
        failed=failed,
        seconds=seconds,
        after=after.failed.status if isinstance(after, EngineError) else str(after),
        health=type(health).__name__,
    )


def spawned(started: Any) -> None:
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    started.set()
    time.sleep(600)


def spawn() -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    child = context.Process(target=spawned, args=(started,), daemon=False)
    child.start()
    started.wait(120)
    say(core=child.pid)
    time.sleep(600)


if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        spawn()
    else:
        asyncio.run(with_engine(sys.argv[1]))
        os._exit(0)
