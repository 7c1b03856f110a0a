"""A death is noticed once, and not at all by who has given up."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from app.cluster.pidfd import PidWatch
from tests.clusters import eventually


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_death_is_told_once_even_before_the_parent_reaps() -> None:
    child, deaths = sleeper(), []
    before = open_files()
    PidWatch(child.pid, lambda: deaths.append(1))
    await asyncio.sleep(0.05)
    assert deaths == []
    child.kill()
    await eventually(lambda: deaths == [1])
    child.wait()
    await asyncio.sleep(0.05)
    assert deaths == [1]
    assert open_files() == before


async def test_who_is_dead_already_is_told_in_the_next_turn() -> None:
    child, deaths = sleeper(), []
    child.kill()
    child.wait()
    watch = PidWatch(child.pid, lambda: deaths.append(1))
    assert deaths == [], "the caller has not even got its watch yet"
    await eventually(lambda: deaths == [1])
    watch.close()


async def test_closing_gives_it_up() -> None:
    child, deaths = sleeper(), []
    before = open_files()
    watch = PidWatch(child.pid, lambda: deaths.append(1))
    watch.close()
    watch.close()
    child.kill()
    child.wait()
    PidWatch(child.pid, lambda: deaths.append(2)).close()
    await asyncio.sleep(0.1)
    assert deaths == []
    assert open_files() == before
