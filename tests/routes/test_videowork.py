"""Videos in the background end well: saved or gone, and never half."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from app.routes.videowork import VideoWork
from app.store.generated import GeneratedFiles
from tests.routes.test_videos import ASK, PATH, begun, client_of, film, served_with, until


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Set once a file is being saved; to be set for it to go on."""
    entered, go = threading.Event(), threading.Event()
    save = GeneratedFiles._save

    def slow(self: GeneratedFiles, *args: Any) -> Any:
        entered.set()
        assert go.wait(20)
        return save(self, *args)

    monkeypatch.setattr(GeneratedFiles, "_save", slow)
    return entered, go


async def test_deleting_amid_the_saving_leaves_no_file(tmp_path: Path, held: Any) -> None:
    entered, go = held
    served = served_with(film(b"x"), tmp_path)
    async with client_of(served) as client:
        name = await begun(client)
        assert await asyncio.to_thread(entered.wait, 10)
        await client.delete(f"{PATH}/{name}")
        await asyncio.sleep(1)  # until its maker has noticed
        go.set()
        await asyncio.wait_for(served.litestar.state.video_work.finish(), 10)
        await asyncio.get_running_loop().shutdown_default_executor()
    assert list((tmp_path / "generated").iterdir()) == []


async def test_what_is_being_saved_at_the_end_is_kept(tmp_path: Path, held: Any) -> None:
    entered, go = held
    served = served_with(film(b"x"), tmp_path)
    async with client_of(served) as client:
        name = await begun(client)
        assert await asyncio.to_thread(entered.wait, 10)
        served.draining.set()
        await asyncio.sleep(0.1)
        go.set()
        await asyncio.wait_for(served.litestar.state.video_work.finish(), 10)
        video = await until(client, name)
        assert video["status"] == "completed", video


async def test_the_number_of_frames_asked_for_is_told(tmp_path: Path) -> None:
    async with client_of(served_with(film(b"x"), tmp_path)) as client:
        assert (await client.post(PATH, json=ASK | {"num_frames": 33})).json()["num_frames"] == 33


async def test_the_last_video_ends_with_the_time_of_the_server() -> None:
    """In one turn of the loop. An error here would skip the rest of run_engine's end."""
    draining, ends = asyncio.Event(), asyncio.Event()
    work = VideoWork(draining)
    task = asyncio.create_task(ends.wait())
    work._tasks.add(task)
    task.add_done_callback(work._tasks.discard)
    finishing = asyncio.create_task(work.finish())
    await asyncio.sleep(0.05)
    ends.set()
    draining.set()
    await asyncio.wait_for(finishing, 10)
