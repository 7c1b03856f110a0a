from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.cluster.messages import Adapter
from app.engines.base import EngineError
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.loraweights import Part
from app.engines.diffusion.quantize import quantize_loaded
from app.protocol.pictures import LoraChoice
from tests.engines.diffusion.adapters import write_adapter
from tests.engines.diffusion.drawing import draw, given

KINDS = ["sd", "flux", "qwenimage"]


class Studio:
    """A pipeline with the adapters one.safetensors and two.safetensors in an allowed directory."""

    def __init__(self, pipe: Any, directory: Path, **options: Any) -> None:
        self.pipe = pipe
        self.directory = directory
        self.base = draw(pipe)
        for seed, name in enumerate(("one", "two", "three")):
            write_adapter(pipe, directory / f"{name}.safetensors", seed)
        self.adapters = Adapters(pipe, given(**{"lora_dir": [str(directory)], **options}))

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.safetensors")

    def choice(self, name: str, scale: float = 1.0) -> LoraChoice:
        return LoraChoice(path=self.path(name), scale=scale)

    def draw(self, *choices: LoraChoice, **more: Any) -> np.ndarray:
        with self.adapters.active([self.adapters.resolve(choices)]):
            return draw(self.pipe, **more)

    def failure(self, *choices: LoraChoice) -> Any:
        with pytest.raises(EngineError) as caught:
            self.draw(*choices)
        return caught.value.failed


@pytest.fixture
def studio(tiny_pipeline: Callable[[str], Any], tmp_path: Path) -> Callable[..., Studio]:
    return lambda kind="flux", **options: Studio(tiny_pipeline(kind), tmp_path / "adapters", **options)


@pytest.mark.parametrize("kind", KINDS)
def test_each_request_has_its_own(kind: str, studio: Callable[..., Studio]) -> None:
    s = studio(kind)
    one, two, plain = s.draw(s.choice("one")), s.draw(s.choice("two")), s.draw()
    assert np.array_equal(plain, s.base)
    assert np.abs(one - plain).mean() > 1e-4
    assert np.abs(one - two).mean() > 1e-4
    assert np.array_equal(s.draw(s.choice("one")), one)
    assert np.array_equal(s.draw(), s.base)


def test_a_pipeline_loaded_by_diffusers_alone_draws_the_same(
    studio: Callable[..., Studio], tiny_pipeline: Callable[[str], Any]
) -> None:
    s = studio()
    oracle = tiny_pipeline("flux")
    oracle.load_lora_weights(s.path("one"), adapter_name="x")
    oracle.set_adapters(["x"], [0.5])
    assert np.array_equal(s.draw(s.choice("one", 0.5)), draw(oracle))


def test_adapters_blend(studio: Callable[..., Studio], tiny_pipeline: Callable[[str], Any]) -> None:
    s = studio()
    oracle = tiny_pipeline("flux")
    for name in ("one", "two"):
        oracle.load_lora_weights(s.path(name), adapter_name=name)
    oracle.set_adapters(["one", "two"], [0.7, 0.3])
    assert np.allclose(s.draw(s.choice("one", 0.7), s.choice("two", 0.3)), draw(oracle), atol=1e-6)
    assert np.array_equal(s.draw(s.choice("one", 0.0)), s.base)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_mixes_adapters(kind: str, studio: Callable[..., Studio]) -> None:
    s = studio(kind)
    choices = [[s.choice("one")], [], [s.choice("two", 0.5)]]
    alone = [s.draw(*choice, seed=seed) for seed, choice in enumerate(choices)]
    blends = [s.adapters.resolve(choice) for choice in choices]
    assert s.adapters.mixable(blends, 2)
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in range(3)]
    with s.adapters.active(blends):
        together = s.pipe(
            ["a red circle"] * 3, height=64, width=64, num_inference_steps=4, generator=generators, output_type="np"
        ).images
    for row, expected in zip(together, alone, strict=True):
        assert np.abs(row - expected).max() < 1e-3  # a quarter of a step of eight bits
    assert np.array_equal(s.draw(), s.base)


def test_what_a_batch_cannot_mix() -> None:
    one, half, two = Part("one", 1.0), Part("one", 0.5), Part("two", 1.0)
    assert Adapters.mixable([(one,), (), (two,), (one,)], 2)
    assert not Adapters.mixable([(one,), (half,)], 2)
    assert not Adapters.mixable([(one, two), (one,)], 2)
    assert not Adapters.mixable([(one,), (two,)], 1)


