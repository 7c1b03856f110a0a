"""What runs while an application runs: its hold on the master of its server, its orchestrator, the watch over both."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn, cast

from litestar import Litestar

from app.asgi import failure_message
from app.cluster.rundir import RunDir, StartupError, sweep
from app.cluster.runtime import Attachment, Interrupted
from app.granian_worker import exit_with_parent
from app.routes.body import end_uploads
from app.routes.videowork import VideoWork
from app.signals import Shutdown, watch_shutdown
from app.telemetry.metrics import Metrics
from app.telemetry.orchmonitor import keep_monitoring, monitor_path

if TYPE_CHECKING:
    from app.factory import OmniApp

logger = logging.getLogger("app.server")

LAST_WORDS_S = 0.5
"""What requests have to end themselves when the time to drain is over; what waits for a replica then is cut off."""
MEMBERSHIP_S = 10.0
"""How long a worker that has attached to a ready master may wait to hear of its replicas."""


@asynccontextmanager
async def run_engine(app: Litestar) -> AsyncIterator[None]:
    """Litestar lifespan: attach to the master of this server, connect the orchestrator, watch both."""
    app = cast("OmniApp", app)
    exit_with_parent()
    sweep()
    run_dir = RunDir.locate(app.mount)
    run_dir.raise_failure()
    with watch_shutdown() as shutdown:
        app.state.stopping, app.state.draining = shutdown.event, asyncio.Event()
        app.state.video_work = VideoWork(app.state.draining)
        attachment = Attachment(run_dir, shutdown)
        tasks = [asyncio.create_task(_drain(app, shutdown), name="drain")]
        try:
            if app.settings.server.boot == "background":
                tasks.append(asyncio.create_task(_boot_and_keep(app, attachment), name="boot"))
            elif await _boot(app, attachment):
                tasks.append(asyncio.create_task(_keep(app, attachment), name="master watch"))
            tasks.append(asyncio.create_task(app.state.generated.keep_swept(), name="sweep generated files"))
            if app.settings.log.orch_monitor:
                tasks.append(asyncio.create_task(_monitor(app), name="orchestrator monitor"))
            yield
        finally:
            shutdown.event.set()
            await app.state.video_work.finish()
            _end_requests(app)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await app.state.orchestrator.stop()
            app.state.metrics.close()
            attachment.release()


async def _boot(app: OmniApp, attachment: Attachment) -> bool:
    """Attach and connect; False if a shutdown signal came first, which the server is about to act on anyway."""
    try:
        settings = await attachment.attach(app.settings)
    except Interrupted:
        return False
    app.state.metrics = Metrics(attachment.run_dir.path)
    orchestrator = app.use(settings)
    await orchestrator.start()
    if not await orchestrator.wait_ready(MEMBERSHIP_S):
        logger.warning("the master is ready, but after %g s no stage has announced its replicas", MEMBERSHIP_S)
    return True


async def _keep(app: OmniApp, attachment: Attachment) -> None:
    """Replace a lost master; a server that cannot have one ends itself, so that its own supervisor starts it anew."""
    try:
        await attachment.keep(lambda: app.state.orchestrator.reconnect())
    except Interrupted:
        return
    except StartupError as error:
        die(f"the engine is lost: {error}")


async def _boot_and_keep(app: OmniApp, attachment: Attachment) -> None:
    try:
        if not await _boot(app, attachment):
            return
    except StartupError as error:
        die(failure_message(error))
    await _keep(app, attachment)


async def _monitor(app: OmniApp) -> None:
    path = monitor_path()
    logger.info("--enable-orch-monitor: a line is written to %s every second", path)
    await keep_monitoring(lambda: app.state.orchestrator, path)


async def _drain(app: OmniApp, shutdown: Shutdown) -> None:
    """What runs when a stop signal comes has `shutdown_timeout` seconds, or until the signal is repeated."""
    await shutdown.event.wait()
    limit = app.settings.master.shutdown_timeout
    try:
        await asyncio.wait_for(shutdown.at_once.wait(), limit)
    except TimeoutError:
        logger.warning("requests still run %g s after the stop signal (--shutdown-timeout); aborting them", limit)
    _end_requests(app)
    await asyncio.sleep(LAST_WORDS_S)
    await app.state.orchestrator.stop()


def _end_requests(app: OmniApp) -> None:
    app.state.draining.set()
    end_uploads(app)


def die(message: str) -> NoReturn:
    """End this worker at once, and with it the server that watches it, with a message and exit code 1."""
    print(f"[ERROR] {message}", file=sys.stderr, flush=True)  # noqa: T201 - seen whatever the host's logging does
    os._exit(1)
