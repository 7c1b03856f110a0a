"""What opens a socket of ours: the shared token, and where that is asked for the encryption that is made of it."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec
import zmq
from zmq.utils import z85

from app.settings.schema import MasterConfig

USERNAME = "omni"
ZAP_DOMAIN = "omni"
NO_TOKEN = "none"
"""The password where no token is set (ZeroMQ takes no empty one): a private directory or loopback guards the socket."""

_SALT = b"omni-app curve keys 1"


class Access(msgspec.Struct, frozen=True):
    """The credentials of one server: all its processes have the same.

    With `encrypt` the sockets speak CURVE in the place of PLAIN. Its one pair of keys is derived from the token, by a
    function that is slow on purpose: who records the traffic cannot try many tokens on it.
    """

    token: str = ""
    encrypt: bool = False

    @property
    def password(self) -> str:
        """What PLAIN asks for."""
        return self.token or NO_TOKEN

    @property
    def public_key(self) -> bytes:
        """The one key that CURVE lets in, in Z85."""
        return _keys(self.token)[0]

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Let nobody in who does not know the token."""
        socket.zap_domain = ZAP_DOMAIN.encode()
        if self.encrypt:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = _keys(self.token)
        else:
            socket.plain_server = True

    def present(self, socket: zmq.Socket[bytes]) -> None:
        """Show the token to the other side, or prove that it is known."""
        if self.encrypt:
            socket.curve_publickey, socket.curve_secretkey = _keys(self.token)
            socket.curve_serverkey = self.public_key
        else:
            socket.plain_username = USERNAME.encode()
            socket.plain_password = self.password.encode()


def access_of(master: MasterConfig) -> Access:
    """The credentials that the settings name."""
    return Access(master.token, master.encrypt)


@lru_cache(maxsize=4)
def _keys(token: str) -> tuple[bytes, bytes]:
    """Public and secret key in Z85."""
    secret = z85.encode(hashlib.scrypt(token.encode(), salt=_SALT, n=1 << 14, r=8, p=1, dklen=32))
    return zmq.curve_public(secret), secret
