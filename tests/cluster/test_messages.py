"""What is encoded comes back equal, and what is not a message of the channel is told apart."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster import messages as m
from app.cluster.refs import Ref

ADAPTER = m.Adapter(0, "name", "/path", True)
INFO = m.ReplicaInfo(1, 2, "tcp://[::1]:5", "suspect", "host", 7, m.Load(1, 2, 3), m.Capabilities(["chat"], 9, [], []))
EVENTS: list[m.AnyEvent] = [
    m.Accepted(),
    m.Delta(0, "tëxt", 2),
    m.Chunk(1, b'{"delta":{}}'),
    m.Finish(0, "stop", b'"\\n"'),
    m.Usage(3, 4, b"{}"),
    m.Extra(b"{}"),
    m.Document(b"{}"),
    m.Named("event", b"{}"),
    m.Progress(1, 4),
    m.Picture(0, memoryview(b"file"), "png", 8, 8, 1, 2),
    m.Picture(1, memoryview(b""), "png", 8, 8, 1, ref=Ref(1, 2, "omni-x", 5000)),
    m.Audio(0, memoryview(b"piece"), "wav", 24000, 480, "words"),
    m.Video(memoryview(b"file"), 8, 8, 5, 16.0, 1),
    m.Video(memoryview(b""), 8, 8, 5, 16.0, 1, ref=Ref(1, 2, "omni-x", 5000)),
    m.Tensors(3, memoryview(b"pack"), 4 << 20, True),
    m.Consumed(2),
    m.Done(),
    m.Failed(400, "no", "invalid_request_error", "messages", "too_long"),
]
REGISTRY: list[m.Message] = [
    m.Register(m.PROTOCOL, "1", "model", 0, -1, "digest", "ipc:///x", "host", 1),
    m.Welcome(1, 0.5),
    m.Refused("reason"),
    m.Reregister(),
    m.Heartbeat("up", 4, m.Load(1, 0, 9, 5000)),
    m.Ready(m.Capabilities(["chat"], 10, ["text"], ["text", "audio"], 8)),
    m.Subscribe(m.PROTOCOL, "client", 5),
    m.Membership(3, 4, [INFO], [(0, 1, 2)], [ADAPTER], [(0, 2)]),
    m.ClientGone("client"),
    m.Adapters([ADAPTER]),
    m.KeepAdapter(ADAPTER),
    m.DropAdapter(0, "name"),
    m.SetAsleep(0, 2),
    m.Drain(1.5),
    m.Bye("reason"),
    m.Gone("tcp://[::1]:5", "exit code 1"),
    m.Scale(0, 3, "2,3"),
]
DATA: list[m.Message] = [
    m.Submit("r", "chat", "name", 5, True),
    m.Append("r", True),
    m.Abort("r"),
    m.Release("r"),
    m.Release("r", 7),
    m.Credit("r", 3),
    m.Call("c", "tokenize"),
    m.Result("c", m.Failed(404, "unknown")),
    m.Ping(),
    m.Pull(1, "omni-x", 2 << 20, 1 << 20),
    m.Pulled(1, 2 << 20),
    m.Events([("r", event) for event in EVENTS]),
]


def test_the_examples_are_all_there_is() -> None:
    assert {type(x) for x in REGISTRY} == set(get_args(m.RegistryMessage))
    assert {type(x) for x in DATA} == set(get_args(m.DataMessage))
    assert {type(x) for x in EVENTS} == set(get_args(m.AnyEvent))


@pytest.mark.parametrize("message", REGISTRY, ids=lambda x: type(x).__name__)
def test_registry_messages_come_back_equal(message: m.Message) -> None:
    assert m.decode_registry(m.encode(message)) == message
    with pytest.raises(msgspec.DecodeError):
        m.decode_data(m.encode(message))


@pytest.mark.parametrize("message", DATA, ids=lambda x: type(x).__name__)
def test_data_messages_come_back_equal(message: m.Message) -> None:
    assert m.decode_data(memoryview(m.encode(message))) == message
    with pytest.raises(msgspec.DecodeError):
        m.decode_registry(m.encode(message))


@given(st.binary() | st.builds(msgspec.msgpack.encode, st.lists(st.text() | st.integers(-9, 9) | st.none())))
def test_anything_else_is_a_decode_error_and_nothing_worse(frame: bytes) -> None:
    for decode in (m.decode_registry, m.decode_data):
        with pytest.raises(msgspec.DecodeError):
            decode(frame)


def test_only_output_costs_credit() -> None:
    assert [type(x) for x in EVENTS if m.cost(x)] == [
        m.Delta,
        m.Chunk,
        m.Extra,
        m.Document,
        m.Named,
        m.Picture,
        m.Audio,
        m.Video,
    ]
    assert m.cost(m.Delta(0, "x" * 1000)) - m.cost(m.Delta(0, "")) == 1000
    assert m.cost(m.Chunk(0, b"x" * 1000)) - m.cost(m.Chunk(0, b"")) == 1000
