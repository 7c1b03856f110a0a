"""Typed access to what the application factory puts on `app.state`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from pathlib import Path

    from litestar import Litestar

    from app.pipeline.orchestrator import Orchestrator
    from app.routes.videowork import VideoWork
    from app.settings.schema import Settings
    from app.store.generated import GeneratedFiles
    from app.store.videos import Videos
    from app.store.voices import Voices
    from app.telemetry.metrics import Metrics


def orchestrator(app: Litestar) -> Orchestrator:
    """The orchestrator of this API worker."""
    return cast("Orchestrator", _state(app).orchestrator)


def settings(app: Litestar) -> Settings:
    """The resolved settings of the server."""
    return cast("Settings", _state(app).settings)


def metrics(app: Litestar) -> Metrics:
    """What this API worker counts."""
    return cast("Metrics", _state(app).metrics)


def stopping(app: Litestar) -> asyncio.Event:
    """Set once the server is told to stop: nothing new begins, what runs may finish."""
    return cast("asyncio.Event", _state(app).stopping)


def draining(app: Litestar) -> asyncio.Event:
    """Set once the time to finish is over: what still runs ends now."""
    return cast("asyncio.Event", _state(app).draining)


def uploads(app: Litestar) -> set[asyncio.Timeout]:
    """How long the server still waits for each of the bodies that are being read."""
    return cast("set[asyncio.Timeout]", _state(app).uploads)


def generated(app: Litestar) -> GeneratedFiles:
    """The files that wait to be fetched, those of the server's other API workers too."""
    return cast("GeneratedFiles", _state(app).generated)


def videos(app: Litestar) -> Videos:
    """The videos that are made or wait to be fetched, those of the server's other API workers too."""
    return cast("Videos", _state(app).videos)


def video_work(app: Litestar) -> VideoWork:
    """The videos that this API worker makes in the background."""
    return cast("VideoWork", _state(app).video_work)


def order_lock(app: Litestar, kind: Literal["scale", "sleep"]) -> Path:
    """The lock of administrators' orders of one kind; all API workers of the server have the same."""
    return cast("Path", _state(app).run_dir) / f"{kind}.lock"


def voices(app: Litestar) -> Voices:
    """The voices that clients have uploaded, through any API worker."""
    return cast("Voices", _state(app).voices)


def model_names(app: Litestar) -> list[str]:
    """The names that a request may ask for: the served ones, the default first, then those of loaded adapters."""
    return [*settings(app).served_model_names, *(adapter.name for adapter in orchestrator(app).membership.adapters)]


def _state(app: Litestar) -> Any:
    return app.state