def test_the_longest_unused_makes_room(studio: Callable[..., Studio]) -> None:
    s = studio(max_loras=2)
    first = s.draw(s.choice("one"))
    for name in ("two", "one", "three"):
        s.draw(s.choice(name))
    loaded = {key for keys in s.pipe.get_list_adapters().values() for key in keys}
    assert len(loaded) == 2
    assert s.adapters._weights.sources == [s.path("one"), s.path("three")]
    s.draw(s.choice("two"))
    assert np.array_equal(s.draw(s.choice("one")), first)
    assert s.failure(*(s.choice(name) for name in ("one", "two", "three"))).message.startswith("at most 2 adapters")


# ---------------------------------------------------------------------------------------------------- start


def test_adapters_of_the_start_act_on_requests_without_a_choice(studio: Callable[..., Studio], tmp_path: Path) -> None:
    s = studio(lora_path=[str(tmp_path / "adapters" / "one.safetensors")], lora_scale=0.5, max_loras=1)
    assert s.adapters.names() == ["one"]
    by_default = s.draw()
    assert not np.array_equal(by_default, s.base)
    assert np.array_equal(s.draw(LoraChoice(name="one", scale=0.5)), by_default)
    s.draw(s.choice("two"))
    s.draw(s.choice("three"))
    assert np.array_equal(s.draw(), by_default)  # it is not among the ones that make room
    assert np.array_equal(s.draw(LoraChoice(name="one", scale=0.0)), s.base)


@pytest.mark.parametrize("kind", KINDS)
def test_a_distilled_one_is_part_of_the_weights(kind: str, studio: Callable[..., Studio], tmp_path: Path) -> None:
    path = str(tmp_path / "adapters" / "one.safetensors")
    s = studio(kind, lora_path=[path], lora_backend="distill", lora_scale=0.5)
    assert s.adapters.names() == []
    assert s.pipe.get_list_adapters() == {}
    fused = s.draw()
    assert np.abs(fused - s.base).mean() > 1e-4
    s.draw(s.choice("two"))
    assert np.array_equal(s.draw(), fused)
    unfused = Adapters(s.pipe, given(lora_dir=[str(s.directory)]))
    assert np.array_equal(fused, draw(s.pipe)), unfused


def test_a_directory_names_its_adapter(studio: Callable[..., Studio], tmp_path: Path) -> None:
    s = studio()
    write_adapter(s.pipe, tmp_path / "style" / "pytorch_lora_weights.safetensors", 7)
    other = Adapters(s.pipe, given(lora_path=[str(tmp_path / "style")]))
    assert other.names() == ["style"]


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("flux", {"lora_path": ["/nope"]}, "--lora-path /nope: there is no LoRA adapter at /nope"),
        ("flux", {"lora_path": ["{two}"]}, "another adapter is named 'one' already"),
        ("flux", {"lora_dir": ["/nope"]}, "--lora-dir: there is no directory /nope"),
        ("stableaudio", {"lora_path": ["/nope"]}, "StableAudioPipeline takes no LoRA adapters; remove it"),
    ],
)
def test_a_wrong_start_is_told(
    kind: str, options: dict[str, Any], told: str, tiny_pipeline: Callable[[str], Any], tmp_path: Path
) -> None:
    pipe = tiny_pipeline(kind)
    if options.get("lora_path") == ["{two}"]:
        twice = [write_adapter(pipe, tmp_path / where / "one.safetensors", 0) for where in ("a", "b")]
        options = {"lora_path": [str(file) for file in twice]}
    with pytest.raises(ValueError, match=told):
        Adapters(pipe, given(**options))


# ---------------------------------------------------------------------------------------------------- refusals


def test_unknown_names_and_paths(studio: Callable[..., Studio], tmp_path: Path) -> None:
    s = studio()
    outside = write_adapter(s.pipe, tmp_path / "outside.safetensors", 3)
    (s.directory / "link.safetensors").symlink_to(outside)
    (s.directory / "linked").symlink_to(tmp_path)
    (s.directory / "model").mkdir()
    (s.directory / "model" / "adapter_model.safetensors").symlink_to(outside)
    (s.directory / "pickle.bin").write_bytes(b"")
    cases = {
        403: [str(outside), "/etc/passwd", "/nope", f"{s.directory}/../outside.safetensors"]
        + [str(s.directory / name) for name in ("link.safetensors", "linked/outside.safetensors", "model")],
        404: [str(s.directory / "nope"), str(s.directory / "pickle.bin")],
    }
    for status, paths in cases.items():
        for path in paths:
            failed = s.failure(LoraChoice(path=path))
            assert (failed.status, failed.param) == (status, "lora"), path
    failed = s.failure(LoraChoice(name="nope"))
    assert (failed.status, failed.type, failed.code) == (404, "not_found_error", "adapter_not_found")
    assert failed.message == "there is no LoRA adapter 'nope'; adapters are: none"
    assert s.failure(s.choice("one"), s.choice("one")).status == 400
    assert np.array_equal(s.draw(), s.base)


