"""Uploaded voices: seen by every process at once, kept over restarts, never lost to a bad upload."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.settings.schema import SpeechConfig
from app.store.voices import (
    VoiceExistsError,
    VoiceRecord,
    Voices,
    VoicesFullError,
    VoicesMissingError,
    VoicesUnavailableError,
    default_file,
)

PROCESSES = multiprocessing.get_context("spawn")


def voice(name: str = "Ada", sample: bytes = b"RIFF" * 100, **fields: Any) -> VoiceRecord:
    fields = {"consent": "mine", "created_at": 1, "mime_type": "audio/wav", "size": len(sample), **fields}
    return VoiceRecord(name=name, sample=sample, **fields)


def opened(directory: Path, **limits: Any) -> Voices:
    return Voices(SpeechConfig(voices_database=f"sqlite:///{directory}/deep/er/voices.sqlite3", **limits))


@pytest.fixture
def voices(tmp_path: Path) -> Voices:
    return opened(tmp_path)


async def test_what_is_saved_comes_back_whole(voices: Voices) -> None:
    kept = voice(text="said", description="warm", embedding=[0.25, -1e-9])
    await voices.save(kept)
    assert await voices.get("Ada") == kept


async def test_a_list_has_no_recordings_and_is_sorted(voices: Voices) -> None:
    for name in ("bob", "Ada", "cleo"):
        await voices.save(voice(name))
    listed = await voices.list()
    assert [record.name for record in listed] == ["Ada", "bob", "cleo"]
    assert [record.sample for record in listed] == [b"", b"", b""]


async def test_names_that_differ_in_case_are_one(voices: Voices) -> None:
    await voices.save(voice("Ada"))
    await voices.save(voice("ADA", b"new"))
    assert [record.name for record in await voices.list()] == ["ADA"]
    found = await voices.get("ada")
    assert found is not None
    assert found.sample == b"new"
    assert await voices.delete("aDa")
    assert await voices.list() == []


async def test_what_is_not_there(voices: Voices) -> None:
    assert await voices.get("nobody") is None
    assert not await voices.delete("nobody")


async def test_a_restart_keeps_voices(tmp_path: Path) -> None:
    await opened(tmp_path).save(voice())
    assert await opened(tmp_path).get("ada") == voice()


async def test_databases_are_apart(tmp_path: Path) -> None:
    await opened(tmp_path / "one").save(voice())
    assert await opened(tmp_path / "two").list() == []


async def test_immutable_voices_stay(tmp_path: Path) -> None:
    voices = opened(tmp_path, voices_policy="immutable")
    await voices.save(voice())
    with pytest.raises(VoiceExistsError):
        await voices.save(voice("ADA", b"other"))
    assert await voices.get("Ada") == voice()
    await voices.delete("Ada")
    await voices.save(voice("ADA", b"other"))


async def test_an_upload_that_does_not_fit_leaves_the_old_voice(tmp_path: Path) -> None:
    voices = opened(tmp_path, voices_max=2, voices_max_bytes=1000)
    await voices.save(voice())
    with pytest.raises(VoicesFullError, match="more than 1000 bytes"):
        await voices.save(voice(sample=b"x" * 1001))
    assert await voices.get("Ada") == voice()
    await voices.save(voice("Bob", b"x" * 600))
    with pytest.raises(VoicesFullError, match="2 voices"):
        await voices.save(voice("Cleo", b""))
    await voices.save(voice("Bob", b"x" * 500))  # in its own place there is room


async def test_a_fault_in_the_middle_leaves_the_old_voice(voices: Voices) -> None:
    """The row cannot be written when the old one has been deleted already."""
    await voices.save(voice())
    with pytest.raises(VoicesUnavailableError):
        await voices.save(voice(consent=None))
    assert await voices.get("Ada") == voice()


async def test_the_default_file_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    await Voices(SpeechConfig()).save(voice())
    assert default_file() == tmp_path / "state" / "omni-app" / "voices.sqlite3"
    assert {stat.S_IMODE(file.stat().st_mode) for file in files_of(default_file())} == {0o600}
    assert stat.S_IMODE(default_file().parent.stat().st_mode) == 0o700


def files_of(database: Path) -> list[Path]:
    return [file for file in database.parent.iterdir() if file.name.startswith(database.name)]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:////proc/nowhere/voices", "cannot be made"),
        ("nosql://host/x", "nosql"),
        ("postgresql+nodriver://host/x", "nodriver"),
        ("no url", "URL"),
    ],
)
async def test_a_database_that_cannot_be_used_says_why(url: str, words: str) -> None:
    with pytest.raises(VoicesUnavailableError, match=words):
        await Voices(SpeechConfig(voices_database=url)).list()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "voices"
    file.write_text("not a database, but long enough to be looked at" * 100)
    with pytest.raises(VoicesUnavailableError, match="not a database"):
        await Voices(SpeechConfig(voices_database=f"sqlite:///{file}")).list()


async def test_without_sqlalchemy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "app.store.voicetable", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(VoicesMissingError):
        await opened(tmp_path).list()


async def test_a_writer_that_holds_the_lock_stops_no_reader(tmp_path: Path) -> None:
    voices = opened(tmp_path)
    await voices.save(voice())
    writer = sqlite3.connect(tmp_path / "deep" / "er" / "voices.sqlite3", isolation_level=None)
    try:
        writer.execute("BEGIN EXCLUSIVE")
        async with asyncio.timeout(5):
            assert await voices.get("Ada") == voice()
    finally:
        writer.close()


async def test_a_database_that_does_not_answer_is_waited_for_with_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = opened(tmp_path)
    await voices.save(voice())
    monkeypatch.setattr("app.store.voices._PATIENCE_S", 0.2)
    writer = sqlite3.connect(tmp_path / "deep" / "er" / "voices.sqlite3", isolation_level=None)
    try:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(VoicesUnavailableError, match="has not answered"):
            await voices.save(voice("Bob"))
    finally:
        writer.close()


# ---------------------------------------------------------------------------------------- several processes


def _keep_saving(directory: Path, who: str, barrier: Any) -> None:
    voices = opened(directory, voices_max=12)
    barrier.wait(60)
    for number in range(8):
        asyncio.run(_try(voices.save, voice(f"{who}-{number}", who.encode() * 50_000)))
        asyncio.run(voices.save(voice("shared", who.encode() * 50_000)))


async def _try(save: Callable[[VoiceRecord], Any], record: VoiceRecord) -> None:
    try:
        await save(record)
    except VoicesFullError:
        return


def test_processes_race_for_a_new_database(tmp_path: Path) -> None:
    """Four make the table at the same time, replace one voice and run against the limit together."""
    names = ("a", "b", "c", "d")
    barrier = PROCESSES.Barrier(len(names))
    started = [PROCESSES.Process(target=_keep_saving, args=(tmp_path, name, barrier)) for name in names]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0, 0, 0, 0]
    asyncio.run(_assert_consistent(opened(tmp_path)))


async def _assert_consistent(voices: Voices) -> None:
    listed = await voices.list()
    assert len(listed) == 12
    shared = await voices.get("shared")
    assert shared is not None
    assert len(shared.sample) == 50_000
    assert len(set(shared.sample)) == 1
    for record in listed:
        kept = await voices.get(record.name)
        assert kept is not None
        assert len(kept.sample) == kept.size == 50_000


def _save_one(directory: Path) -> None:
    asyncio.run(opened(directory).save(voice("from elsewhere")))


async def test_another_process_is_seen_at_once(tmp_path: Path) -> None:
    voices = opened(tmp_path)
    assert await voices.list() == []
    other = PROCESSES.Process(target=_save_one, args=(tmp_path,))
    other.start()
    await asyncio.to_thread(other.join, 60)
    assert [record.name for record in await voices.list()] == ["from elsewhere"]
