"""Real sockets: who has the token gets in, in order, and nothing but their frames reaches a handler."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from app.cluster import transport
from app.cluster.access import Access
from app.cluster.transport import Authenticator, AuthWatch, Channel, Frames, new_context, router, watched_dealer
from tests.clusters import eventually, free_port
from tests.servers import ROOT

Handler = Callable[[Frames], None]


@asynccontextmanager
async def server(address: str, token: str, handler: Handler, *, encrypt: bool = False) -> AsyncIterator[Channel]:
    context, access = new_context(), Access(token, encrypt)
    authenticator = Authenticator(context, access)
    authenticator.start()
    socket = router(context, access)
    socket.bind(address)
    channel = Channel(socket, handler)
    try:
        yield channel
    finally:
        channel.close()
        await authenticator.stop()
        context.term()


@asynccontextmanager
async def client(
    address: str, token: str, handler: Handler = lambda _: None, identity: bytes = b"me", *, encrypt: bool = False
) -> AsyncIterator[tuple[Channel, AuthWatch]]:
    context = new_context()
    socket, watch = watched_dealer(context, address, identity, Access(token, encrypt))
    channel = Channel(socket, handler)
    try:
        yield channel, watch
    finally:
        watch.close()
        channel.close()
        context.term()


def addresses(path: Path) -> list[str]:
    return [f"ipc://{path}/s.sock", f"tcp://127.0.0.1:{free_port()}", f"tcp://[::1]:{free_port()}"]


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["ipc", "tcp4", "tcp6"])
@pytest.mark.parametrize("token", ["", "secret"])
async def test_the_same_token_lets_in(tmp_path: Path, kind: int, token: str) -> None:
    address = addresses(tmp_path)[kind]
    answers: list[bytes] = []

    def echo(frames: Frames) -> None:
        channel.send([frames[0].bytes, b"you said " + frames[1].bytes])

    async with (
        server(address, token, echo) as channel,
        client(address, token, lambda x: answers.append(x[0].bytes)) as (mine, watch),
    ):
        mine.send([b"hello"])
        await eventually(lambda: answers == [b"you said hello"])
        assert not watch.refused.is_set()


@pytest.mark.parametrize(("theirs", "ours"), [("secret", "wrong"), ("secret", ""), ("", "anything")])
async def test_another_token_never_reaches_the_handler(
    tmp_path: Path, theirs: str, ours: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    address, heard = f"ipc://{tmp_path}/s.sock", []
    async with server(address, theirs, heard.append), client(address, ours) as (mine, watch):
        mine.send([b"let me in"])
        await asyncio.wait_for(watch.refused.wait(), 5)
        async with client(address, theirs, identity=b"friend") as (friend, _):
            friend.send([b"hello"])
            await eventually(lambda: len(heard) > 0)
        assert [frames[1].bytes for frames in heard] == [b"hello"]
    assert "secret" not in caplog.text


async def test_without_authentication_nothing_gets_in(tmp_path: Path) -> None:
    address, heard = f"ipc://{tmp_path}/s.sock", []
    context = new_context()
    async with server(address, "", heard.append):
        with context.socket(zmq.DEALER) as bare:
            bare.connect(address)
            bare.send(b"no mechanism at all")
            await asyncio.sleep(0.3)
        assert heard == []
    context.term()


async def test_a_flood_arrives_complete_and_in_order(tmp_path: Path) -> None:
    address, heard = f"ipc://{tmp_path}/s.sock", []
    async with (
        server(address, "", lambda x: heard.append(int(x[1].bytes))),
        client(address, "") as (mine, _),
    ):
        for number in range(5000):
            mine.send([str(number).encode()])
        await eventually(lambda: len(heard) == 5000)
        assert heard == list(range(5000))


async def test_both_directions_at_once_lose_no_wake_up(tmp_path: Path) -> None:
    """Sending may take the edge of the descriptor; a message would then wait until the next one comes."""
    address, answers = f"ipc://{tmp_path}/s.sock", []

    def echo(frames: Frames) -> None:
        channel.send([frames[0].bytes, frames[1].bytes])

    def again(frames: Frames) -> None:
        answers.append(frames[0].bytes)
        if len(answers) < 500:
            mine.send([str(len(answers)).encode()])

    async with server(address, "", echo) as channel, client(address, "", again) as (mine, _):
        mine.send([b"0"])
        await eventually(lambda: len(answers) == 500)


async def test_a_handler_that_fails_loses_one_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address, heard = f"ipc://{tmp_path}/s.sock", []
    async with (
        server(address, "", lambda x: heard.append(int(x[1].bytes))),
        client(address, "") as (mine, _),
    ):
        for frame in (b"1", b"not a number", b"3"):
            mine.send([frame])
        await eventually(lambda: heard == [1, 3])
    assert "a message was dropped" in caplog.text


async def test_a_peer_that_comes_back_takes_over_its_identity(tmp_path: Path) -> None:
    address, heard, old, new = f"ipc://{tmp_path}/s.sock", [], [], []
    async with server(address, "", heard.append) as channel, client(address, "", old.append) as (first, _):
        first.send([b"1"])
        await eventually(lambda: len(heard) == 1)
        async with client(address, "", new.append) as (second, _):
            second.send([b"2"])
            await eventually(lambda: len(heard) == 2)
            channel.send([b"me", b"for the new one"])
            await eventually(lambda: len(new) == 1)
    assert old == []


async def test_a_closed_channel_swallows_what_is_sent(tmp_path: Path) -> None:
    async with server(f"ipc://{tmp_path}/s.sock", "", lambda _: None) as channel:
        channel.close()
        channel.send([b"me", b"too late"])
        channel.close()


async def test_a_handler_may_close_its_own_channel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"ipc://{tmp_path}/s.sock"
    heard: list[Frames] = []

    def close(frames: Frames) -> None:
        heard.append(frames)
        channel.close()

    async with server(address, "", close) as channel, client(address, "") as (mine, _):
        mine.send([b"1"])
        mine.send([b"2"])
        await eventually(lambda: len(heard) == 1)
        await asyncio.sleep(0.05)
        assert len(heard) == 1
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert transport.is_loopback(host) is loopback


def test_addresses_have_the_form_that_zeromq_wants() -> None:
    assert transport.tcp_address("10.0.0.1", 5) == "tcp://10.0.0.1:5"
    assert transport.tcp_address("fe80::1", "*") == "tcp://[fe80::1]:*"
    assert transport.listen_address("127.0.0.1", 5) == "tcp://127.0.0.1:5"
    assert transport.listen_address("localhost", "*") in ("tcp://127.0.0.1:*", "tcp://[::1]:*")
    with pytest.raises(OSError, match=r"not known|No address|Temporary failure"):
        transport.listen_address("no-such-host.invalid", 1)


def test_the_address_towards_this_machine_is_its_own() -> None:
    assert transport.local_address_towards("127.0.0.1", 9) == "127.0.0.1"


async def test_last_words_are_written_before_the_context_ends(tmp_path: Path) -> None:
    address, heard = f"ipc://{tmp_path}/s.sock", []
    async with server(address, "", lambda x: heard.append(x[1].bytes)):
        context = new_context()
        socket, watch = watched_dealer(context, address, b"me", Access())
        mine = Channel(socket, lambda _: None)
        mine.send([b"hello"])
        await eventually(lambda: heard == [b"hello"])
        mine.send([b"x" * (8 << 20)])
        mine.send([b"bye"])
        watch.close()
        mine.close(linger_ms=5000)
        await asyncio.to_thread(context.term)
        await eventually(lambda: len(heard) == 3)
        assert heard[-1] == b"bye"


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["ipc", "tcp4", "tcp6"])
async def test_with_encryption_the_same_token_lets_in(tmp_path: Path, kind: int) -> None:
    address, heard = addresses(tmp_path)[kind], []
    async with (
        server(address, "secret", lambda x: heard.append(x[1].bytes), encrypt=True),
        client(address, "secret", encrypt=True) as (channel, watch),
    ):
        channel.send([b"hello"])
        await eventually(lambda: heard == [b"hello"])
        assert not watch.refused.is_set()


@pytest.mark.parametrize(
    ("token", "theirs", "ours"), [("a guess", True, True), ("secret", True, False), ("secret", False, True)]
)
async def test_another_key_never_reaches_the_handler_and_is_told_so(
    tmp_path: Path, token: str, theirs: bool, ours: bool
) -> None:
    """Nor does one side that encrypts talk to one that does not."""
    address, heard = addresses(tmp_path)[1], []
    async with (
        server(address, "secret", lambda x: heard.append(x[1].bytes), encrypt=theirs),
        client(address, token, encrypt=ours) as (channel, watch),
    ):
        channel.send([b"hello"])
        await asyncio.wait_for(watch.refused.wait(), 20)
        assert watch.cause == "--omni-token or --omni-encrypt differs from the master's"
        assert heard == []


@pytest.mark.parametrize("encrypt", [True, False])
async def test_who_listens_on_the_wire(encrypt: bool) -> None:
    """Without encryption everything can be read there, token and all."""
    port, seen, heard = free_port(), bytearray(), list[bytes]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            seen.extend(data)
            writer.write(data)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)
        for each in (writer, far_writer):
            each.close()

    wire = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    through = f"tcp://127.0.0.1:{wire.sockets[0].getsockname()[1]}"
    async with (
        wire,
        server(f"tcp://127.0.0.1:{port}", "the token", lambda x: heard.append(x[1].bytes), encrypt=encrypt),
        client(through, "the token", encrypt=encrypt) as (channel, _),
    ):
        channel.send([b"what nobody else shall read"])
        await eventually(lambda: heard == [b"what nobody else shall read"])
        assert (b"what nobody else shall read" in seen) is not encrypt
        assert (b"the token" in seen) is not encrypt


DROPPED = """
import gc, zmq
from app.cluster.transport import new_context

class Application:
    def __init__(self):
        self.itself, self.context = self, new_context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect("ipc:///nowhere")
        self.socket.send(b"unread")

gc.disable()
sockets = [Application().socket.underlying for _ in range(5)]
print(gc.collect() > 0)
"""


def test_what_is_dropped_unclosed_does_not_hold_up_the_collector() -> None:
    """No signal interrupts that, and no time limit of a test."""
    line = [sys.executable, "-W", "ignore::ResourceWarning", "-c", DROPPED]
    done = subprocess.run(line, cwd=ROOT, timeout=30, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
