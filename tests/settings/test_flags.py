"""The table itself, and that every flag reaches its place from every source."""

from __future__ import annotations

import atexit
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec
import pytest

from app.engines.diffusion.options import DiffusionOptions
from app.engines.speech.options import SpeechOptions
from app.settings.flags import Flag, by_key, by_variable, flags
from app.settings.resolve import ConfigError, examine
from app.settings.schema import (
    NODE_ARGUMENTS,
    LogConfig,
    MasterConfig,
    MediaConfig,
    ServerConfig,
    Settings,
    SpeechConfig,
    StageConfig,
)
from tests.certificates import write_certificate

SECTIONS: dict[type[msgspec.Struct], str] = {
    ServerConfig: "server",
    MasterConfig: "master",
    MediaConfig: "media",
    SpeechConfig: "speech",
    LogConfig: "log",
    StageConfig: "stage",
}
INPUTS = {
    "model",
    "api_key_file",
    "deploy_config",
    "stage_configs_path",
    "strategy_config",
    "stage_overrides",
    "omni_token_file",
    "default_sampling_params",
    "forced_aligner",
    "forced_aligner_config",
    "forced_aligner_device",
}
"""Flags that say where settings come from; their tests are in the files of those who read them."""

WORKING = [flag for flag in flags() if flag.status == "works"]
OURS = [flag for flag in WORKING if flag.group != "vllm"]
OF_EDGES = "async-chunk"
"""The flag of stages that others feed; its tests are in test_edges.py."""

ENGINE = [flag for flag in OURS if flag.target.startswith(("engine.", "stage.")) and flag.name != OF_EDGES]
PLACED = [flag for flag in OURS if flag.target != "input" and flag.name != OF_EDGES]
NOT_ACCEPTED = [flag for flag in flags() if flag.status != "works"]
SHARED = [(flag, kind) for flag in ENGINE for kind in ("diffusion", "speech") if {"llm", kind} <= set(flag.kinds)]


def by_name(flag: Flag) -> str:
    return flag.name


FILES = Path(mkdtemp(prefix="ot"))
atexit.register(shutil.rmtree, FILES)
CERTIFICATE, KEY = write_certificate(FILES, "server")

SAMPLES = {
    "dtype": "float16",
    "stage-id": "0",
    "quantization-config": '{"image": 2}',
    "allowed-origins": "https://one.test",
    "disable-access-log-for-endpoints": "/metrics",
    "log-file": str(FILES / "log"),
    "public-base-url": "https://ai.example.org",
    "voices-database": "sqlite:////tmp/voices.sqlite3",
    "ssl-certfile": str(CERTIFICATE),
    "ssl-keyfile": str(KEY),
    "ssl-ca-certs": str(CERTIFICATE),
    "ssl-cert-reqs": "2",
    **dict.fromkeys(("diffusion-kv-cache-skip-steps", "diffusion-kv-cache-skip-layers"), "0-9,20"),
    "video-output-transport": '{"enable_device_postprocess": false}',
    "speaker-embeddings": '{"image": "2.npy"}',
    **dict.fromkeys(
        ("cfg-parallel-size", "vae-patch-parallel-size", "text-encoder-tp-size", "num-gpus", "hsdp-replicate-size"), "2"
    ),
}
RAY = {"worker_backend": "ray", "omni_master_port": 7000, "omni_token": "t"}
GUIDED = {"cfg_parallel_size": 2}
OFFLOADED = {"enable_distributed_layerwise_offload": True}
EIGHT_BITS = {"diffusion_kv_cache_dtype": "fp8"}
SHARDED = {"use_hsdp": True, "hsdp_shard_size": 2}
TLS = {"ssl_certfile": str(CERTIFICATE), "ssl_keyfile": str(KEY), "ssl_ca_certs": str(CERTIFICATE)}
COMPANIONS = dict.fromkeys((*TLS, "ssl_cert_reqs"), TLS) | {
    "enable_auto_tool_choice": {"tool_call_parser": "hermes"},
    "omni_encrypt": {"omni_token": "t"},
    "omni_dp_size_local": {"stage_id": 0},
    "enable_log_outputs": {"enable_log_requests": True},
    "diffusion_compile_dynamic": {"diffusion_compile_granularity": "regional"},
    "cache_config": {"cache_backend": "first_block"},
    "enable_cache_dit_summary": {"cache_backend": "cache_dit"},
    "lora_backend": {"lora_path": ["/usr"]},
    "lora_scale": {"lora_path": ["/usr"]},
    **dict.fromkeys(("worker_backend", "ray_address"), RAY),
    **dict.fromkeys(("vae_patch_parallel_size", "text_encoder_tp_size", "num_gpus"), GUIDED),
    **dict.fromkeys(
        (*SHARDED, "hsdp_replicate_size", "hsdp_weight_load_strategy", "enable_broadcast_weight_load"), SHARDED
    ),
    "ulysses_mode": {"ulysses_degree": 2},
    **dict.fromkeys(("diffusion_kv_cache_skip_steps", "diffusion_kv_cache_skip_layers"), EIGHT_BITS),
    **dict.fromkeys(("dlo_no_use_allgather", "dlo_resident_layers", "dlo_host_registration_limit_gib"), OFFLOADED),
    "dlo_use_allgather": OFFLOADED | {"num_gpus": 2},
    "host_weight_runtime_root": {"host_weight_runtime_mode": "preferred"},
    "custom_pipeline_args": {"diffusion_load_format": "custom_pipeline"},
}
"""What else has to be given for the flag to be accepted."""


