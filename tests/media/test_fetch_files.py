"""Which files MediaFetcher reads for a request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.media.loading import INVALID, REFUSED, TOO_LARGE, fetcher, refusal, verdict


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    directory = tmp_path / "shelf"
    (directory / "sub").mkdir(parents=True)
    (directory / "sub" / "a b.png").write_bytes(b"inside")
    (directory / "big").write_bytes(b"x" * 1001)
    (tmp_path / "secret").write_bytes(b"outside")
    (tmp_path / "shelf-too").mkdir()
    (tmp_path / "shelf-too" / "secret").write_bytes(b"outside")
    (directory / "inner").symlink_to(directory / "sub" / "a b.png")
    (directory / "outer").symlink_to(tmp_path / "secret")
    (directory / "up").symlink_to(tmp_path)
    (directory / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(directory / "pipe")
    return directory


@pytest.mark.parametrize("path", ["sub/a%20b.png", "inner", "sub/../sub/a%20b.png", "sub/%2e%2e/inner"])
@pytest.mark.parametrize("authority", ["", "localhost"])
async def test_files_below_the_directory(shelf: Path, path: str, authority: str) -> None:
    loader = fetcher(allowed_local_media_path=str(shelf))
    assert (await loader.fetch(f"file://{authority}{shelf}/{path}")).data == b"inside"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "../shelf-too/secret",
        "sub/../../secret",
        "%2e%2e/secret",
        "..%2fsecret",
        "%252e%252e/secret",
        "outer",
        "up/secret",
        "dangling",
        "nothing",
        ".",
        "sub",
        "pipe",
    ],
)
async def test_files_elsewhere_and_what_is_no_file(shelf: Path, path: str) -> None:
    error = await refusal(fetcher(allowed_local_media_path=str(shelf)), f"file://{shelf}/{path}")
    assert verdict(error) == REFUSED
    assert str(shelf.parent) not in error.failed.message


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "FILE:///etc/passwd", "file:///proc/self/environ", "file:///dev/zero"]
)
async def test_system_files(shelf: Path, url: str) -> None:
    assert verdict(await refusal(fetcher(allowed_local_media_path=str(shelf)), url)) == REFUSED


@pytest.mark.parametrize(
    "url", ["file://other.test/a", "file://../a", "file:a", "file:", "file://[::1/a", "file:///a%00b"]
)
async def test_malformed_file_urls(shelf: Path, url: str) -> None:
    assert verdict(await refusal(fetcher(allowed_local_media_path=str(shelf)), url)) == INVALID


async def test_without_a_directory_no_file_is_read(shelf: Path) -> None:
    error = await refusal(fetcher(), f"file://{shelf}/inner")
    assert verdict(error) == REFUSED
    assert "--allowed-local-media-path" in error.failed.message


async def test_files_over_the_limit(shelf: Path) -> None:
    loader = fetcher(allowed_local_media_path=str(shelf))
    assert verdict(await refusal(loader, f"file://{shelf}/big")) == TOO_LARGE


async def test_a_directory_reached_through_a_link(shelf: Path) -> None:
    """The operator may name the directory by a link; only requests may not leave it through one."""
    link = shelf.parent / "link"
    link.symlink_to(shelf)
    assert (await fetcher(allowed_local_media_path=str(link)).fetch(f"file://{link}/inner")).data == b"inside"
