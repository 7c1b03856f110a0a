"""Large bytes between two processes of one host: the producer keeps them in memory, a ref names them, readers map them.

The producer owns a ref until it is released, or the client is gone that asked for the work; time is the last resort.
Each is an anonymous file (memfd), which a reader opens through the owner's descriptor in /proc. The kernel frees it
with its owner, whatever ended that: no name stays anywhere, nothing has to be swept, and the size of /dev/shm, 64 MiB
in most containers, does not matter.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

logger = logging.getLogger("app.cluster")

CAPACITY = 1 << 30
"""Bytes that one store holds."""
MAX_HELD = 256
"""Refs that one store holds: each is an open file, of which a process may have 1024 by default."""
TTL_S = 3600.0
"""After so long nobody comes for it any more; every ordinary end releases it sooner."""


class Ref(msgspec.Struct, array_like=True, frozen=True):
    """`size` bytes behind descriptor `fd` of process `pid`; `name` tells them from what has that number later."""

    pid: int
    fd: int
    name: str
    size: int


class _Held(msgspec.Struct):
    ref: Ref
    client: bytes
    request_id: str
    number: int
    expires: float


class RefStore:
    """What one process holds for others: by client and request, until released; at most `capacity` bytes.

    `threshold`: smaller bytes travel in their message. What waits inside the process for somebody who does not keep up
    counts as held too (`reserve`).
    """

    def __init__(self, threshold: int, capacity: int = CAPACITY, ttl_s: float = TTL_S) -> None:
        self.threshold = threshold
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._held: dict[str, _Held] = {}
        self._size = 0
        self._told = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Bytes held, reserved ones included."""
        return self._size

    def put(self, client: bytes, request_id: str, data: bytes | memoryview) -> Ref | None:
        """Hold a copy of `data`; None for what shall travel itself: not above the threshold, or no room for it."""
        if len(data) <= self.threshold:
            return None
        ref = self.hold(client, request_id, data)
        if ref is None:
            waiting = f"{len(self._held)} large results of {self._size >> 20} MiB wait to be fetched"
            self._tell(f"{waiting}; what finds no room goes through the socket, which is slower")
        return ref

    def hold(self, client: bytes, request_id: str, data: bytes | memoryview, number: int = 0) -> Ref | None:
        """Hold a copy of `data`, however small; None if there is no room. `number`: see `release`."""
        if self._size + len(data) > self._capacity or len(self._held) >= MAX_HELD:
            return None
        try:
            ref = _write(data)
        except OSError as error:
            self._tell(f"no memory can be shared ({error})")
            return None
        self._held[ref.name] = _Held(ref, client, request_id, number, time.monotonic() + self._ttl_s)
        self._size += ref.size
        return ref

    def reserve(self, size: int) -> bool:
        """Count `size` bytes more as held, until `unreserve`; False if there is no room for them."""
        if self._size + size > self._capacity:
            return False
        self._size += size
        return True

    def unreserve(self, size: int) -> None:
        self._size -= size

    def piece(self, name: str, offset: int, length: int) -> bytes | None:
        """Up to `length` bytes of a ref from `offset`; None if it has been let go of."""
        held = self._held.get(name)
        return os.pread(held.ref.fd, length, offset) if held is not None else None

    def let_go(self, refs: Iterable[Ref]) -> None:
        """Nobody needs these."""
        names = {ref.name for ref in refs}
        self._free(lambda held: held.ref.name in names)

    def release(self, client: bytes, request_id: str, through: int | None = None) -> None:
        """What this request produced is needed no longer.

        With `through` that holds for what has no higher `number`, and the rest will be used in its turn: it does not
        expire before it would if it were new.
        """
        mine = [held for held in self._held.values() if held.request_id == request_id and held.client == client]
        used = [held for held in mine if through is None or held.number <= through]
        for held in mine:
            held.expires = time.monotonic() + self._ttl_s
        self.let_go(held.ref for held in used)

    def drop(self, client: bytes) -> None:
        """The client is gone."""
        self._free(lambda held: held.client == client)

    def expire(self) -> None:
        """Let go of what nobody has released in time."""
        now = time.monotonic()
        self._free(lambda held: held.expires < now)

    def close(self) -> None:
        """Let go of everything."""
        self._free(lambda held: True)

    def _free(self, doomed: Callable[[_Held], bool]) -> None:
        for held in [held for held in self._held.values() if doomed(held)]:
            del self._held[held.ref.name]
            self._size -= held.ref.size
            os.close(held.ref.fd)

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            logger.warning("%s", what)


def _write(data: bytes | memoryview) -> Ref:
    name = f"omni-{secrets.token_hex(8)}"
    fd = os.memfd_create(name)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.close(fd)
        raise
    return Ref(os.getpid(), fd, name, len(data))


def readable(pid: int) -> bool:
    """Whether this process may open what that one holds: same host, same user, nothing in between that forbids it."""
    with suppress(OSError):
        os.stat(f"/proc/{pid}/fd/0")
        return True
    return False


def read(ref: Ref) -> memoryview:
    """The bytes, mapped and not copied; they stay until the view is released, whatever becomes of the ref.

    Raises:
        OSError: the owner is gone, or has let go of them.
    """
    fd = os.open(f"/proc/{ref.pid}/fd/{ref.fd}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != f"/memfd:{ref.name} (deleted)":
            raise FileNotFoundError(f"{ref.name} has been let go of")
        return memoryview(mmap.mmap(fd, ref.size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ))
    finally:
        os.close(fd)
