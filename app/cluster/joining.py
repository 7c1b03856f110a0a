"""Whether a replica may join: it has to run what the server runs, from the same configuration."""

from __future__ import annotations

import hmac

from app import __version__
from app.cluster import messages as m
from app.settings.engines import engine_of
from app.settings.schema import StageConfig, stage_digest


def objection(register: m.Register, stage: StageConfig | None, known: list[int], names: list[str]) -> str:
    """Why a replica is refused, in words for its operator; "" if it is welcome.

    `stage`: the master's configuration of the stage that it says it runs, None if there is none; `known`: the ids of
    those that there are; `names`: those of the served model.
    """
    if register.protocol != m.PROTOCOL or register.version != __version__:
        return (
            f"it runs omni-app {register.version} (protocol {register.protocol}), the master runs {__version__} "
            f"(protocol {m.PROTOCOL}): install the same version on both hosts"
        )
    if stage is None:
        return f"there is no stage {register.stage_id}; this pipeline has stages {known}"
    what = f"stage {stage.stage_id} ({stage.name})"
    model = stage.source or stage.model
    if register.model != model:
        return f"it runs {what} with the model {register.model!r}, the master with {model!r}: start both with the same"
    if not hmac.compare_digest(register.config_digest, stage_digest(stage)):
        return (
            f"its configuration of {what} differs from the master's: start it with the same flags and files "
            "(compare `omni-app config` on both hosts)"
        )
    if stage.kind == "llm" and register.names != names:
        theirs, ours = ", ".join(register.names), ", ".join(names)
        return f"it serves {what} as {theirs}, the master as {ours}: give both the same --served-model-name"
    ours = engine_of(stage)
    if ours and register.engine and register.engine != ours:
        return f"{what} runs on {register.engine} there and on {ours} here: install the same version on both hosts"
    return ""
