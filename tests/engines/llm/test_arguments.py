"""Engine arguments reach vLLM, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from app.engines.llm.arguments import LOGGED, PROFILER, STATISTICS, EngineArgumentError, parse
from app.settings.flags import flags
from app.settings.schema import StageConfig


def stage(sampling: dict[str, Any] | None = None, **engine_args: Any) -> StageConfig:
    return StageConfig(
        stage_id=3,
        name="thinker",
        kind="llm",
        model="/nowhere/model",
        engine_args=engine_args,
        default_sampling_params=sampling or {},
    )


def test_values_of_every_kind_arrive() -> None:
    args = parse(
        stage(
            max_model_len=512,
            gpu_memory_utilization=0.5,
            enforce_eager=True,
            enable_prefix_caching=False,
            limit_mm_per_prompt={"image": 2},
            hf_overrides={"a": {"b": 1}},
            chat_template=None,
            reasoning_parser="qwen3",
        ),
        ["one", "two"],
        {},
    )
    assert args.model == "/nowhere/model"
    assert args.served_model_name == ["one", "two"]
    assert (args.max_model_len, args.gpu_memory_utilization) == (512, 0.5)
    assert (args.enforce_eager, args.enable_prefix_caching) == (True, False)
    assert args.limit_mm_per_prompt == {"image": 2}
    assert args.hf_overrides == {"a": {"b": 1}}
    assert args.reasoning_parser == "qwen3"


def test_values_that_look_like_options_arrive() -> None:
    assert parse(stage(revision="--strange"), ["x"], {}).revision == "--strange"


def test_typed_wins_over_default() -> None:
    assert parse(stage(enforce_eager=False), ["x"], {"enforce_eager": True}).enforce_eager is False
    assert parse(stage(), ["x"], {"enforce_eager": True}).enforce_eager is True


def test_every_switch_can_be_turned_off() -> None:
    """Some of vLLM's switches have no --no- form."""
    switches = [flag for flag in flags() if flag.kind == "bool" and flag.status == "works" and "llm" in flag.kinds]
    names = [flag.field for flag in switches if flag.target.startswith("engine.") and flag.field not in LOGGED]
    args = parse(stage(**dict.fromkeys(names, False)), ["x"], {})
    assert [name for name in names if getattr(args, name) is not False] == []
    assert len(names) > 50


def test_sampling_defaults_become_the_generation_config() -> None:
    config = stage({"temperature": 0.2, "max_tokens": 9}, override_generation_config={"top_k": 4})
    args = parse(config, ["x"], {})
    assert args.override_generation_config == {"top_k": 4, "temperature": 0.2, "max_new_tokens": 9}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_modle_len": 5}, "'max_modle_len' is unknown to vLLM; did you mean 'max_model_len'?"),
        ({"max_model_len": "many"}, "--max-model-len"),
        ({"dtype": "float99"}, "--dtype"),
        ({"port": 8000}, "belongs to vLLM's own HTTP server"),
        ({"api_key": "x"}, "belongs to vLLM's own HTTP server"),
        ({"model": "x"}, "is set by the stage's `model`"),
        ({"served_model_name": "x"}, "is set by --served-model-name"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineArgumentError) as caught:
        parse(stage(**arguments), ["x"], {})
    assert words in str(caught.value)
    assert "stage 3 (thinker)" in str(caught.value)


def test_unknown_sampling_default_is_named() -> None:
    with pytest.raises(EngineArgumentError, match="default_sampling_params has seed"):
        parse(stage({"seed": 1}), ["x"], {})


@pytest.mark.parametrize("name", [PROFILER, STATISTICS])
def test_what_is_logged_of_vllms_statistics_is_ours(name: str) -> None:
    assert not hasattr(parse(stage(**{name: True}), ["x"], {}), name)
    with pytest.raises(EngineArgumentError, match=f"{name} reads vLLM's statistics; remove disable_log_stats"):
        parse(stage(**{name: True, "disable_log_stats": True}), ["x"], {})
