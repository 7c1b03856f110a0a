"""The pipelines that are known: their stages, and the models that they serve. Sizes are in app/deploy/*.yaml."""

from __future__ import annotations

from typing import Literal

import msgspec

TopologyKind = Literal["llm", "stub", "diffusion", "speech", "generation"]
"""A StageKind, or what will be one: generation (a vocoder or codec: one pass, no sampling)."""

CUSTOM = "custom"
"""The pipeline whose stages, with their models, are what the deploy file says."""

SPEECH_TYPES = ("vits", "speecht5", "bark", "csm", "dia")
"""`model_type` of the config.json of models that a speech stage speaks with."""


class StageTopology(msgspec.Struct, frozen=True, kw_only=True):
    """What the pipeline fixes for a stage; no configuration can change it. `sources` are the stages that feed it.

    The outputs of a diffusion stage are those of its pipeline class, where that is known (settings.classnames).
    """

    name: str
    kind: TopologyKind
    entry: bool = True
    outputs: tuple[str, ...] = ("text",)
    sources: tuple[int, ...] = ()


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Stages in order of their ids. An `open` pipeline takes further stages from the deploy file, with their models.

    Models are known by `model_type` of their config.json or `_class_name` of their model_index.json. A pipeline with
    a `part` cannot run yet: it comes with that part of the project; one that is `missing` something cannot run at all.
    `meanwhile` is what users of either can do.
    """

    name: str
    stages: tuple[StageTopology, ...]
    open: bool = False
    model_types: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    part: int = 0
    missing: str = ""
    meanwhile: str = ""

    @property
    def refusal(self) -> str:
        """Why it cannot run, and what can be done; "" if it can."""
        hint = f"; {self.meanwhile}" if self.meanwhile else ""
        if self.missing:
            return f"the pipeline {self.name} cannot run: {self.missing}{hint}"
        if self.part:
            return f"the pipeline {self.name} cannot run yet: it comes with part {self.part} of the project{hint}"
        return ""


_TEXT_ONLY = "--deploy-config llm.yaml serves its text"


def _llm(name: str, *, entry: bool = True, outputs: tuple[str, ...] = (), source: int | None = None) -> StageTopology:
    return StageTopology(name=name, kind="llm", entry=entry, outputs=outputs, sources=_sources(source))


def _code2wav(source: int) -> StageTopology:
    return StageTopology(name="code2wav", kind="generation", entry=False, outputs=("audio",), sources=_sources(source))


def _diffusion(name: str, output: str, source: int | None = None) -> StageTopology:
    return StageTopology(name=name, kind="diffusion", entry=source is None, outputs=(output,), sources=_sources(source))


def _speech(name: str, source: int | None = None) -> StageTopology:
    return StageTopology(name=name, kind="speech", outputs=("audio",), sources=_sources(source))


def _sources(source: int | None) -> tuple[int, ...]:
    return () if source is None else (source,)


_OMNI = (
    _llm("thinker", outputs=("text",)),
    _llm("talker", entry=False, source=0),
    _code2wav(source=1),
)

PIPELINES = {
    pipeline.name: pipeline
    for pipeline in (
        Pipeline(name="llm", stages=(_llm("llm", outputs=("text",)),)),
        Pipeline(
            name="demo",
            stages=(_llm("text", outputs=("text",)), _speech("speech", source=0), _diffusion("picture", "image")),
        ),
        Pipeline(name="custom", stages=(), open=True),
        Pipeline(name="stub", stages=(StageTopology(name="stub", kind="stub"),), open=True),
        Pipeline(name="speech", stages=(_speech("speech"),), model_types=SPEECH_TYPES),
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
            stages=(_llm("thinker", outputs=("text",)), _diffusion("dit", "image", source=0)),
            model_types=("bagel",),
            missing="of vLLM 0.32, transformers 5.19 and diffusers 0.42 none draws with the model",
            meanwhile=f"{_TEXT_ONLY}, and a deploy file like prompt_expansion.yaml lets a language model write the "
            "prompts of any diffusion model",
        ),
        Pipeline(name="qwen2_5_omni", stages=_OMNI, model_types=("qwen2_5_omni",), part=6, meanwhile=_TEXT_ONLY),
        Pipeline(name="qwen3_omni_moe", stages=_OMNI, model_types=("qwen3_omni_moe",), part=6, meanwhile=_TEXT_ONLY),
    )
}


class Found(msgspec.Struct, frozen=True):
    """What a model is, in words, and the pipeline that serves it.

    `class_name` is that of a diffusion model, "" where it is not known, and None for every other model.
    """

    what: str
    pipeline: Pipeline
    class_name: str | None = None


def by_model_type(model_type: str) -> Found:
    """For a config.json: a pipeline of its own, or that of language models."""
    known = next((known for known in PIPELINES.values() if model_type in known.model_types), PIPELINES["llm"])
    return Found(f"a model of type {model_type}", known)


def by_class_name(class_name: str) -> Found:
    """For a model_index.json ("": its class is not known): a pipeline of its own, or that of all diffusers models."""
    known = next((known for known in PIPELINES.values() if class_name in known.class_names), PIPELINES["diffusion"])
    return Found(f"a diffusion model ({class_name})" if class_name else "a diffusion model", known, class_name)