def companions(flag: Flag) -> dict[str, Any]:
    return {key: value for key, value in COMPANIONS.get(flag.key, {}).items() if key != flag.key}


def sample(flag: Flag) -> str:
    """A legal text that is not the default (a directory that exists, where one is asked for)."""
    if flag.choices:
        return next(choice for choice in flag.choices if choice != flag.default)
    if flag.name in SAMPLES:
        return SAMPLES[flag.name]
    if flag.kind == "bool":
        return "false" if flag.default else "true"
    texts = {"str": "/usr", "list": "one", "json": '{"image": 2}', "count": "3k", "size": "3MiB", "any": "some"}
    if flag.kind in texts:
        return texts[flag.kind]
    if flag.kind == "float" and flag.most == 1:
        return "0.75"
    return "7" if flag.least is None or flag.least <= 7 else str(int(flag.least))


def place(settings: Settings, flag: Flag) -> Any:
    section, _, field = flag.target.rpartition(".")
    if section == "engine":
        return settings.stages[0].engine_args[field]
    if section == "stage":
        return getattr(settings.stages[0], field)
    return getattr(getattr(settings, section) if section else settings, field)


def origin(settings: Settings, flag: Flag) -> str:
    section, _, field = flag.target.rpartition(".")
    path = {"engine": f"stages[0].engine_args.{field}", "stage": f"stages[0].{field}"}.get(section, flag.target)
    return settings.origins[f"{path}.{next(iter(flag.value(sample(flag))))}" if flag.kind == "json" else path]


def test_names_and_variables_are_unique() -> None:
    spellings = Counter(option for flag in flags() for option in flag.options)
    variables = Counter(flag.variable for flag in flags() if flag.status != "refused")
    assert [name for name, count in (spellings + variables).items() if count > 1] == []


def test_variables_lose_a_leading_omni() -> None:
    assert by_key()["omni_master_port"].variable == "OMNI_MASTER_PORT"
    assert by_key()["port"].variable == "OMNI_PORT"


def test_the_table_has_a_row_for_each_input() -> None:
    assert {flag.key for flag in WORKING if flag.target == "input"} == INPUTS


def test_what_is_not_accepted_says_why_when_typed(model: str) -> None:
    with pytest.raises(ConfigError) as caught:
        examine({"model": model, **{flag.key: sample(flag) for flag in NOT_ACCEPTED}}, {}, source="flag")
    assert caught.value.problems == [f"flag --{flag.name}: {flag.refusal}" for flag in NOT_ACCEPTED]
    assert all(flag.reason for flag in NOT_ACCEPTED)


def test_what_is_not_accepted_is_no_variable_either(model: str) -> None:
    refused = {flag.variable for flag in NOT_ACCEPTED} - by_variable().keys()
    warnings = examine({"model": model}, dict.fromkeys(refused, "1")).warnings
    assert len(warnings) == len(refused)


@pytest.mark.parametrize("without", ["disable-log-stats", "enable-per-request-metrics"])  # they exclude each other
def test_all_other_arguments_of_vllm_arrive(without: str, model: str, tmp_path: Path) -> None:
    others = [flag for flag in WORKING if flag.group == "vllm" and flag.name != without]
    others = [flag for flag in others if flag.field not in NODE_ARGUMENTS]  # tests/settings/test_rules_nodes.py
    expected = {flag.field: flag.value(sample(flag)) for flag in others}
    file = tmp_path / "deploy.yaml"
    file.write_text(json.dumps({"stages": [{"stage_id": 0, **expected}]}))
    for typed, environ in (
        ({flag.key: sample(flag) for flag in others}, {}),
        ({}, {flag.variable: sample(flag) for flag in others}),
        ({"deploy_config": str(file)}, {}),
        ({"stage_overrides": {"0": expected}}, {}),
    ):
        assert examine({"model": model, **typed}, environ).settings.stages[0].engine_args == expected


@pytest.mark.parametrize(
    "flag", [flag for flag in flags() if flag.group != "vllm" and flag.status != "refused"], ids=by_name
)
def test_there_is_help(flag: Flag) -> None:
    assert flag.help.strip()


@pytest.fixture
def serving(request: pytest.FixtureRequest, flag: Flag) -> str:
    """A model with a stage that takes the flag."""
    own = {("diffusion",): "picture_model", ("speech",): "speech_model"}
    return str(request.getfixturevalue(own.get(flag.kinds, "model")))


