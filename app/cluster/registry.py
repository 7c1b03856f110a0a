"""The master's table of replicas: who registered, in which state, and who is told about it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import zmq

from app import __version__
from app.cluster import messages as m
from app.cluster.adapters import AdapterBook
from app.cluster.member import Member
from app.cluster.pidfd import PidWatch
from app.cluster.restarts import Restarts
from app.cluster.rundir import StartupError
from app.cluster.transport import Authenticator, Channel, Frames, bind, is_loopback, listen_address, new_context, router
from app.settings.schema import Settings, stage_digest

logger = logging.getLogger("app.cluster")

Key = tuple[int, int]
"""(stage_id, replica_id)"""


class Registry:
    """Registers replicas, watches their heartbeats and pushes every change to the API workers at once."""

    def __init__(self, settings: Settings, ipc: str) -> None:
        self._settings = settings
        self._ipc = ipc
        self._stages = {stage.stage_id: stage for stage in settings.stages}
        self._context = new_context()
        self._members: dict[Key, Member] = {}
        self._failures: dict[Key, str] = {}
        self._restarts = Restarts()
        self._adapters = AdapterBook(Path(ipc.removeprefix("ipc://")).with_name("adapters.json"))
        self._workers: dict[bytes, tuple[str, PidWatch]] = {}
        self._up: dict[Key, asyncio.Event] = {}
        self._version = 0
        self._push_due = False
        self._housekeeping: asyncio.Task[None] | None = None
        self.on_given_up: Callable[[Key], None] = lambda _: None

    async def start(self) -> None:
        """Bind the sockets.

        Raises:
            StartupError: the tcp address cannot be bound, or it is not loopback and there is no token.
        """
        self._authenticator = Authenticator(self._context, self._settings.master.token)
        self._authenticator.start()
        socket = router(self._context)
        try:
            bind(socket, self._ipc)
            self._bind_tcp(socket)
        except Exception:
            socket.close(0)
            await self._authenticator.stop()
            raise
        self._channel = Channel(socket, self._on_message)
        self._housekeeping = asyncio.create_task(self._keep_house(), name="registry")

    def _bind_tcp(self, socket: zmq.Socket[bytes]) -> None:
        master = self._settings.master
        if not master.port:
            return
        if not master.token and not is_loopback(master.address):
            raise StartupError(
                f"--omni-master-address {master.address} is reachable from other machines: set --omni-token "
                "(or OMNI_TOKEN), the same on every host, so that only your replicas can join"
            )
        where = f"{master.address} port {master.port}"
        try:
            bind(socket, listen_address(master.address, master.port))
        except (OSError, zmq.ZMQError) as error:
            raise StartupError(f"cannot listen for headless replicas on {where}: {error.strerror}") from error

    async def stop(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._housekeeping
            for _, watch in self._workers.values():
                watch.close()
            self._channel.close()
            await self._authenticator.stop()
        self._context.term()

    # ------------------------------------------------------------------------------------------------ messages

    def _on_message(self, frames: Frames) -> None:
        identity = frames[0].bytes
        try:
            message = m.decode_registry(frames[1].buffer)
        except (msgspec.DecodeError, IndexError) as error:
            self._send(identity, m.Refused(f"not a message of protocol {m.PROTOCOL}: {error}"))
            return
        match message:
            case m.Register():
                self._on_register(identity, message)
            case m.Subscribe():
                self._on_subscribe(identity, message)
            case m.Heartbeat() | m.Ready() | m.Bye():
                self._on_report(identity, message)
            case m.KeepAdapter() | m.DropAdapter() if identity in self._workers:
                self._on_adapter(message)
            case _:
                self._send(identity, m.Refused(f"{type(message).__name__} is not for the master"))

    def _on_register(self, identity: bytes, register: m.Register) -> None:
        if reason := self._objection(register):
            logger.warning("refused a replica of stage %d on %s: %s", register.stage_id, register.host, reason)
            self._send(identity, m.Refused(reason))
            return
        replica_id = register.replica_id if register.replica_id >= 0 else self._free_replica_id(register)
        key = register.stage_id, replica_id
        self._members[key] = Member(identity, register, replica_id)
        self._failures.pop(key, None)
        self._restarts.register(key, register.address, register.pid)
        self._send(identity, m.Welcome(replica_id, self._settings.master.heartbeat_s, self._adapters.adapters))
        self._push()

    def _objection(self, register: m.Register) -> str | None:
        if register.protocol != m.PROTOCOL or register.version != __version__:
            return (
                f"it runs omni-app {register.version} (protocol {register.protocol}), the master runs {__version__} "
                f"(protocol {m.PROTOCOL}): install the same version on both hosts"
            )
        stage = self._stages.get(register.stage_id)
        if stage is None:
            return f"there is no stage {register.stage_id}; this pipeline has stages {sorted(self._stages)}"
        if not hmac.compare_digest(register.config_digest, stage_digest(stage)):
            return (
                f"its configuration of stage {stage.stage_id} ({stage.name}) differs from the master's (model "
                f"{register.model!r} there, {stage.model!r} here): start it with the same model and flags "
                "(compare `omni-app config` on both hosts)"
            )
        return None

    def _free_replica_id(self, register: m.Register) -> int:
        """The id this process had before (it re-registers after a master restart), else the lowest free one."""
        taken = {replica for stage, replica in self._members if stage == register.stage_id}
        for (stage, replica), member in self._members.items():
            # Not by host and pid: two containers on one host can have the same.
            if stage == register.stage_id and member.info.address == register.address:
                return replica
        local = self._stages[register.stage_id].num_replicas
        return next(i for i in range(local, local + len(taken) + 1) if i not in taken)

    def _on_subscribe(self, identity: bytes, subscribe: m.Subscribe) -> None:
        if subscribe.protocol != m.PROTOCOL:
            self._send(identity, m.Refused(f"the master speaks protocol {m.PROTOCOL}, not {subscribe.protocol}"))
            return
        if identity not in self._workers:
            watch = PidWatch(subscribe.pid, lambda: self._worker_died(identity))
            self._workers[identity] = subscribe.client_id, watch
        self._send(identity, self._membership())

    def _on_adapter(self, change: m.KeepAdapter | m.DropAdapter) -> None:
        self._adapters.apply(change)
        for member in self._members.values():
            self._send(member.identity, m.Adapters(self._adapters.adapters))
        self._push()

    def _worker_died(self, identity: bytes) -> None:
        client_id, _ = self._workers.pop(identity)
        gone = m.ClientGone(client_id)
        for member in self._members.values():
            self._send(member.identity, gone)

    def _on_report(self, identity: bytes, message: m.Heartbeat | m.Ready | m.Bye) -> None:
        key, member = self._member_of(identity)
        if key is None or member is None:
            if not isinstance(message, m.Bye):
                self._send(identity, m.Reregister())
            return
        member.seen = time.monotonic()
        info = member.info
        match message:
            case m.Heartbeat():
                before = info.state
                member.report(message)
                if info.state != before:
                    self._push()
            case m.Ready():
                info.state, info.capabilities, member.ready = "up", message.capabilities, True
                self._up.setdefault(key, asyncio.Event()).set()
                self._push()
            case m.Bye():
                self.lost(key, message.reason)

    def _member_of(self, identity: bytes) -> tuple[Key | None, Member | None]:
        return next(((key, x) for key, x in self._members.items() if x.identity == identity), (None, None))

    def _send(self, identity: bytes, message: m.Message) -> None:
        self._channel.send([identity, m.encode(message)])

    # ------------------------------------------------------------------------------------------------ membership

    def _push(self) -> None:
        """Tell the API workers, once per loop turn however much has changed."""
        if not self._push_due:
            self._push_due = True
            asyncio.get_running_loop().call_soon(self._push_now)

    def _push_now(self) -> None:
        self._push_due = False
        self._version += 1
        frame = m.encode(self._membership())
        for identity in self._workers:
            self._channel.send([identity, frame])

    def _membership(self) -> m.Membership:
        return m.Membership(
            self._version,
            os.getpid(),
            [x.info for x in self._members.values()],
            self._restarts.rows(),
            self._adapters.adapters,
        )

    async def _keep_house(self) -> None:
        period = self._settings.master.heartbeat_s
        before = time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            self._excuse(now - before - period)
            before = now
            for key, member in list(self._members.items()):
                if reason := member.judge(self._settings.master, now):
                    self.lost(key, reason)
                    self.on_given_up(key)
            self._push()

    def _excuse(self, late_s: float) -> None:
        """While this process could not run (stopped, frozen, starved), no heartbeat could be heard."""
        for member in self._members.values():
            member.seen += late_s
            member.moved += late_s

    # ---------------------------------------------------------------------------------------- for the supervisor

    def lost(self, key: Key, reason: str) -> None:
        """A replica is gone (its process ended, it said Bye, its heartbeats stopped): forget it, tell the workers."""
        member = self._members.pop(key, None)
        if key in self._up:
            self._up[key].clear()  # who waits for it now waits for its return
        if reason:
            self._failures[key] = reason
        if member is not None:
            logger.info("replica %d of stage %d left: %s", key[1], key[0], reason or "stopped")
            self._push()

    def expect(self, key: Key) -> None:
        """A new process is about to register under this key: what the last one said no longer counts."""
        self._failures.pop(key, None)

    def failure(self, key: Key) -> str:
        """What the replica said last about why it leaves, or an empty string."""
        return self._failures.get(key, "")

    async def wait_up(self, key: Key) -> None:
        """Wait until this replica has reported Ready (bounded by the caller)."""
        await self._up.setdefault(key, asyncio.Event()).wait()

    def drain(self, grace_s: float) -> None:
        """Tell every replica to finish within `grace_s` seconds and leave."""
        for member in self._members.values():
            self._send(member.identity, m.Drain(grace_s))
