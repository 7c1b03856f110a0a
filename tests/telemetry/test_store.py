from __future__ import annotations

from pathlib import Path

import pytest

from app.telemetry import store
from app.telemetry.store import CELLS, SCRATCH_CELLS, Store, read_all


def seen(directory: Path) -> list[tuple[bool, bytes, list[float]]]:
    return list(read_all(directory))


def test_others_see_every_write_at_once(tmp_path: Path) -> None:
    writer = Store(tmp_path)
    at = writer.allocate(b"a key", 2)
    writer.cells[at + 1] += 2.5
    assert seen(tmp_path) == [(True, b"a key", [0.0, 2.5])]


def test_each_writer_has_a_file_of_its_own(tmp_path: Path) -> None:
    writers = [Store(tmp_path), Store(tmp_path)]
    for value, writer in enumerate(writers, start=1):
        writer.cells[writer.allocate(b"k", 1)] = value
    assert [values for _, _, values in seen(tmp_path)] == [[1.0], [2.0]]


def test_a_file_that_nobody_holds_is_taken_over_with_its_counts(tmp_path: Path) -> None:
    first = Store(tmp_path)
    first.cells[first.allocate(b"k", 1)] = 7
    first.close()
    assert [alive for alive, _, _ in seen(tmp_path)] == [False]
    second = Store(tmp_path)
    second.cells[second.allocate(b"k", 1)] += 1
    assert seen(tmp_path) == [(True, b"k", [8.0])]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_series_of_another_size_is_not_mistaken_for_ours(tmp_path: Path) -> None:
    first = Store(tmp_path)
    first.allocate(b"k", 3)
    first.close()
    second = Store(tmp_path)
    second.cells[second.allocate(b"k", 1)] = 5
    assert (True, b"k", [5.0]) in seen(tmp_path)
    assert (True, b"k", [0.0, 0.0, 0.0]) in seen(tmp_path)


def test_a_full_file_drops_series_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Store(tmp_path)
    writer.allocate(b"big", CELLS - SCRATCH_CELLS - 8)
    for key in (b"one more", b"and another"):
        at = writer.allocate(key, 40)
        writer.cells[at + 39] += 1
    assert [key for _, key, _ in seen(tmp_path)] == [b"big"]
    assert len(caplog.records) == 1


def test_a_file_that_is_being_made_has_no_series(tmp_path: Path) -> None:
    (tmp_path / store._name("0")).touch()
    assert seen(tmp_path) == []


def test_without_a_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer = Store()
    writer.cells[writer.allocate(b"k", 1)] = 3
    assert list(writer.values()) == [(b"k", [3.0])]
    assert list(tmp_path.iterdir()) == []
