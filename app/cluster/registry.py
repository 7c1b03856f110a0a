"""The master's table of replicas: who registered, in which state, and who is told about it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import zmq

from app.cluster import messages as m
from app.cluster.access import access_of
from app.cluster.adapters import AdapterBook
from app.cluster.joining import objection
from app.cluster.member import Member
from app.cluster.pidfd import PidWatch
from app.cluster.restarts import Restarts
from app.cluster.roster import Key, Roster
from app.cluster.rundir import StartupError
from app.cluster.transport import Authenticator, Channel, Frames, bind, is_loopback, listen_address, new_context, router
from app.settings.schema import Settings

logger = logging.getLogger("app.cluster")


class Registry:
    """Registers replicas, watches their heartbeats and pushes every change to the API workers at once."""

    def __init__(self, settings: Settings, ipc: str) -> None:
        self._settings = settings
        self._ipc = ipc
        self._stages = {stage.stage_id: stage for stage in settings.stages}
        self._context = new_context()
        self._members = Roster()
        self._failures: dict[Key, str] = {}
        self._restarts = Restarts()
        self._adapters = AdapterBook(Path(ipc.removeprefix("ipc://")).with_name("adapters.json"))
        self._asleep: dict[int, int] = {}
        self._workers: dict[bytes, tuple[str, PidWatch]] = {}
        self._up: dict[Key, asyncio.Event] = {}
        self._wanted = {stage.stage_id: 0 for stage in settings.external_stages}
        for stage in settings.local_stages:
            self._wanted[stage.stage_id] = stage.num_replicas
            for replica_id in range(stage.num_replicas):
                self._members.reserve((stage.stage_id, replica_id))
        self._changed = asyncio.Event()
        self._version = 0
        self._push_due = False
        self._housekeeping: asyncio.Task[None] | None = None
        self.on_given_up: Callable[[Key], None] = lambda _: None
        self.on_scale: Callable[[m.Scale], None] = lambda _: None

    async def start(self) -> None:
        """Bind the sockets.

        Raises:
            StartupError: the tcp address cannot be bound, or it is not loopback and there is no token.
        """
        access = access_of(self._settings.master)
        self._authenticator = Authenticator(self._context, access)
        self._authenticator.start()
        socket = router(self._context, access)
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
            case m.SetAsleep(stage_id, level) if identity in self._workers:
                self._asleep = {x: y for x, y in {**self._asleep, stage_id: level}.items() if y}
                self._push()
            case m.Scale() if identity in self._workers:
                self.on_scale(message)
            case m.Gone(address, reason):
                if member := self._members.at(address):
                    self.lost(member.key, reason)
            case _:
                self._send(identity, m.Refused(f"{type(message).__name__} is not for the master"))

    def _on_register(self, identity: bytes, register: m.Register) -> None:
        if reason := self._objection(register):
            logger.warning("refused a replica of stage %d on %s: %s", register.stage_id, register.host, reason)
            self._send(identity, m.Refused(reason))
            return
        replica_id = register.asked_id
        if replica_id < 0:
            replica_id = self._members.free_id(register.stage_id, register.address, register.before)
        member = Member(identity, register, replica_id)
        self._members.add(member)
        self._failures.pop(member.key, None)
        self._restarts.register(member.key, register.address, register.pid)
        self._send(identity, m.Welcome(replica_id, self._settings.master.heartbeat_period, self._adapters.adapters))
        self._push()

    def _objection(self, register: m.Register) -> str:
        if taken := self._members.taken(register):
            return taken
        stage = self._stages.get(register.stage_id)
        return objection(register, stage, sorted(self._stages), self._settings.served_model_names)

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
        member = self._members.of(identity)
        if member is None:
            if not isinstance(message, m.Bye):
                self._send(identity, m.Reregister())
            return
        member.seen = time.monotonic()
        match message:
            case m.Heartbeat():
                before = member.info.state
                member.report(message)
                if member.info.state != before:
                    self._push()
            case m.Ready():
                member.start(message.capabilities)
                self._up.setdefault(member.key, asyncio.Event()).set()
                self._push()
            case m.Bye():
                self.lost(member.key, message.reason)

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
        self._changed.set()
        self._changed = asyncio.Event()
        frame = m.encode(self._membership())
        for identity in self._workers:
            self._channel.send([identity, frame])

    def _membership(self) -> m.Membership:
        return m.Membership(
            self._version,
            os.getpid(),
            self._members.infos(),
            self._restarts.rows(),
            self._adapters.adapters,
            sorted(self._wanted.items()),
            sorted(self._asleep.items()),
        )

    async def _keep_house(self) -> None:
        period = self._settings.master.heartbeat_period
        before = time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            self._excuse(now - before - period)
            before = now
            for member in list(self._members.values()):
                if reason := member.judge(self._settings.master, now):
                    self.lost(member.key, reason)
                    self.on_given_up(member.key)
            self._members.forget_old()
            self._push()

    def _excuse(self, late_s: float) -> None:
        """While this process could not run (stopped, frozen, starved), no heartbeat could be heard."""
        for member in self._members.values():
            member.seen += late_s
            member.moved += late_s

    # ---------------------------------------------------------------------------------------- for the supervisor

    def lost(self, key: Key, reason: str) -> None:
        """A replica is gone (its process ended, it said Bye, its heartbeats stopped): tell the workers at once."""
        member = self._members.drop(key, reason)
        if key in self._up:
            self._up[key].clear()  # who waits for it now waits for its return
        if reason:
            self._failures[key] = reason
        if member is not None:
            logger.info("replica %d of stage %d left: %s", key[1], key[0], reason or "stopped")
        self._push()

    def expect(self, key: Key) -> None:
        """A new process is about to register under this key: what the last one said no longer counts."""
        self._members.reserve(key)
        self._failures.pop(key, None)

    def retire(self, key: Key) -> None:
        """No local replica goes by this key any more."""
        self.lost(key, "")
        self._members.free(key)
        self._failures.pop(key, None)
        self._push()

    def free_id(self, stage_id: int) -> int:
        """The lowest replica id of the stage that nobody has, here or elsewhere."""
        return self._members.free_id(stage_id)

    def want(self, stage_id: int, replicas: int) -> None:
        """So many replicas of the stage shall run on this host."""
        self._wanted[stage_id] = replicas
        self._push()

    def states(self, stage_id: int) -> Counter[m.ReplicaState]:
        """How many replicas of the stage are in each state."""
        return self._members.states(stage_id)

    async def change(self) -> None:
        """Wait for the next change, or the next look at the heartbeats (bounded by the caller)."""
        await self._changed.wait()

    def failure(self, key: Key) -> str:
        """What the replica said last about why it leaves, or an empty string."""
        return self._failures.get(key, "")

    async def wait_up(self, key: Key) -> None:
        """Wait until this replica has reported Ready (bounded by the caller)."""
        await self._up.setdefault(key, asyncio.Event()).wait()

    def drain(self, key: Key, grace_s: float) -> None:
        """A replica shall finish within `grace_s` seconds and leave; the API workers send it nothing from now on."""
        member = self._members.get(key)
        if member is not None:
            member.drain()
            self._send(member.identity, m.Drain(grace_s))
            self._push()
