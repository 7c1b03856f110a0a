from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from app.engines.diffusion import hostweights
from app.engines.diffusion.hostweights import kept
from tests.engines.diffusion.drawing import given
from tests.engines.diffusion.opening import Build, draw, loaded


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[Path], Path]:
    options = given(host_weight_runtime_mode="preferred", host_weight_runtime_root=str(tmp_path / "shared"))
    return lambda model: Path(kept(options, str(model)))


def test_nothing_is_copied_unasked(tiny_pipelines: Build) -> None:
    model = str(tiny_pipelines("sd"))
    assert kept(given(), model) == model


def test_the_copy_draws_the_same(tiny_pipelines: Build, keep: Callable[[Path], Path], tmp_path: Path) -> None:
    model = tiny_pipelines("sd")
    copy = keep(model)
    assert copy.is_relative_to(tmp_path / "shared")
    assert np.array_equal(draw(loaded(copy)), draw(loaded(model)))


def test_several_who_come_at_once_share_one(keep: Callable[[Path], Path], tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"w" * 3_000_000)
    with ThreadPoolExecutor(4) as threads:
        copies = set(threads.map(keep, [file] * 4))
    assert [copy.read_bytes() == file.read_bytes() for copy in copies] == [True]
    assert len(list((tmp_path / "shared").glob("*/model.safetensors"))) == 1


def test_a_changed_checkpoint_is_another_one(keep: Callable[[Path], Path], tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"old")
    before = keep(file)
    file.write_bytes(b"newer")
    assert keep(file).read_bytes() == b"newer"
    assert before.read_bytes() == b"old"


def test_what_a_killed_process_left_is_not_taken(keep: Callable[[Path], Path], tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    copy = keep(file)
    copy.parent.rename(copy.parent.with_suffix(".partial"))
    (copy.parent.with_suffix(".partial") / copy.name).write_bytes(b"wei")
    assert keep(file).read_bytes() == b"weights"


def test_without_room_it_is_loaded_from_where_it_is(
    keep: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    full = shutil.disk_usage(tmp_path)._replace(free=3)
    monkeypatch.setattr(hostweights.shutil, "disk_usage", lambda _: full)
    assert keep(file) == file
    assert "3 bytes free" in caplog.text
