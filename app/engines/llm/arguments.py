"""A stage's engine_args, judged by vLLM's own argument parser."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
from typing import Any, NoReturn

from app.settings.schema import StageConfig

_SAMPLING_DEFAULTS = frozenset(
    {
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "max_tokens",
    }
)
_OURS = {
    "model": "the stage's `model`",
    "served_model_name": "--served-model-name",
    "allowed_local_media_path": "--allowed-local-media-path",
    "allowed_media_domains": "--allowed-media-domains",
}


PROFILER, STATISTICS = "enable_ar_profiler", "log_stats"
LOGGED = frozenset({PROFILER, STATISTICS})
"""Arguments of ours, which vLLM is not told of: what of its statistics goes to the log."""


class EngineArgumentError(ValueError):
    """An engine argument is unknown, wrong or not the engine's; str() says which and what to do."""


def parse(stage: StageConfig, served_model_names: list[str], defaults: dict[str, Any]) -> argparse.Namespace:
    """The arguments vLLM would have after `vllm serve` with these flags; `defaults` fill what the user left open.

    Raises:
        EngineArgumentError: names the argument.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise EngineArgumentError(f"stage {stage.stage_id} ({stage.name}): {message}")

    _check_names(stage)
    chosen = defaults | stage.engine_args | _sampling_defaults(stage)
    for name in LOGGED:
        if chosen.pop(name, False) and chosen.get("disable_log_stats"):
            raise EngineArgumentError(
                f"stage {stage.stage_id} ({stage.name}): {name} reads vLLM's statistics; remove disable_log_stats"
            )
    argv = ["--model", stage.model, "--served-model-name", *served_model_names]
    for name, value in chosen.items():
        argv += _flag(name, value)
    parser = make_arg_parser(Parser(prog="engine_args", add_help=False, allow_abbrev=False))
    try:
        args: argparse.Namespace = parser.parse_args(argv)
    except (ValueError, TypeError) as error:
        raise EngineArgumentError(str(error)) from error
    for name, value in chosen.items():
        if value is False:
            setattr(args, name, False)
    return args


def _check_names(stage: StageConfig) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import BaseFrontendArgs, FrontendArgs

    engine, frontend, server = (
        {field.name for field in dataclasses.fields(kind)} for kind in (AsyncEngineArgs, BaseFrontendArgs, FrontendArgs)
    )
    where = f"stage {stage.stage_id} ({stage.name}): engine argument"
    for name in stage.engine_args.keys() - LOGGED:
        if name in _OURS:
            raise EngineArgumentError(f"{where} {name!r} is set by {_OURS[name]}; remove it from engine_args")
        if name in server - frontend:
            raise EngineArgumentError(
                f"{where} {name!r} belongs to vLLM's own HTTP server, which does not run here; remove it"
            )
        if name not in engine | frontend:
            near = difflib.get_close_matches(name, engine | frontend, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise EngineArgumentError(f"{where} {name!r} is unknown to vLLM{hint}")


def _sampling_defaults(stage: StageConfig) -> dict[str, Any]:
    """Sampling defaults travel as vLLM's override of the model's generation_config.json."""
    if not stage.default_sampling_params:
        return {}
    unknown = sorted(stage.default_sampling_params.keys() - _SAMPLING_DEFAULTS)
    if unknown:
        raise EngineArgumentError(
            f"stage {stage.stage_id} ({stage.name}): default_sampling_params has {', '.join(unknown)}; "
            f"vLLM takes defaults only for {', '.join(sorted(_SAMPLING_DEFAULTS))}"
        )
    sampling = dict(stage.default_sampling_params)
    if "max_tokens" in sampling:
        sampling["max_new_tokens"] = sampling.pop("max_tokens")
    return {"override_generation_config": stage.engine_args.get("override_generation_config", {}) | sampling}


def _flag(name: str, value: Any) -> list[str]:
    option = "--" + name.replace("_", "-")
    match value:
        case None | False:
            return []  # some of vLLM's switches have no --no- form; parse() sets what is off itself
        case True:
            return [option]
        case dict():
            return [option, json.dumps(value)]
        case list():
            return [option, *(json.dumps(item) if isinstance(item, dict) else str(item) for item in value)]
        case _:
            return [f"{option}={value}"]
