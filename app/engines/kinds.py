"""Which engine runs a stage, by its kind."""

from __future__ import annotations

from app.engines.base import Engine
from app.engines.spec import ReplicaSpec


def build_engine(spec: ReplicaSpec) -> Engine:
    """The engine of a stage kind; imported here so that no process pays for an engine that it does not run."""
    match spec.stage.kind:
        case "llm" if spec.stage.model_stage == "talker":
            from app.engines.omni.talker.engine import TalkerEngine

            return TalkerEngine(spec.stage, spec.served_model_names, spec.log.engine_level, spec.scratch)
        case "llm":
            from app.engines.llm.engine import LlmEngine

            return LlmEngine(spec.stage, spec.served_model_names, spec.media, spec.log.engine_level, spec.scratch)
        case "diffusion":
            from app.engines.diffusion.engine import DiffusionEngine

            return DiffusionEngine(spec.stage, spec.media, spec.scratch, spec.log)
        case "speech":
            from app.engines.speech.engine import SpeechEngine

            return SpeechEngine(spec.stage, spec.media)
        case "generation":
            from app.engines.omni.code2wav.engine import Code2WavEngine

            return Code2WavEngine(spec.stage)
        case "policy":
            from app.engines.policy.engine import PolicyEngine

            return PolicyEngine(spec.stage, spec.media)
        case "stub":
            from app.engines.stub import StubEngine

            return StubEngine(spec.stage)
