"""What one stage hands to the next: named tensors, packed by the producer's replica and unpacked by the consumer's.

API workers pass a pack on as it is. Small tensors travel in it; of large ones it holds refs (app/cluster/refs.py),
which the consumer maps where it is on the producer's host, and pulls from the producer's data socket where it is not
(app/cluster/pull.py).
"""

from __future__ import annotations

from math import prod

import msgspec

from app.cluster.refs import Ref

ITEM_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
}
"""Bytes of one element, by the name that the type has in torch (and in numpy, where it has one)."""


class Tensor(msgspec.Struct, array_like=True):
    """A contiguous tensor of `shape`, its elements row by row in `data`, which is flat and read only where it came from
    another stage. `torch.frombuffer(tensor.data, dtype=getattr(torch, tensor.dtype)).view(tensor.shape)` copies none.

    `ref`: on the way between two replicas it stands for the data, which is empty then.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview = memoryview(b"")
    ref: Ref | None = None

    @property
    def size(self) -> int:
        """Bytes of its elements.

        Raises:
            ValueError: there is no such dtype.
        """
        if self.dtype not in ITEM_SIZES:
            raise ValueError(f"{self.dtype!r} is no dtype of a tensor; there are {', '.join(ITEM_SIZES)}")
        return prod(self.shape) * ITEM_SIZES[self.dtype]


class Source(msgspec.Struct, array_like=True, frozen=True):
    """Who holds what a pack refers to: `stage` by name, for people; identity.host_identity() of its host; and where its
    data socket listens, for those who cannot map its memory.
    """

    stage: str
    host: str
    address: str


class Pack(msgspec.Struct, array_like=True):
    """One handover. `source` is set where a tensor is a ref."""

    tensors: dict[str, Tensor]
    source: Source | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Pack)


def encode(pack: Pack) -> bytes:
    """Encode a pack; the data of its tensors is copied."""
    return _encoder.encode(pack)


def decode(packed: bytes | memoryview) -> Pack:
    """Decode a pack; the data of its tensors are views into it.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(packed)
