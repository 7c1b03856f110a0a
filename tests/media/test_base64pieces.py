from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from app.media.base64pieces import Base64Pieces


@given(st.lists(st.binary(max_size=7), max_size=9), st.binary(max_size=5))
def test_joined_they_are_the_base64_of_the_whole_and_each_can_be_decoded(pieces: list[bytes], last: bytes) -> None:
    encoder = Base64Pieces()
    encoded = [*map(encoder.push, pieces), encoder.push(last, last=True)]
    assert b"".join(encoded) == base64.b64encode(b"".join([*pieces, last]))
    assert b"".join(base64.b64decode(piece, validate=True) for piece in encoded) == b"".join([*pieces, last])
