"""A replica's tensors on their way to and from other stages: packed for the next one, read from the one before."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from app.cluster import messages as m
from app.cluster import refs, tensors
from app.cluster.pull import Puller, PullError, PullTimeoutError
from app.cluster.refs import Ref, RefStore
from app.cluster.tensors import Pack, Source, Tensor
from app.engines.base import EngineError

INLINE = 256 << 10
"""Bytes of one event that travel through an API worker at most: from there on, shared memory costs less than copies."""


class Exchange:
    """Packs what this replica produced, holding what is large in `refs`, and reads what others did.

    `source`: what others have to know to reach `refs`. `whole`: requests here begin when all of their input has come.
    """

    def __init__(self, refs: RefStore, source: Source, puller: Puller, *, whole: bool = False) -> None:
        self.refs = refs
        self.whole = whole
        self._source = source
        self._puller = puller

    def pack(self, client: bytes, request_id: str, number: int, named: Mapping[str, Tensor]) -> m.Tensors:
        """The event that hands `named` over, the request's Tensors event of that `number`.

        Raises:
            EngineError: 503, as much is held as may be.
            ValueError: the data of a tensor does not fit its dtype and shape.
        """
        room = min(self.refs.threshold, INLINE)
        packed: dict[str, Tensor] = {}
        held: list[Ref] = []
        for name, tensor in named.items():
            data = memoryview(tensor.data)
            if data.nbytes != tensor.size:
                raise ValueError(f"{name} has {data.nbytes} bytes; {tensor.shape} of {tensor.dtype} are {tensor.size}")
            if data.nbytes <= room:
                room -= data.nbytes
                packed[name] = Tensor(tensor.dtype, tensor.shape, data)
                continue
            ref = self.refs.hold(client, request_id, data.cast("B"), number)
            if ref is None:
                self.refs.let_go(held)
                raise self._full()
            held.append(ref)
            packed[name] = Tensor(tensor.dtype, tensor.shape, ref=ref)
        body = tensors.encode(Pack(packed, self._source if held else None))
        return m.Tensors(number, memoryview(body), len(body) + sum(ref.size for ref in held), bool(held))

    def keep(self, event: m.Tensors) -> None:
        """Count what cannot be sent yet as held.

        Raises:
            EngineError: 503, as much is held as may be.
        """
        if not self.refs.reserve(len(event.packed)):
            raise self._full()

    def unkeep(self, event: m.Tensors) -> None:
        """It is sent now, or will not be."""
        self.refs.unreserve(len(event.packed))

    def _full(self) -> EngineError:
        """The refusal of a stage whose successor does not keep up."""
        held = f"{len(self.refs)} tensors, {self.refs.size >> 20} MiB"
        message = f"stage {self._source.stage} holds {held} for stages that do not keep up; try again later"
        return EngineError(m.Failed(503, message, "service_unavailable_error", code=m.TENSORS_FULL))

    async def read(self, packed: bytes) -> dict[str, Tensor]:
        """The tensors of a pack by name. Nothing is copied where they are on this host.

        Raises:
            EngineError: 503, their producer holds them no longer or is gone; 504, it does not send them.
        """
        pack = tensors.decode(packed)
        for tensor in pack.tensors.values():
            if tensor.ref is not None:
                assert pack.source is not None
                tensor.data, tensor.ref = await self._fetch(pack.source, tensor.ref), None
        return pack.tensors

    async def _fetch(self, source: Source, ref: Ref) -> memoryview:
        try:
            if source.host == self._source.host:
                with suppress(PermissionError):  # a process that hides its descriptors: another user's, or not dumpable
                    return refs.read(ref)
            return await self._puller.pull(source.address, ref)
        except PullTimeoutError as error:
            raise _lost(source, 504, "timeout_error", error) from None
        except (OSError, PullError) as error:
            raise _lost(source, 503, "service_unavailable_error", error) from None


def _lost(source: Source, status: int, kind: str, error: Exception) -> EngineError:
    message = f"what stage {source.stage} produced for this request cannot be read: {error}"
    return EngineError(m.Failed(status, message, kind, code=m.INPUT_LOST))
