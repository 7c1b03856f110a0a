"""Appended input is kept until it is used, so that another replica can be sent all of it."""

from __future__ import annotations

from app.pipeline.inputs import Inputs


def test_each_is_sent_once_to_each_replica_until_it_is_used() -> None:
    inputs = Inputs()
    for data in (b"a", b"b"):
        inputs.add(data, False)
    assert list(inputs.unsent()) == [(b"a", False), (b"b", False)]
    assert list(inputs.unsent()) == []
    inputs.add(b"c", False)
    inputs.add(b"", True)
    inputs.rewind()
    assert list(inputs.unsent()) == [(b"a", False), (b"b", False), (b"c", False), (b"", True)]
    inputs.use(2)
    assert (inputs.used, list(inputs.unsent())) == (2, [])
    inputs.add(b"", True)
    assert list(inputs.unsent()) == [(b"", True)]
    inputs.rewind()
    assert list(inputs.unsent()) == [(b"c", False), (b"", True), (b"", True)]
