"""The pipelines that are known: their stages, and the models that they serve. Sizes are in app/deploy/*.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from app.settings.schema import ModelStage, StageKind

CUSTOM = "custom"
"""The pipeline whose stages, with their models, are what the deploy file says."""

PART_OF_A_MODEL: StageKind = "generation"
"""The kind of stages that no deploy file can make up."""

SPEECH_TYPES = ("vits", "speecht5", "bark", "csm", "dia")
"""`model_type` of the config.json of models that a speech stage speaks with."""


class StageTopology(msgspec.Struct, frozen=True, kw_only=True):
    """What the pipeline fixes for a stage; no configuration can change it. `sources` are the stages that feed it.

    The outputs of a diffusion stage are those of its pipeline class, where that is known (settings.classnames).
    """

    name: str
    kind: StageKind
    model_stage: ModelStage = ""
    entry: bool = True
    outputs: tuple[str, ...] = ("text",)
    sources: tuple[int, ...] = ()


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Stages in order of their ids. An `open` pipeline takes further stages from the deploy file, with their models.

    Models are known by `model_type` of their config.json, by its `architectures` or by `_class_name` of their
    model_index.json. One that is `missing` something cannot run; `meanwhile` is what its users can do.
    """

    name: str
    stages: tuple[StageTopology, ...]
    open: bool = False
    model_types: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    missing: str = ""
    meanwhile: str = ""

    @property
    def refusal(self) -> str:
        """Why it cannot run, and what can be done; "" if it can."""
        if not self.missing:
            return ""
        hint = f"; {self.meanwhile}" if self.meanwhile else ""
        return f"the pipeline {self.name} cannot run: {self.missing}{hint}"

    @property
    def talks(self) -> bool:
        """What its first stage thinks is spoken by others: parts of the model that a checkpoint may lack."""
        return any(stage.model_stage == "talker" for stage in self.stages)


def _llm(name: str, *outputs: str) -> StageTopology:
    return StageTopology(name=name, kind="llm", outputs=outputs)


def _code2wav(source: int) -> StageTopology:
    return StageTopology(name="code2wav", kind="generation", entry=False, outputs=("audio",), sources=_sources(source))


def _diffusion(name: str, output: str, source: int | None = None) -> StageTopology:
    return StageTopology(name=name, kind="diffusion", entry=source is None, outputs=(output,), sources=_sources(source))


def _speech(name: str, source: int | None = None) -> StageTopology:
    return StageTopology(name=name, kind="speech", outputs=("audio",), sources=_sources(source))


def _sources(source: int | None) -> tuple[int, ...]:
    return () if source is None else (source,)


_OMNI = (
    StageTopology(name="thinker", kind="llm", model_stage="thinker"),
    StageTopology(name="talker", kind="llm", model_stage="talker", entry=False, outputs=(), sources=(0,)),
    _code2wav(source=1),
)

PIPELINES = {
    pipeline.name: pipeline
    for pipeline in (
        Pipeline(name="llm", stages=(_llm("llm", "text"),)),
        Pipeline(
            name="demo",
            stages=(_llm("text", "text"), _speech("speech", source=0), _diffusion("picture", "image")),
        ),
        Pipeline(name="custom", stages=(), open=True),
        Pipeline(name="stub", stages=(StageTopology(name="stub", kind="stub"),), open=True),
        Pipeline(name="speech", stages=(_speech("speech"),), model_types=SPEECH_TYPES),
        Pipeline(
            name="pi0",
            stages=(StageTopology(name="policy", kind="policy", outputs=("action",)),),
            model_types=("pi0",),
            architectures=("PI0ForConditionalGeneration",),
        ),
        Pipeline(name="diffusion", stages=(_diffusion("diffusion", "image"),)),
        Pipeline(
            name="wan",
            stages=(_diffusion("diffusion", "video"),),
            class_names=("WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline", "WanVACEPipeline"),
        ),
        Pipeline(
            name="glm_image",  # one pipeline of diffusers, which holds the language model that plans the picture
            stages=(_diffusion("diffusion", "image"),),
            class_names=("GlmImagePipeline",),
        ),
        Pipeline(
            name="qwen3_tts",
            stages=(_llm("talker"), _code2wav(source=0)),
            model_types=("qwen3_tts",),
            missing="neither vLLM 0.32 nor transformers 5.19 has the model",
            meanwhile=f"speech models of type {', '.join(SPEECH_TYPES)} can be served",
        ),
        Pipeline(
            name="bagel",
            stages=(_llm("thinker", "text"), _diffusion("dit", "image", source=0)),
            model_types=("bagel",),
            missing="of vLLM 0.32, transformers 5.19 and diffusers 0.42 none draws with the model",
            meanwhile="--deploy-config llm.yaml serves its text, and a deploy file like prompt_expansion.yaml lets a "
            "language model write the prompts of any diffusion model",
        ),
        Pipeline(
            name="qwen2_5_omni",
            stages=_OMNI,
            model_types=("qwen2_5_omni",),
            architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
        ),
        Pipeline(
            name="qwen3_omni_moe",
            stages=_OMNI,
            model_types=("qwen3_omni_moe",),
            architectures=("Qwen3OmniMoeForConditionalGeneration",),
        ),
    )
}


class Found(msgspec.Struct, frozen=True):
    """What a model is, in words, and the pipeline that serves it; `note` is what its users should know.

    `class_name` is that of a diffusion model, "" where it is not known, and None for every other model.
    """

    what: str
    pipeline: Pipeline
    class_name: str | None = None
    note: str = ""


def by_config(config: Mapping[str, Any]) -> Found:
    """For the content of a config.json: a pipeline of its own, or that of language models."""
    found = by_model_type(str(config.get("model_type") or ""), config.get("architectures"))
    lacks = _without_talker(config) if found.pipeline.talks else ""
    if not lacks:
        return found
    note = f"it answers in text only: {lacks}; it is served as a language model (pipeline llm)"
    return Found(f"{found.what} without a talker", PIPELINES["llm"], note=note)


def _without_talker(config: Mapping[str, Any]) -> str:
    """Why the checkpoint cannot speak; "" if it can."""
    if config.get("enable_audio_output") is False:
        return "enable_audio_output is false in its config.json"
    return "its config.json has no talker_config" if config.get("talker_config") is None else ""


def by_model_type(model_type: str, architectures: object = ()) -> Found:
    """For those two members of a config.json: a pipeline of its own, or that of language models."""
    named = {str(name) for name in architectures} if isinstance(architectures, list | tuple) else set()
    what = f"a model of type {model_type}" if model_type else f"a model of class {', '.join(sorted(named))}"
    for known in PIPELINES.values():
        if model_type in known.model_types or not named.isdisjoint(known.architectures):
            return Found(what, known)
    return Found(what, PIPELINES["llm"])


def by_class_name(class_name: str) -> Found:
    """For a model_index.json ("": its class is not known): a pipeline of its own, or that of all diffusers models."""
    known = next((known for known in PIPELINES.values() if class_name in known.class_names), PIPELINES["diffusion"])
    return Found(f"a diffusion model ({class_name})" if class_name else "a diffusion model", known, class_name)
