"""The replica program: one process, one engine. The same program locally and under `omni-app headless`.

`python -m app.engines.worker`; the first line of its standard input is a ReplicaSpec as JSON, the rest is its lifeline.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket as stdlib_socket
import sys
import time
import traceback
from contextlib import suppress

import msgspec
import uvloop
import zmq

from app import __version__
from app.cluster import messages as m
from app.cluster import notices
from app.cluster.process import die_with_parent
from app.cluster.pull import Puller
from app.cluster.transport import Authenticator, Channel, Frames, bind, new_context, router, watched_dealer
from app.engines import noise
from app.engines.adapters import AdapterSync
from app.engines.clients import Clients
from app.engines.kinds import build_engine
from app.engines.spec import EXIT_FAILED, EXIT_REFUSED, ReplicaSpec
from app.settings.devices import is_further_node
from app.settings.engines import engine_of
from app.settings.schema import stage_digest
from app.telemetry.logging import configure_logging

logger = logging.getLogger("app.replica")

_LOOK_S = 0.25
_REGISTER_S = 0.5
"""How soon after a registration another one makes sense."""
_LAST_WORDS_MS = 500
"""How long the exit waits for Bye and the last events to be written, where somebody is there to take them."""


class Replica:
    """Owns the sockets, the engine and the requests of one replica process."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec
        self._identity = os.urandom(8)
        self._context = new_context()
        self._engine = build_engine(spec)
        self._adapters = AdapterSync(self._engine, spec.stage.stage_id)
        self._clients = Clients(self._engine, spec.stage, lambda: self._state)
        self._capabilities: m.Capabilities | None = None
        self._state: m.ReplicaState = "starting"
        self._heartbeat_s, self._chosen_id = 1.0, -1
        self._tick = 0
        self._welcomed = asyncio.Event()
        self._leave: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------------------------------------ life

    async def serve(self) -> int:
        """Run until told to leave; the exit code."""
        self._open()
        self._watch_parent()
        work = asyncio.create_task(self._work(), name="replica")
        work.add_done_callback(self._work_ended)
        code = await self._leave
        work.cancel()
        await asyncio.wait([work])
        return await self._close(code)

    def _work_ended(self, work: asyncio.Task[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            traceback.print_exception(error)
            self._tell(m.Bye(f"{type(error).__name__}: {error}"))
            self.leave(EXIT_FAILED)

    def _open(self) -> None:
        spec = self._spec
        self._authenticator = Authenticator(self._context, spec.access)
        self._authenticator.start()
        data = router(self._context, spec.access)
        bind(data, spec.bind)
        pull_address = self._address = data.get_string(zmq.LAST_ENDPOINT)
        if spec.bind_tcp:
            bind(data, spec.bind_tcp)
            pull_address = data.get_string(zmq.LAST_ENDPOINT)
        self._data = self._clients.listen(data, pull_address, Puller(self._context, spec.access))
        registry, self._auth_watch = watched_dealer(self._context, spec.registry, self._identity, spec.access)
        self._registry = Channel(registry, self._on_registry)
        self._register()

    def _register(self) -> None:
        stage = self._spec.stage
        self._registered = time.monotonic()
        self._tell(
            m.Register(
                protocol=m.PROTOCOL,
                version=__version__,
                model=stage.source or stage.model,
                stage_id=stage.stage_id,
                replica_id=self._spec.replica_id,
                config_digest=stage_digest(stage),
                address=self._address,
                host=stdlib_socket.gethostname(),
                pid=os.getpid(),
                engine=engine_of(stage),
                before=self._chosen_id,
                names=self._spec.served_model_names,
                wanted=self._spec.wanted_id,
            )
        )

    def _register_again(self) -> None:
        """Once, however many heartbeats waited for a master to come back: each of them is answered so."""
        if time.monotonic() - self._registered > _REGISTER_S:
            self._register()

    async def _work(self) -> None:
        await self._wait_for_master()
        heart = asyncio.create_task(self._beat(), name="heartbeat")
        try:
            self._capabilities = await self._engine.start()
            await self._adapters.settle()
            self._state = "up"
            self._tell(m.Ready(self._capabilities))
            notices.tell(self._spec.notify_fd, notices.UP)
            self._clients.slots = self._capabilities.slots
            while True:
                before = time.monotonic()
                await asyncio.sleep(_LOOK_S)
                await self._engine.check_health()
                unheard_s = time.monotonic() - before - _LOOK_S  # this process could not run, and heard nobody
                self._clients.tidy(unheard_s, self._spec.slow_client_timeout)
        finally:
            heart.cancel()

    async def _wait_for_master(self) -> None:
        """The load starts only after the master has accepted us: a mismatch must not cost a model load."""
        waits = [asyncio.create_task(x.wait()) for x in (self._welcomed, self._auth_watch.refused)]
        try:
            while not self._welcomed.is_set():
                done, _ = await asyncio.wait(waits, timeout=10, return_when=asyncio.FIRST_COMPLETED)
                if self._auth_watch.refused.is_set():
                    self._refused(f"the master does not accept our token: {self._auth_watch.cause}")
                    await asyncio.sleep(1)
                elif not done:
                    logger.warning("waiting for the master at %s", self._spec.registry)
        finally:
            for wait in waits:
                wait.cancel()

    async def _beat(self) -> None:
        while True:
            self._tick += 1
            self._tell(m.Heartbeat(self._state, self._tick, self._load()))
            await asyncio.sleep(self._heartbeat_s)

    def _load(self) -> m.Load:
        return msgspec.structs.replace(self._engine.load(), held=self._clients.held)

    def _refused(self, reason: str) -> None:
        sys.stderr.write(f"the master refused this replica: {reason}\n")
        self.leave(EXIT_REFUSED)

    def leave(self, code: int) -> None:
        if not self._leave.done():
            self._leave.set_result(code)

    async def _close(self, code: int) -> int:
        self._clients.cancel_all()
        try:
            await asyncio.wait_for(self._engine.stop(), timeout=10)
        except TimeoutError:
            logger.warning("the engine did not stop within 10 s")
        self._tell(m.Bye())
        self._auth_watch.close()
        for channel in (self._registry, self._data):
            channel.close(_LAST_WORDS_MS)
        await self._authenticator.stop()
        self._context.term()
        return code

    # ------------------------------------------------------------------------------------------------ leaving

    def _watch_parent(self) -> None:
        """Standard input is the lifeline: it ends when the parent dies in whatever way."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal)
        with suppress(OSError, ValueError):
            loop.add_reader(sys.stdin.fileno(), self._on_lifeline)

    def _on_lifeline(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.leave(0)

    def _on_signal(self) -> None:
        self._drain(self._spec.shutdown_timeout)

    def _drain(self, grace_s: float) -> None:
        """Asked again it goes on: who stops a whole process group asks us, and our parent, which may kill, does too."""
        if self._state == "draining":
            return
        if self._state != "up":
            self.leave(0)
            return
        self._state = "draining"
        self._tell(m.Heartbeat(self._state, self._tick, self._load()))
        self._drainer = asyncio.create_task(self._leave_when_idle(grace_s), name="drain")

    async def _leave_when_idle(self, grace_s: float) -> None:
        end = time.monotonic() + grace_s
        while self._clients.busy and time.monotonic() < end:  # noqa: ASYNC110 - bounded
            await asyncio.sleep(0.05)
        self.leave(0)

    # ------------------------------------------------------------------------------------------------ registry channel

    def _tell(self, message: m.Message) -> None:
        self._registry.send([m.encode(message)])

    def _on_registry(self, frames: Frames) -> None:
        match m.decode_registry(frames[0].buffer):
            case m.Welcome() as welcome:
                self._heartbeat_s, self._chosen_id = welcome.heartbeat_s, welcome.replica_id
                self._adapters.want(welcome.adapters)
                if not self._welcomed.is_set():
                    notices.tell(self._spec.notify_fd, notices.WELCOMED, self._address)
                    logger.info("replica %d of %s, at %s", welcome.replica_id, self._spec.stage.name, self._address)
                self._welcomed.set()
                if self._capabilities is not None:  # a restarted master meets a replica that has long been up
                    self._tell(m.Ready(self._capabilities))
            case m.Adapters(adapters):
                self._adapters.want(adapters)
            case m.Refused(reason):
                self._refused(reason)
            case m.Reregister() if not self._leave.done():
                self._register_again()
            case m.Drain(grace_s):
                self._drain(grace_s)
            case m.ClientGone(client_id):
                self._clients.drop(client_id.encode())


async def _main(spec: ReplicaSpec) -> int:
    return await Replica(spec).serve()


async def _further_node(spec: ReplicaSpec) -> int:
    if spec.registry:
        sys.stderr.write(
            "ConfigError: --node-rank above 0 is for `omni-app headless`: a server has the first host of a replica\n"
        )
        return EXIT_FAILED
    from app.engines.llm.node import Node

    return await Node(spec).serve()


def main() -> None:
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit("the parent ended before it said what to run")
    spec = msgspec.json.decode(line, type=ReplicaSpec)
    die_with_parent(spec.parent_pid)
    notices.keep(spec.notify_fd)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    configure_logging(spec.log)
    noise.silence()
    os.environ.update(spec.stage.env)
    try:
        code = uvloop.run(_further_node(spec) if is_further_node(spec.stage) else _main(spec))
    except zmq.ZMQError as error:
        sys.stderr.write(f"cannot listen on {spec.bind}: {error}\n")
        code = EXIT_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # engine libraries leave non-daemon threads behind that would hold up the exit


if __name__ == "__main__":
    main()
