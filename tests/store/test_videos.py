"""Videos are seen by all workers and their owner alone, from the first moment to the last."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.protocol.videos import Video, VideoError
from app.store.generated import GeneratedFiles
from app.store.videos import Making, Videos

LIFETIME_S = 60


def store(root: Path) -> Videos:
    """One for each worker, on the same directory."""
    return Videos(root / "videos", GeneratedFiles(root / "generated", LIFETIME_S, 1000), LIFETIME_S)


@pytest.fixture
def videos(tmp_path: Path) -> Videos:
    return store(tmp_path)


def video(created_at: int = 1) -> Video:
    return Video(model="m", created_at=created_at, prompt="a boat")


async def begun(videos: Videos, owner: str = "", created_at: int = 1) -> Making:
    return await videos.begin(owner, video(created_at))


def age(root: Path, making: Making, seconds: float = LIFETIME_S + 1) -> None:
    for path in (root / "videos" / making.record.video.id).iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


async def test_a_video_is_seen_while_it_is_made_and_afterwards(videos: Videos, tmp_path: Path) -> None:
    making, other = await begun(videos), store(tmp_path)
    name = making.record.video.id
    found = await other.get("", name)
    assert found is not None
    assert (found.video.status, found.video.prompt, found.file) == ("queued", "a boat", "")
    making.record.video.status, making.record.video.progress = "in_progress", 40
    await making.save()
    found = await other.get("", name)
    assert found is not None
    assert (found.video.status, found.video.progress) == ("in_progress", 40)
    await videos.finish(making, b"film")
    making.close()
    found = await other.get("", name)
    assert found is not None
    assert (found.video.status, found.video.progress) == ("completed", 100)
    assert found.video.expires_at == pytest.approx(time.time() + LIFETIME_S, abs=2)
    content = await GeneratedFiles(tmp_path / "generated", LIFETIME_S, 1000).read(found.file)
    assert content is not None
    assert content[0] == b"film"


async def test_why_one_has_not_been_made(videos: Videos) -> None:
    making = await begun(videos)
    await videos.fail(making, VideoError("no_video", "there is none"))
    making.close()
    found = await videos.get("", making.record.video.id)
    assert found is not None
    assert (found.video.status, found.video.error) == ("failed", VideoError("no_video", "there is none"))


async def test_one_that_is_given_up_has_failed(videos: Videos, tmp_path: Path) -> None:
    making = await begun(videos)
    making.record.video.status = "in_progress"
    await making.save()
    making.close()
    (found,) = await store(tmp_path).listed("")
    assert (found.id, found.status) == (making.record.video.id, "failed")


async def test_others_see_nothing_of_it(videos: Videos) -> None:
    mine, theirs = await begun(videos, "a", 1), await begun(videos, "b", 2)
    assert await videos.get("b", mine.record.video.id) is None
    assert [found.id for found in await videos.listed("a")] == [mine.record.video.id]
    assert [found.id for found in await videos.listed("b")] == [theirs.record.video.id]
    assert await videos.listed("") == []


async def test_they_are_listed_as_they_came(videos: Videos) -> None:
    assert await videos.listed("") == []
    begins = [await begun(videos, created_at=when) for when in (3, 1, 2)]
    ids = [making.record.video.id for making in begins]
    assert [found.id for found in await videos.listed("")] == [ids[1], ids[2], ids[0]]


@pytest.mark.parametrize("name", ["", ".", "..", "../videos", "video_", "video_" + "0" * 32, "record.json", "x\0y"])
async def test_what_is_no_video(name: str, videos: Videos) -> None:
    await begun(videos)
    assert await videos.get("", name) is None


async def test_only_the_user_can_read_them(videos: Videos, tmp_path: Path) -> None:
    making = await begun(videos)
    assert stat.S_IMODE((tmp_path / "videos" / making.record.video.id).stat().st_mode) == 0o700


async def test_one_that_is_deleted_while_it_is_made(videos: Videos, tmp_path: Path) -> None:
    making = await begun(videos)
    noticing = asyncio.create_task(making.deleted())
    await asyncio.sleep(0)
    assert not noticing.done()
    await store(tmp_path).delete(making.record)
    await asyncio.wait_for(noticing, 10)
    with pytest.raises(FileNotFoundError):
        await making.save()
    with pytest.raises(FileNotFoundError):
        await videos.finish(making, b"film")
    with pytest.raises(FileNotFoundError):
        await videos.fail(making, VideoError("a", "b"))
    assert await videos.get("", making.record.video.id) is None
    assert list((tmp_path / "generated").iterdir()) == []
    assert list((tmp_path / "videos").iterdir()) == []


async def test_one_that_is_deleted_when_it_is_made(videos: Videos, tmp_path: Path) -> None:
    making = await begun(videos)
    await videos.finish(making, b"film")
    making.close()
    record = await videos.get("", making.record.video.id)
    assert record is not None
    await videos.delete(record)
    await videos.delete(record)
    assert [*(tmp_path / "generated").iterdir(), *(tmp_path / "videos").iterdir()] == []


_DYING = """
import asyncio, sys
from pathlib import Path
from app.protocol.videos import Video
from app.store.generated import GeneratedFiles
from app.store.videos import Videos
root = Path(sys.argv[1])
videos = Videos(root / "videos", GeneratedFiles(root / "generated", 60, 1000), 60)
making = asyncio.run(videos.begin("", Video(model="m", created_at=1)))
print(making.record.video.id, flush=True)
sys.stdin.read()
"""


async def test_the_death_of_its_maker_is_known(videos: Videos, tmp_path: Path) -> None:
    line = (sys.executable, "-c", _DYING, str(tmp_path))
    maker = await asyncio.create_subprocess_exec(*line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert maker.stdout is not None
    name = (await maker.stdout.readline()).decode().strip()
    found = await videos.get("", name)
    assert found is not None
    assert found.video.status == "queued"
    maker.kill()
    await maker.wait()
    found = await videos.get("", name)
    assert found is not None
    assert found.video.status == "failed"
    assert found.video.error is not None
    assert "has ended" in found.video.error.message


async def test_videos_are_forgotten(videos: Videos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, running, lost = [await begun(videos) for _ in range(3)]
    await videos.finish(ready, b"film")
    for making in (ready, lost):
        making.close()
    for making in (ready, running, lost):
        age(tmp_path, making)
    await begun(videos)  # whoever begins one sweeps
    left = {path.name for path in (tmp_path / "videos").iterdir()}
    assert running.record.video.id in left
    assert not {ready.record.video.id, lost.record.video.id} & left


async def test_nobody_is_told_of_one_whose_time_is_over(videos: Videos, monkeypatch: pytest.MonkeyPatch) -> None:
    making = await begun(videos)
    await videos.finish(making, b"film")
    making.close()
    later = time.time() + LIFETIME_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert await videos.get("", making.record.video.id) is None
    assert await videos.listed("") == []


async def test_deleting_by_an_old_record_leaves_no_file(videos: Videos, tmp_path: Path) -> None:
    making = await begun(videos)
    seen = await videos.get("", making.record.video.id)
    assert seen is not None
    await videos.finish(making, b"film")
    making.close()
    await videos.delete(seen)
    assert list((tmp_path / "generated").iterdir()) == []


async def test_a_full_disk_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("app.store.videos.Making._write", full)
    with pytest.raises(OSError, match="No space"):
        await begun(store(tmp_path))
    assert list((tmp_path / "videos").iterdir()) == []
