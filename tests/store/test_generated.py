"""Files wait for their time under names that nobody guesses, and no longer."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path

import pytest

from app.store.generated import GeneratedFiles


@pytest.fixture
def files(tmp_path: Path) -> GeneratedFiles:
    return GeneratedFiles(tmp_path / "generated", lifetime_s=60, max_bytes=1000)


def age(tmp_path: Path, name: str, seconds: float) -> None:
    os.utime(tmp_path / "generated" / name, (time.time() - seconds,) * 2)


async def test_a_file_comes_back_with_its_time(files: GeneratedFiles) -> None:
    name, expires = await files.save(b"content", "png")
    assert name.endswith(".png")
    assert time.time() + 55 < expires <= time.time() + 60
    found = await files.read(name)
    assert found is not None
    assert found[0] == b"content"
    assert abs(found[1] - expires) <= 1


async def test_every_worker_sees_it(files: GeneratedFiles, tmp_path: Path) -> None:
    name, _ = await files.save(b"x", "png")
    other = GeneratedFiles(tmp_path / "generated", 60, 1000)
    assert await other.read(name) is not None


async def test_names_differ_and_are_long(files: GeneratedFiles) -> None:
    names = [(await files.save(b"same", "png"))[0] for _ in range(20)]
    assert len(set(names)) == 20
    assert min(map(len, names)) >= 32


async def test_only_the_user_can_read_them(files: GeneratedFiles, tmp_path: Path) -> None:
    name, _ = await files.save(b"x", "webp")
    directory = tmp_path / "generated"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", ".", "..", "../settings.json", "a" * 32, "a" * 32 + ".png/..", "a" * 32 + ".png"])
async def test_there_is_no_other_file(files: GeneratedFiles, tmp_path: Path, name: str) -> None:
    (tmp_path / "settings.json").write_text("secret")
    await files.save(b"x", "png")
    assert await files.read(name) is None


async def test_an_expired_file_is_gone_before_it_is_swept(files: GeneratedFiles, tmp_path: Path) -> None:
    name, _ = await files.save(b"x", "png")
    age(tmp_path, name, 61)
    assert await files.read(name) is None
    files.sweep()
    assert list((tmp_path / "generated").iterdir()) == []


async def test_sweeping_leaves_what_is_young(files: GeneratedFiles, tmp_path: Path) -> None:
    name, _ = await files.save(b"x", "png")
    age(tmp_path, name, 30)
    files.sweep()
    assert await files.read(name) is not None


async def test_the_oldest_make_room(files: GeneratedFiles, tmp_path: Path) -> None:
    names = [(await files.save(b"x" * 400, "png"))[0] for _ in range(2)]
    age(tmp_path, names[0], 20)
    age(tmp_path, names[1], 30)
    await files.save(b"x" * 400, "png")
    assert await files.read(names[0]) is not None
    assert await files.read(names[1]) is None


async def test_the_sweeper_sweeps(tmp_path: Path) -> None:
    files = GeneratedFiles(tmp_path / "generated", 0.05, 1000)
    await files.save(b"x", "png")
    sweeper = asyncio.create_task(files.keep_swept())
    async with asyncio.timeout(5):
        while list((tmp_path / "generated").iterdir()):  # noqa: ASYNC110 - bounded
            await asyncio.sleep(0.02)
    sweeper.cancel()


def test_sweeping_before_anything_was_saved(files: GeneratedFiles) -> None:
    files.sweep()
