"""Combinations that cannot work; each is told with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.settings.resolve import ConfigError, examine
from tests.certificates import write_certificate


def problems(typed: dict[str, Any], model: str = "demo") -> list[str]:
    try:
        examine({"model": model, **typed}, {}, source="flag")
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"ssl_certfile": "x"}, "--ssl-certfile and --ssl-keyfile belong together; one of them is missing"),
        ({"ssl_certfile": "/nope", "ssl_keyfile": "/nope"}, "cannot be used: [Errno 2] No such file or directory"),
        ({"ssl_cert_reqs": 2}, "--ssl-cert-reqs asks clients for certificates, so --ssl-ca-certs must say whose"),
        ({"ssl_ca_certs": "/x"}, "--ssl-ca-certs needs HTTPS"),
        ({"uds": "/nope/socket"}, "--uds: there is no directory /nope"),
        ({"log_file": "/nope/log"}, "--log-file: there is no directory /nope"),
        ({"log_file": "/"}, "--log-file: / cannot be written"),
        ({"disable_access_log_for_endpoints": ["metrics"]}, "a path begins with /, got 'metrics'"),
        ({"enable_auto_tool_choice": True}, "stage 0 (text): --enable-auto-tool-choice needs --tool-call-parser"),
        ({"enable_log_outputs": True}, "stage 0 (text): --enable-log-outputs needs --enable-log-requests"),
        ({"ray_address": "10.0.0.1:6379"}, "--ray-address means nothing without --worker-backend ray"),
        ({"worker_backend": "ray"}, "give --omni-master-address and --omni-master-port, where they reach this one"),
        (
            {"enable_per_request_metrics": True, "disable_log_stats": True},
            "--enable-per-request-metrics and --disable-log-stats exclude each other",
        ),
    ],
)
def test_combinations(typed: dict[str, Any], message: str) -> None:
    assert message in "\n".join(problems(typed))


def test_tls_as_it_should_be_and_with_the_wrong_key(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "one")
    _, other = write_certificate(tmp_path, "two")
    tls = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key), "ssl_ca_certs": str(certificate)}
    assert problems({**tls, "ssl_cert_reqs": 2}) == []
    assert "Granian" in problems({**tls, "ssl_cert_reqs": 1})[0]
    assert "cannot be used" in problems({**tls, "ssl_keyfile": str(other)})[0]
    assert f"--ssl-ca-certs {key}: cannot be used" in problems({**tls, "ssl_ca_certs": str(key)})[0]


@pytest.mark.parametrize(
    ("devices", "replicas", "sizes", "wanted"),
    [
        ("0,1", 1, {}, "name 1"),
        ("0", 1, {"tensor_parallel_size": 2}, "name 2"),
        ("0,1,2", 2, {"tensor_parallel_size": 2}, "name 2 or 4"),
        ("0,1,2,3", 2, {"tensor_parallel_size": 2}, ""),
        ("0,1", 2, {"tensor_parallel_size": 2}, ""),
        ("0,1,2,3", 1, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, ""),
        ("cpu", 1, {"tensor_parallel_size": 2}, ""),
        ("", 1, {"tensor_parallel_size": 2}, ""),
    ],
)
def test_devices_are_as_many_as_the_engines_need(
    devices: str, replicas: int, sizes: dict[str, int], wanted: str, model: str
) -> None:
    stage = {"devices": devices or None, "num_replicas": replicas, **sizes}
    found = problems({"stage_overrides": json.dumps({"0": stage})}, model)
    assert (wanted in found[0]) if wanted else found == []


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            {"stage_id": 0},
            "--omni-master-port is missing: where stages 1 (speech), 2 (picture) are, and this one, meet",
        ),
        ({"stage_id": 9, "omni_master_port": 1}, "flag --stage-id: there is no stage 9; this model has 0, 1, 2"),
        ({"omni_dp_size_local": 2}, "--omni-dp-size-local is for the stage of --stage-id"),
        ({"omni_encrypt": True}, "--omni-encrypt makes its keys of the token: give --omni-token"),
    ],
)
def test_stages_on_other_hosts(typed: dict[str, Any], message: str) -> None:
    assert message in "\n".join(problems(typed))


def test_a_stage_alone_has_as_many_replicas_as_its_flag_says(model: str) -> None:
    typed = {"model": model, "stage_id": 0, "omni_dp_size_local": 2, "omni_token": "t", "omni_encrypt": True}
    settings = examine({**typed, "stage_overrides": '{"0": {"devices": "4,5"}}'}, {}, source="flag").settings
    assert (settings.stages[0].num_replicas, settings.stages[0].devices) == (2, "4,5")
    assert settings.origins["stages[0].num_replicas"] == "flag --omni-dp-size-local"
    assert settings.local_stages == settings.stages


def test_which_stages_are_local() -> None:
    settings = examine({"model": "demo", "stage_id": 1, "omni_master_port": 1, "omni_token": "t"}, {}).settings
    assert [stage.stage_id for stage in settings.local_stages] == [1]
    assert [stage.stage_id for stage in settings.external_stages] == [0, 2]
    everything = examine({"model": "demo"}, {}).settings
    assert (len(everything.local_stages), everything.external_stages) == (3, [])
