"""Changing how many replicas of a stage run on the server's host, as far as that can be."""

from __future__ import annotations

from app.cluster.messages import Scale
from app.pipeline.orchestrator import Orchestrator
from app.protocol.errors import ApiError
from app.protocol.status import ScaleRequest
from app.settings.devices import parse_devices, shares_devices, world_size
from app.settings.schema import Settings, StageConfig


async def scale(orchestrator: Orchestrator, settings: Settings, asked: ScaleRequest) -> None:
    """Have the master start or drain replicas; returns when it has begun.

    Raises:
        ApiError: 400, there is no such stage here, or there are no devices; 503, the master is silent.
    """
    stage = _stage(settings, asked.stage)
    running = dict(orchestrator.membership.wanted).get(stage.stage_id, stage.num_replicas)
    devices = _devices(stage, asked, running)
    wanted = (stage.stage_id, asked.replicas)
    await orchestrator.tell_master(Scale(*wanted, devices), lambda membership: wanted in membership.wanted)


def _stage(settings: Settings, asked: int | str) -> StageConfig:
    found = next((x for x in settings.stages if str(asked) in (str(x.stage_id), x.name)), None)
    if found is None:
        known = ", ".join(f"{stage.stage_id} ({stage.name})" for stage in settings.stages)
        raise _refused(f"there is no stage {asked!r}; the stages are {known}", "stage")
    if found in settings.external_stages:
        message = f"stage {found.stage_id} ({found.name}) runs on other hosts: start or stop `omni-app headless` there"
        raise _refused(message, "stage")
    return found


def _devices(stage: StageConfig, asked: ScaleRequest, running: int) -> str:
    """The devices for what is added, checked."""
    added, world = asked.replicas - running, world_size(stage)
    if not asked.devices:
        if asked.replicas > stage.num_replicas and not shares_devices(stage):
            message = (
                f"stage {stage.name} has devices for {stage.num_replicas} replicas ({stage.devices}): name those of "
                "the new ones"
            )
            raise _refused(message, "devices")
        return ""
    try:
        devices = parse_devices(asked.devices)
    except ValueError as error:
        raise _refused(str(error), "devices") from None
    if added < 1 or devices.count(",") + 1 != added * world:
        raise _refused(f"{max(added, 0)} replicas are added, of {world} devices each; got {devices}", "devices")
    if not shares_devices(stage) and (taken := set(devices.split(",")) & set(stage.devices.split(","))):
        raise _refused(
            f"stage {stage.name} has {', '.join(sorted(taken))} already ({stage.devices}); name others", "devices"
        )
    return devices


def _refused(message: str, param: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")