@pytest.mark.parametrize("flag", PLACED, ids=by_name)
def test_typed_value_arrives(flag: Flag, serving: str) -> None:
    settings = examine({"model": serving, **companions(flag), flag.key: sample(flag)}, {}, source="flag").settings
    assert place(settings, flag) == flag.value(sample(flag))
    assert origin(settings, flag) == f"flag --{flag.name}"


@pytest.mark.parametrize("flag", PLACED, ids=by_name)
def test_variable_arrives(flag: Flag, serving: str) -> None:
    resolution = examine({"model": serving, **companions(flag)}, {flag.variable: sample(flag)})
    assert place(resolution.settings, flag) == flag.value(sample(flag))
    assert origin(resolution.settings, flag) == f"env {flag.variable}"
    assert resolution.warnings == []


@pytest.mark.parametrize("flag", ENGINE, ids=by_name)
def test_yaml_value_arrives(flag: Flag, serving: str, tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(json.dumps({"stages": [{"stage_id": 0, flag.field: flag.value(sample(flag))}]}))
    settings = examine({"model": serving, "deploy_config": str(file), **companions(flag)}, {}).settings
    assert place(settings, flag) == flag.value(sample(flag))
    assert origin(settings, flag) == f"{file}:1"


@pytest.mark.parametrize("flag", ENGINE, ids=by_name)
def test_stage_override_arrives(flag: Flag, serving: str) -> None:
    overrides = {"0": {flag.field: flag.value(sample(flag))}}
    settings = examine({"model": serving, "stage_overrides": overrides, **companions(flag)}, {}).settings
    assert place(settings, flag) == flag.value(sample(flag))


@pytest.mark.parametrize(("flag", "kind"), SHARED, ids=lambda part: part if isinstance(part, str) else part.name)
def test_a_flag_of_several_engines_reaches_each(flag: Flag, kind: str, picture_model: str, speech_model: str) -> None:
    serving = {"diffusion": picture_model, "speech": speech_model}[kind]
    settings = examine({"model": serving, flag.key: sample(flag)}, {}, source="flag").settings
    assert place(settings, flag) == flag.value(sample(flag))


def test_the_diffusion_engine_has_an_option_for_each_of_its_flags() -> None:
    theirs = {flag.field for flag in WORKING if "diffusion" in flag.kinds and flag.target.startswith("engine.")}
    options = {field.name for field in msgspec.structs.fields(DiffusionOptions)}
    assert options == theirs | {"device", "default_sampling_params"}


def test_the_speech_engine_has_an_option_for_each_of_its_flags() -> None:
    theirs = {flag.field for flag in WORKING if "speech" in flag.kinds and flag.target.startswith("engine.")}
    options = {field.name for field in msgspec.structs.fields(SpeechOptions)}
    assert options == theirs | {"device", "default_sampling_params"}


@pytest.mark.parametrize("section", [ServerConfig, MasterConfig, MediaConfig, SpeechConfig, LogConfig, StageConfig])
def test_defaults_are_those_of_the_schema(section: type[msgspec.Struct]) -> None:
    name = SECTIONS[section]
    fields = {field.name: field for field in msgspec.structs.fields(section)}
    for flag in flags():
        if flag.target.startswith(f"{name}."):
            assert flag.default == default_of(fields[flag.field]), flag.name


@pytest.mark.parametrize("section", [ServerConfig, MasterConfig, MediaConfig, SpeechConfig, LogConfig])
def test_every_field_has_a_flag(section: type[msgspec.Struct]) -> None:
    internal = {"heartbeat_s"}  # part of the protocol with the replicas, not a choice
    name = SECTIONS[section]
    known = {flag.field for flag in flags() if flag.target.startswith(f"{name}.")}
    assert {field.name for field in msgspec.structs.fields(section)} - internal == known


@pytest.mark.parametrize(
    "flag", [flag for flag in WORKING if flag.target.split(".")[0] in SECTIONS.values()], ids=by_name
)
def test_somebody_reads_the_field(flag: Flag) -> None:
    """Whoever consumes a field of Settings reads it by its name, outside of the package that resolves it."""
    package = Path(__file__).parents[2] / "app"
    readers = [
        path
        for path in package.rglob("*.py")
        if path.parent.name != "settings" and re.search(rf"\.{flag.field}\b", path.read_text())
    ]
    assert readers


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    assert field.default_factory is not msgspec.NODEFAULT
    return field.default_factory()


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("port", 70000, "must be at most 65535, got 70000"),
        ("workers", 0, "must be at least 1, got 0"),
        ("boot", "later", "expected one of blocking, background; got 'later'"),
        ("gpu_memory_utilization", 1.5, "must be at most 1, got 1.5"),
        ("cache_backend", "step_cache", "step_cache is not accepted: no pipeline of diffusers has it; use cache_dit"),
    ],
)
def test_bounds_and_choices(key: str, given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_key()[key].value(given)
