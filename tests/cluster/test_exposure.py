"""Where replicas listen for other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cluster import exposure
from app.cluster.exposure import replica_endpoint
from app.cluster.registry import Registry
from app.cluster.rundir import StartupError
from app.cluster.supervisor import Supervisor
from app.settings.schema import Settings
from tests.clusters import TOKEN, with_tcp
from tests.handover import pipeline


@pytest.mark.parametrize(("host", "endpoint"), [("127.0.0.1", "tcp://127.0.0.1:*"), ("::1", "tcp://[::1]:*")])
def test_an_address_of_this_machine_becomes_an_endpoint(host: str, endpoint: str) -> None:
    assert replica_endpoint(host, "") == endpoint


@pytest.mark.parametrize(
    ("host", "token", "words"),
    [
        ("192.0.2.1", "", "this replica would listen on 192.0.2.1, which other machines reach: set --omni-token"),
        ("no-such-host.invalid", TOKEN, "--omni-replica-address no-such-host.invalid is not an address"),
    ],
)
def test_nobody_listens_openly_or_nowhere(host: str, token: str, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        replica_endpoint(host, token)


def test_all_addresses_are_none_that_others_can_connect_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposure, "local_address_towards", lambda host, port: "127.0.0.7")
    assert replica_endpoint("0.0.0.0", TOKEN) == "tcp://127.0.0.7:*"


def specs(config: Settings) -> list[str]:
    supervisor = Supervisor(config, Registry(config, "ipc:///nowhere/registry.sock"), Path("/nowhere"))
    return [supervisor._spec(stage, 0).bind_tcp for stage in config.stages]


def test_local_replicas_can_be_pulled_from_where_others_may_want_it() -> None:
    """By the stages behind them, which may run elsewhere once there is a registry on tcp."""
    assert specs(pipeline(1, 1, 0)) == ["", "", ""]
    assert specs(with_tcp(pipeline(1, 1, 0))) == ["tcp://127.0.0.1:*", "tcp://127.0.0.1:*", ""]
