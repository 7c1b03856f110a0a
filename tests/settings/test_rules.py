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
