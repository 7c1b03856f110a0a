"""The threads that read weight files are counted while sharded weights are read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import diffusers
import pytest
from diffusers.models import model_loading_utils
from transformers import core_model_loading

from app.engines.diffusion.loading import load
from app.engines.diffusion.options import DiffusionOptions
from tests import tiny_diffusion


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sharded")
    pipe = tiny_diffusion.flux()
    pipe.save_pretrained(directory, max_shard_size="200KB")
    assert len(list((directory / "transformer").glob("*.safetensors"))) >= 4
    return directory


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """By library, the threads that read weights, and the largest pool that was made for it (as "pools")."""
    seen: dict[str, set[int]] = {"diffusers": set(), "transformers": set(), "pools": set()}

    def watched(library: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen[library].add(threading.get_ident())
            return function(*args, **kwargs)

        return call

    class Pool(ThreadPoolExecutor):
        def __init__(self, max_workers: int | None = None, *args: Any, **kwargs: Any) -> None:
            seen["pools"].add(max_workers or 0)
            super().__init__(max_workers, *args, **kwargs)

    for module in (model_loading_utils, core_model_loading):
        monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(
        model_loading_utils, "_load_shard_file", watched("diffusers", model_loading_utils._load_shard_file)
    )
    monkeypatch.setattr(
        core_model_loading, "_materialize_copy", watched("transformers", core_model_loading._materialize_copy)
    )
    return seen


def load_with(model: Path, **options: Any) -> Any:
    return load(DiffusionOptions(device="cpu", **options), str(model), lambda line: None)


def test_so_many_threads_read(sharded: Path, readers: dict[str, set[int]]) -> None:
    load_with(sharded, num_weight_load_threads=3)

    me = threading.get_ident()
    assert max(readers["pools"]) == 3  # no more than there are files
    assert me not in readers["diffusers"] | readers["transformers"]
    assert readers["diffusers"]  # of several pools, one after another


def test_one_after_another(sharded: Path, readers: dict[str, set[int]]) -> None:
    load_with(sharded, disable_multithread_weight_load=True)

    assert readers["pools"] == {1}  # transformers has no way without a pool
    assert not readers["diffusers"]


def test_the_weights_are_the_same_and_the_setting_is_left_as_it_was(sharded: Path) -> None:
    one = load_with(sharded, disable_multithread_weight_load=True)
    many = load_with(sharded, num_weight_load_threads=4)

    for name in ("transformer", "text_encoder_2"):
        other = getattr(many, name).state_dict()
        assert all(tensor.equal(other[key]) for key, tensor in getattr(one, name).state_dict().items())
    assert (
        model_loading_utils.DEFAULT_HF_PARALLEL_LOADING_WORKERS == diffusers.utils.DEFAULT_HF_PARALLEL_LOADING_WORKERS
    )
