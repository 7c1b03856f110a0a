"""Keys from files, and browser origins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.settings.resolve import ConfigError, resolve


def server(model: str, **flags: Any) -> Any:
    return resolve({"model": model, **flags}, {})


def problem(model: str, **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve({"model": model, **flags}, {})
    return str(caught.value)


def test_keys_from_a_file_join_the_others(model: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team a\nsk-1\n\n  sk-2 \nsk-0\n")
    settings = server(model, api_key=["sk-0"], api_key_file=str(file))
    assert settings.server.api_keys == ["sk-0", "sk-1", "sk-2"]
    assert settings.origins["server.api_keys"] == "argument api_key, argument api_key_file"
    assert server(model, api_key_file=str(file)).server.api_keys == ["sk-1", "sk-2", "sk-0"]


def test_the_file_can_come_from_the_environment(model: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-1\n")
    settings = resolve({"model": model}, {"OMNI_API_KEY_FILE": str(file)})
    assert settings.server.api_keys == ["sk-1"]


@pytest.mark.parametrize("content", ["", "\n\n", "# only this\n"])
def test_a_file_without_keys_never_opens_the_server(model: str, tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    assert "there is no key in" in problem(model, api_key_file=str(file))


def test_a_file_that_cannot_be_read(model: str, tmp_path: Path) -> None:
    assert "cannot read" in problem(model, api_key_file=str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert "cannot read" in problem(model, api_key_file=str(tmp_path / "bytes"))


@pytest.mark.parametrize("value", ["", [], [""], " "])
def test_an_empty_key_never_opens_the_server(model: str, value: object) -> None:
    assert "there is no key in it" in problem(model, api_key=value)


@pytest.mark.parametrize(
    "origin", ["chat.example.org", "https://chat.example.org/", "https://a/b", "https://u@a", "https:"]
)
def test_what_is_no_origin(model: str, origin: str) -> None:
    assert "is no origin" in problem(model, allowed_origins=[origin])


def test_origins(model: str) -> None:
    origins = ["https://chat.example.org", "http://localhost:3000", "https://*.example.org", "*"]
    assert server(model, allowed_origins=origins).server.allowed_origins == origins


def test_credentials_need_named_origins(model: str) -> None:
    assert "name them" in problem(model, allowed_origins=["*"], allow_credentials=True)
    assert server(model, allowed_origins=["https://a.test"], allow_credentials=True).server.allow_credentials


def test_media_flags_reach_their_settings(model: str, tmp_path: Path) -> None:
    media = server(
        model,
        allowed_media_domains="a.test,*.b.test",
        allowed_local_media_path=str(tmp_path),
        max_media_bytes="1MiB",
        max_media_pixels=100,
        max_video_pixels=200,
        max_media_seconds=1.5,
        media_timeout=2,
        max_media_redirects=0,
    ).media
    assert media.allowed_media_domains == ["a.test", "*.b.test"]
    assert media.allowed_local_media_path == str(tmp_path)
    assert (media.max_bytes, media.max_pixels, media.max_video_pixels) == (1 << 20, 100, 200)
    assert (media.max_seconds, media.timeout_s, media.max_redirects) == (1.5, 2.0, 0)


def test_media_flags_that_cannot_be_used(model: str, tmp_path: Path) -> None:
    assert "there is no directory" in problem(model, allowed_local_media_path=str(tmp_path / "none"))
    assert "is not a host name" in problem(model, allowed_media_domains=["https://a.test/"])


def test_link_flags_reach_their_settings(model: str) -> None:
    flags = {"public_base_url": "https://ai.test/omni/", "generated_file_lifetime": 60, "generated_files_bytes": "1MiB"}
    found = server(model, **flags).server
    assert found.public_base_url == "https://ai.test/omni"
    assert (found.generated_file_lifetime_s, found.generated_files_bytes) == (60.0, 1 << 20)
    assert server(model).server.public_base_url == ""


@pytest.mark.parametrize("url", ["ai.test", "ftp://ai.test", "https://", "https://ai.test?x", "https://u@ai.test"])
def test_what_links_cannot_begin_with(model: str, url: str) -> None:
    assert "is no address such as" in problem(model, public_base_url=url)


def test_the_token_comes_from_a_file(model: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  s3cret\n")
    settings = server(model, omni_token_file=str(file))
    assert settings.master.token == "s3cret"
    assert settings.origins["master.token"] == "argument omni_token_file"
    assert resolve({"model": model}, {"OMNI_TOKEN_FILE": str(file)}).master.token == "s3cret"


def test_a_token_has_one_place_and_is_never_empty(model: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert "cannot read" in problem(model, omni_token_file=str(file))
    file.write_text("\n")
    assert "there is no token in" in problem(model, omni_token_file=str(file))
    file.write_text("s3cret")
    said = problem(model, omni_token_file=str(file), omni_token="other")
    assert "the token is given by argument omni_token, too" in said
    assert "s3cret" not in said
