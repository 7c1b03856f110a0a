"""The master's list of adapters survives the master."""

from __future__ import annotations

from pathlib import Path

from app.cluster.adapters import AdapterBook
from app.cluster.messages import Adapter, DropAdapter, KeepAdapter


def test_a_new_master_reads_what_the_last_one_kept(tmp_path: Path) -> None:
    file = tmp_path / "adapters.json"
    book = AdapterBook(file)
    assert book.adapters == []
    book.apply(KeepAdapter(Adapter(0, "a", "/a")))
    book.apply(KeepAdapter(Adapter(1, "a", "/of another stage", is_3d=True)))
    book.apply(KeepAdapter(Adapter(0, "a", "/b")))
    assert AdapterBook(file).adapters == [Adapter(1, "a", "/of another stage", is_3d=True), Adapter(0, "a", "/b")]
    AdapterBook(file).apply(DropAdapter(0, "a"))
    assert AdapterBook(file).adapters == [Adapter(1, "a", "/of another stage", is_3d=True)]
    assert [path.name for path in tmp_path.iterdir()] == ["adapters.json"]


def test_dropping_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    book = AdapterBook(tmp_path / "adapters.json")
    book.apply(DropAdapter(0, "a"))
    assert book.adapters == []
