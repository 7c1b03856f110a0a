"""A further host of a language model's replica: vLLM's executor alone, for the EngineCore that runs on the first one.

It ends with the first node, and its parent starts it again: torch's process group cannot take a member back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from app.cluster import notices
from app.engines.llm import arguments
from app.engines.llm.startup import DEFAULT_PORT, StartPlan
from app.engines.spec import EXIT_FAILED, ReplicaSpec

logger = logging.getLogger("app.replica")

_RETRY_S = 0.5
_SAY_S = 10.0
_ATTEMPT_S = 5.0
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A first node that lost its power or its cable is noticed after 25 s."""


class Node:
    """Waits for the first node, starts vLLM's workers of this one, and watches both."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec
        given = spec.stage.engine_args
        self._first = (str(given["master_addr"]), int(given.get("master_port") or DEFAULT_PORT))
        self._place = "{}:{}".format(*self._first)
        self._loop = asyncio.get_running_loop()
        self._leave: asyncio.Future[int] = self._loop.create_future()

    async def serve(self) -> int:
        """Until told to leave (0), or until the first node or a worker has ended (EXIT_FAILED)."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signum, self._end, 0)
        with suppress(OSError, ValueError):
            self._loop.add_reader(sys.stdin.fileno(), self._on_lifeline)
        work = asyncio.create_task(self._follow(), name="node")
        code = await self._leave
        work.cancel()
        await asyncio.wait([work])
        return code

    def _end(self, code: int) -> None:
        if not self._leave.done():
            self._leave.set_result(code)

    def _on_lifeline(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self._loop.remove_reader(sys.stdin.fileno())
            self._end(0)

    async def _follow(self) -> None:
        reader, writer = await self._reach()
        notices.tell(self._spec.notify_fd, notices.WELCOMED)
        # torch's store on the first node says nothing; its end ends the connection
        silence = asyncio.ensure_future(_end_of(reader))
        # vLLM's workers die with the thread that started them: this one lives as long as the process
        work = self._loop.run_in_executor(ThreadPoolExecutor(1, "vllm-parent"), self._compute)
        try:
            await asyncio.wait([silence, work], return_when=asyncio.FIRST_COMPLETED)
            if work.done() and (error := work.exception()) is not None:
                traceback.print_exception(error)
            else:
                logger.error("%s has ended", "a worker of vLLM" if work.done() else f"the first node, {self._place},")
            self._end(EXIT_FAILED)
        finally:
            silence.cancel()
            writer.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the place where the nodes meet, which the first one opens when it loads."""
        said = 0.0
        while True:
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection(*self._first), _ATTEMPT_S)
                break
            except (OSError, TimeoutError) as error:
                if time.monotonic() - said > _SAY_S:
                    said = time.monotonic()
                    logger.warning("waiting for the first node at %s: %s", self._place, error or "no answer")
                await asyncio.sleep(_RETRY_S)
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return reader, writer

    def _compute(self) -> None:
        """Run the workers to their end."""
        spec = self._spec
        plan = StartPlan(spec.stage.engine_args, spec.log.engine_level, spec.scratch)
        plan.prepare()
        args = arguments.parse(spec.stage, spec.served_model_names, plan.defaults())
        config = plan.configure(args, headless=True)
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor

        executor = MultiprocExecutor(config, monitor_workers=False)
        notices.tell(spec.notify_fd, notices.UP)
        executor.start_worker_monitor(inline=True)


async def _end_of(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        await reader.read()
