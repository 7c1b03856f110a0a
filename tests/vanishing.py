"""A client that is gone without a word, as when its network goes away."""

from __future__ import annotations

import ctypes
import socket

_SO_ATTACH_FILTER = 26
_RETURN = 0x06


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def vanish(client: socket.socket) -> None:
    """Have the kernel drop every packet that arrives for this TCP socket: it acknowledges nothing and answers nothing.

    A socket filter of one instruction, "keep 0 bytes". Needs no privileges. Do not close the socket: that sends a FIN.
    """
    instruction = ctypes.create_string_buffer(_RETURN.to_bytes(2, "little") + bytes(6), 8)
    program = _Program(1, ctypes.addressof(instruction))
    client.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
