"""The real child process: the hub's cache on disk, no network."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from app.cluster.rundir import StartupError
from app.settings.models import prepare
from app.settings.resolve import examine
from app.settings.schema import Settings, stage_digest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache of an offline machine."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def settings_for(model: str, cache: Path) -> Settings:
    return examine({"model": model, "download_dir": str(cache)}, {}).settings


def put_in_cache(cache: Path, repository: str, **files: object) -> Path:
    """What an earlier download leaves."""
    base = cache / f"models--{repository.replace('/', '--')}"
    snapshot = base / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        (snapshot / f"{name}.json").write_text(json.dumps(content))
    return snapshot


async def test_a_hub_model_becomes_its_directory(cache: Path) -> None:
    snapshot = put_in_cache(cache, "org/tiny", config={"model_type": "llama"})
    steps: list[str] = []
    prepared = await prepare(settings_for("org/tiny", cache), steps.append)
    assert prepared.stages[0].model == str(snapshot)
    assert (prepared.model, prepared.stages[0].source) == ("org/tiny", "org/tiny")
    assert steps == ["getting the model org/tiny"]


async def test_hosts_with_different_caches_agree_on_the_stage(cache: Path, tmp_path: Path) -> None:
    digests = set()
    for place in (cache, tmp_path / "elsewhere"):
        put_in_cache(place, "org/tiny", config={"model_type": "llama"})
        prepared = (await prepare(settings_for("org/tiny", place), lambda _: None)).stages[0]
        assert prepared.model.startswith(str(place))
        digests.add(stage_digest(prepared))
    assert len(digests) == 1


async def test_offline_and_not_in_the_cache(cache: Path) -> None:
    with pytest.raises(StartupError) as caught:
        await prepare(settings_for("org/absent", cache), lambda _: None)
    assert str(caught.value) == (
        "cannot get the model org/absent: HF_HUB_OFFLINE is set and the model is not in the cache; "
        "for a directory, give its path, such as ./org/absent"
    )


async def test_what_came_must_be_servable(cache: Path) -> None:
    put_in_cache(cache, "org/planner", model_index={"_class_name": "GlmImagePipeline"})
    put_in_cache(cache, "org/pictures", model_index={"_class_name": "FluxPipeline"})
    with pytest.raises(StartupError, match=r"the model org/planner cannot be served: .* \(GlmImagePipeline\)"):
        await prepare(settings_for("org/planner", cache), lambda _: None)
    with pytest.raises(StartupError, match="the model org/pictures needs the pipeline diffusion, not llm"):
        await prepare(settings_for("org/pictures", cache), lambda _: None)


async def test_a_diffusion_model_becomes_its_directory(cache: Path) -> None:
    snapshot = put_in_cache(cache, "org/pictures", model_index={"_class_name": "FluxPipeline"})
    typed = {"model": "org/pictures", "download_dir": str(cache)}
    settings = examine(typed, os.environ, ask_hub=True).settings
    [stage] = (await prepare(settings, lambda _: None)).stages
    assert (stage.kind, stage.model, stage.source) == ("diffusion", str(snapshot), "org/pictures")
    forced = examine({**typed, "model_class_name": "WanPipeline"}, {}).settings
    assert (await prepare(forced, lambda _: None)).stages[0].model == str(snapshot)


async def test_directories_and_the_stub_need_nothing(model: str, cache: Path) -> None:
    for name in (model, "stub"):
        settings = examine({"model": name}, {}).settings
        assert await prepare(settings, lambda _: pytest.fail("nothing to do")) == settings


async def test_cancelling_ends_the_child(cache: Path) -> None:
    others = children_of(os.getpid())
    task = asyncio.create_task(prepare(settings_for("org/absent", cache), lambda _: None))
    while not (children := children_of(os.getpid()) - others):  # noqa: ASYNC110 - the kernel has no event for it
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children & children_of(os.getpid())


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
