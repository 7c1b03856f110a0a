"""What is told of a film without decoding it."""

from __future__ import annotations

import pytest

from app.media.errors import MediaError
from app.media.film import film_size
from tests.recordings import as_wav, chirp, silent_film


@pytest.mark.parametrize(
    ("container", "codec"), [("mp4", "mpeg4"), ("matroska", "mpeg4"), ("asf", "wmv2"), ("avi", "mpeg4"), ("gif", "gif")]
)
def test_sizes(container: str, codec: str) -> None:
    assert film_size(silent_film(container, codec)) == (64, 64)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no film",
        as_wav(chirp(0.2)),
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/a.ts\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 26\n",
    ],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(MediaError) as caught:
        film_size(data)
    assert caught.value.failed.status == 400