def test_without_allowed_directories_there_are_only_names(tiny_pipeline: Callable[[str], Any], tmp_path: Path) -> None:
    adapters = Adapters(tiny_pipeline("flux"), given())
    with pytest.raises(EngineError) as caught:
        adapters.resolve([LoraChoice(path=str(tmp_path))])
    assert (caught.value.failed.status, str(caught.value)) == (403, "adapters are taken by name only (--lora-dir)")


def test_a_pipeline_without_adapters_refuses_them(tiny_pipeline: Callable[[str], Any]) -> None:
    adapters = Adapters(tiny_pipeline("stableaudio"), given())
    with pytest.raises(EngineError, match="StableAudioPipeline takes no LoRA adapters"):
        adapters.resolve([LoraChoice(name="x")])
    assert adapters.resolve([]) == ()


def test_broken_files_fail_their_request_alone(
    studio: Callable[..., Studio], tiny_pipeline: Callable[[str], Any]
) -> None:
    s = studio()
    (s.directory / "broken.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    write_adapter(tiny_pipeline("sd"), s.directory / "foreign.safetensors", 0)
    write_adapter(tiny_pipeline("qwenimage"), s.directory / "mismatch.safetensors", 0)
    good = s.draw(s.choice("one"))
    for name in ("broken", "foreign", "mismatch"):
        failed = s.failure(s.choice(name))
        assert (failed.status, failed.param, failed.code) == (400, "lora", "invalid_value"), name
        assert f"the LoRA adapter {name}.safetensors" in failed.message
        assert np.array_equal(s.draw(), s.base), name
        assert np.array_equal(s.draw(s.choice("one")), good), name


# ---------------------------------------------------------------------------------------------------- while it runs


def test_adapters_are_loaded_and_unloaded_by_name(studio: Callable[..., Studio]) -> None:
    s = studio()
    adapters = s.adapters
    adapters.load(Adapter(0, "style", s.path("one")))
    adapters.load(Adapter(0, "style", s.path("one")))
    assert adapters.names() == ["style"]
    styled = s.draw(LoraChoice(name="style"))
    assert np.array_equal(styled, s.draw(s.choice("one")))
    with pytest.raises(EngineError, match="there is a LoRA adapter 'style' already"):
        adapters.load(Adapter(0, "style", s.path("two")))
    adapters.load(Adapter(0, "style", s.path("two")), replace=True)
    assert np.array_equal(s.draw(LoraChoice(name="style")), s.draw(s.choice("two")))
    with pytest.raises(EngineError, match="there is no LoRA adapter at /nope") as caught:
        adapters.load(Adapter(0, "style", "/nope"), replace=True)
    assert caught.value.failed.param == "lora_path"
    assert np.array_equal(s.draw(LoraChoice(name="style")), s.draw(s.choice("two")))
    blend = adapters.resolve([LoraChoice(name="style")])
    adapters.unload("style")
    with pytest.raises(EngineError, match="was unloaded"), adapters.active([blend]):
        pass
    with pytest.raises(EngineError, match="no LoRA adapter 'style' is loaded"):
        adapters.unload("style")
    assert np.array_equal(s.draw(), s.base)


def test_the_master_s_list_is_followed(studio: Callable[..., Studio], caplog: pytest.LogCaptureFixture) -> None:
    s = studio()
    one, bad, two = Adapter(0, "a", s.path("one")), Adapter(0, "b", "/nope"), Adapter(0, "c", s.path("two"))
    with caplog.at_level(logging.ERROR, "app.diffusion"):
        s.adapters.sync([one, bad, two])
    assert s.adapters.names() == ["a", "c"]
    assert caplog.messages == ["LoRA adapter 'b': there is no LoRA adapter at /nope"]
    s.adapters.sync([Adapter(0, "c", s.path("three"))])
    assert s.adapters.names() == ["c"]
    assert np.array_equal(s.draw(LoraChoice(name="c")), s.draw(s.choice("three")))


def test_adapters_act_on_quantized_weights(studio: Callable[..., Studio]) -> None:
    s = studio()
    list(quantize_loaded(s.pipe, given(quantization="int8")))
    plain = s.draw()
    assert np.abs(s.draw(s.choice("one")) - plain).mean() > 1e-4
    assert np.array_equal(s.draw(), plain)
