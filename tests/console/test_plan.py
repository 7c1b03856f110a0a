from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.console.plan import as_lines, graph, needs
from app.settings.resolve import examine
from app.settings.schema import Settings, StageConfig
from tests.settings.test_weights import write


def language_model(directory: Path, **typed: Any) -> Settings:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text('{"model_type": "qwen3"}')
    write(directory / "model.safetensors", a=("BF16", [1024, 1024]))
    return examine({"model": str(directory), **typed}, {}).settings


def test_the_memory_of_a_stage(tmp_path: Path) -> None:
    [need] = needs(language_model(tmp_path / "m"))
    assert (need.parameters, need.weights, need.weights_on_one_device) == (1 << 20, 2 << 20, 2 << 20)
    settings = language_model(tmp_path / "m", tensor_parallel_size=2, dtype="float32", gpu_memory_utilization=0.5)
    assert as_lines(settings) == [
        "stages:",
        "  request -> [0 llm: llm] -> text",
        "  stage 0 (llm): qwen3, takes text",
        "memory:",
        "  stage 0 (llm): weights 4.0 MiB (1.0 million parameters), 2.0 MiB on each device; "
        "with the KV cache 50% of a device",
    ]


def test_data_parallel_ranks_hold_all_weights(tmp_path: Path) -> None:
    [need] = needs(language_model(tmp_path / "m", tensor_parallel_size=2, data_parallel_size=2))
    assert need.weights_on_one_device == 1 << 20


def diffusion_model(directory: Path, **typed: Any) -> Settings:
    directory.mkdir(exist_ok=True)
    (directory / "model_index.json").write_text('{"_class_name": "WanPipeline", "vae": ["d", "X"], "unet": ["d", "Y"]}')
    write(directory / "unet" / "model.safetensors", a=("F32", [1024, 1024]))
    write(directory / "vae" / "model.safetensors", a=("F32", [512, 1024]))
    return examine({"model": str(directory), **typed}, {}).settings


def test_the_memory_of_a_diffusion_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_lines(diffusion_model(tmp_path / "m", dtype="bfloat16")) == [
        "stages:",
        "  request -> [0 diffusion: diffusion] -> video",
        "  stage 0 (diffusion): WanPipeline, makes video",
        "memory:",
        "  stage 0 (diffusion): weights 3.0 MiB (1.6 million parameters): unet 2.0 MiB, vae 1.0 MiB",
    ]
    for platform, size in (("cpu", 6 << 20), ("cuda", 3 << 20)):
        monkeypatch.setattr("app.settings.platforms.current", lambda platform=platform: platform)
        [need] = needs(diffusion_model(tmp_path / "m"))
        assert (need.parameters, need.weights) == (3 << 19, size)


def test_parts_that_rest_elsewhere_are_not_all_on_the_device(tmp_path: Path) -> None:
    [need] = needs(diffusion_model(tmp_path / "m", dtype="bfloat16", enable_cpu_offload=True))
    assert (need.weights, need.weights_on_one_device) == (3 << 20, 2 << 20)
    assert need.components == {"unet": 2 << 20, "vae": 1 << 20}


def test_a_single_file_and_one_that_is_not_here(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", a=("BF16", [1024, 1024]))
    typed = {"model_class_name": "FluxPipeline", "dtype": "bfloat16"}
    file = {"model": str(tmp_path / "x.safetensors"), "diffusers_load_kwargs": {"config": str(tmp_path)}}
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    [need] = needs(examine({**file, **typed}, {}).settings)
    assert need.components == {"x.safetensors": 2 << 20}
    [need] = needs(examine({"model": "org/never", "download_dir": str(tmp_path), **typed}, {}).settings)
    assert need.note == "not known before the model is on this machine"


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    assert needs(examine({"model": "demo"}, {}).settings)[0].note == "not known before the model is on this machine"
    settings = language_model(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"broken")
    assert "model.safetensors cannot be read" in needs(settings)[0].note


def test_stages_with_models_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.settings.platforms.current", lambda: "cpu")
    language_model(tmp_path / "text")
    (tmp_path / "voice").mkdir()
    config = '{"model_type": "vits", "architectures": ["VitsModel"]}'
    (tmp_path / "voice" / "config.json").write_text(config)
    write(tmp_path / "voice" / "model.safetensors", a=("F32", [1024, 1024]))
    (tmp_path / "x.yaml").write_text(
        "pipeline: custom\nstages:\n"
        f"- {{stage_id: 0, name: text, kind: llm, model: {tmp_path}/text, kv_cache_memory_bytes: 1MiB}}\n"
        f"- {{stage_id: 1, name: voice, kind: speech, model: {tmp_path}/voice, sources: [text]}}\n"
    )
    lines = as_lines(examine({"deploy_config": str(tmp_path / "x.yaml")}, {}).settings)
    assert f"  stage 1 (voice): {tmp_path}/voice: VitsModel, speaks" in lines
    assert "  stage 1 (voice): weights 4.0 MiB (1.0 million parameters)" in lines


def test_the_voice_and_the_pictures_of_the_demo() -> None:
    _, voice, pictures = needs(examine({"model": "demo"}, {}).settings)
    assert voice.weights is not None
    assert voice.weights > 5 << 20
    assert pictures.components.keys() == {"text_encoder", "unet", "vae"}


def test_the_drawing(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("pipeline: stub\nstages: [{stage_id: 0, num_replicas: 2, devices: cpu}, {stage_id: 1, name: b}]")
    settings = examine({"model": "stub", "deploy_config": str(file)}, {}).settings
    assert graph(settings) == [
        "request -> [0 stub: stub x 2 on cpu] -> text",
        "request -> [1 b: stub] -> text",
    ]


def test_a_stage_stands_under_the_one_that_feeds_it() -> None:
    settings = examine({"model": "demo"}, {}).settings
    settings.stages = [
        StageConfig(stage_id=0, name="thinker", kind="llm", model="m"),
        StageConfig(stage_id=1, name="talker", kind="llm", model="m", entry=False, outputs=[], sources=[0]),
        StageConfig(
            stage_id=2, name="voice", kind="speech", model="m", outputs=["audio"], sources=[1], async_chunk=False
        ),
    ]
    assert graph(settings) == [
        "request -> [0 thinker: llm] -> text",
        "           └─> [1 talker: llm] (from the first piece on)",
        "              └─> [2 voice: speech] -> audio (when its input is complete; requests begin here too)",
    ]


def test_a_stage_whose_prompts_are_written() -> None:
    settings = examine({"model": "org/painter", "deploy_config": "prompt_expansion.yaml"}, {}).settings
    assert graph(settings)[1] == "           └─> [1 picture: diffusion] -> image (whose prompts its source writes)"
