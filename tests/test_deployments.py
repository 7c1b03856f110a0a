"""What docs/kubernetes.md and docs/slurm.md have people run: every flag, variable, port and path is one of ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from litestar import Litestar

from app.cli import cli
from app.console.options import typed_values
from app.routes import handlers
from app.settings.flags import by_variable
from app.settings.resolve import examine
from app.settings.schema import Settings

DOCS = Path(__file__).resolve().parent.parent / "docs"
MANIFESTS = [
    manifest
    for block in re.findall(r"```yaml\n(.*?)```", (DOCS / "kubernetes.md").read_text(), re.DOTALL)
    for manifest in yaml.safe_load_all(block)
]
PODS = {x["metadata"]["name"]: x["spec"]["template"] for x in MANIFESTS if x["kind"] == "Deployment"}
SCRIPTS = re.findall(r"```bash\n(.*?)```", (DOCS / "slurm.md").read_text(), re.DOTALL)
_ELSEWHERE = "10.0.0.7"
"""What stands for a value that is known on the cluster only."""


def resolved(words: list[str], variables: dict[str, str]) -> Settings:
    """The settings of a command line of omni-app, whose variables all have to be flags that work."""
    program, command, *arguments = words
    assert program == "omni-app"
    assert {name for name in variables if by_variable()[name].status != "works"} == set()
    params = cli.commands[command].make_context(command, arguments).params
    return examine({**typed_values(params), "model": params["model"]}, variables, source="flag").settings


def of_pod(pod: dict[str, Any]) -> Settings:
    [container] = pod["spec"]["containers"]
    variables = {entry["name"]: entry.get("value", _ELSEWHERE) for entry in container["env"]}
    return resolved(container["args"], variables)


def service(name: str) -> dict[str, Any]:
    return next(x for x in MANIFESTS if x["kind"] == "Service" and x["metadata"]["name"] == name)


def test_the_head_is_probed_where_it_listens() -> None:
    settings, [head] = of_pod(PODS["omni-app-head"]), PODS["omni-app-head"]["spec"]["containers"]
    assert (settings.server.boot, settings.server.host) == ("background", "0.0.0.0")
    assert {port["containerPort"] for port in head["ports"]} == {settings.server.port, settings.master.port}
    paths = {route.path for route in Litestar(handlers).routes}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert head[probe]["httpGet"]["port"] == settings.server.port
        assert head[probe]["httpGet"]["path"] in paths


def test_stages_find_the_head_before_it_is_ready() -> None:
    head = of_pod(PODS["omni-app-head"])
    stage = of_pod(PODS["omni-app-pictures"])
    meeting = service(stage.master.address)
    assert meeting["spec"]["publishNotReadyAddresses"] is True
    assert meeting["spec"]["selector"].items() <= PODS["omni-app-head"]["metadata"]["labels"].items()
    assert [port["port"] for port in meeting["spec"]["ports"]] == [head.master.port] == [stage.master.port]
    assert [port["port"] for port in service("omni-app")["spec"]["ports"]] == [head.server.port]
    assert stage.local_stages[0].kind == "diffusion"


@pytest.mark.parametrize("name", PODS)
def test_pods_share_the_secret_and_have_time_to_finish(name: str) -> None:
    settings, pod = of_pod(PODS[name]), PODS[name]["spec"]
    assert settings.master.token == _ELSEWHERE
    [secret] = [x["valueFrom"]["secretKeyRef"] for x in pod["containers"][0]["env"] if x["name"] == "OMNI_TOKEN"]
    assert f"generic {secret['name']} --from-literal={secret['key']}=" in (DOCS / "kubernetes.md").read_text()
    assert pod["terminationGracePeriodSeconds"] > settings.master.shutdown_timeout
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("script", SCRIPTS, ids=["every node a replica", "one replica on all nodes"])
def test_slurm_scripts(script: str) -> None:
    exported = dict(re.findall(r"(OMNI_\w+)=(\S+)", "\n".join(SCRIPTS[0 : SCRIPTS.index(script) + 1])))
    variables = {name: _ELSEWHERE if value.startswith("$") else value for name, value in exported.items()}
    lines = [line.removesuffix("&") for line in script.splitlines() if line.startswith("srun")]
    head, stage = (resolved(shlex.split(line[line.index("omni-app") :]), variables) for line in lines)
    assert head.master.address == stage.master.address == _ELSEWHERE
    assert (head.master.port, stage.master.stage_id) == (stage.master.port, 0)
    assert head.stages[0].model == stage.stages[0].model
    ranks = [x.stages[0].engine_args.get("node_rank", 0) for x in (head, stage)]
    assert ranks == ([0, 1] if "node-rank" in script else [0, 0])
