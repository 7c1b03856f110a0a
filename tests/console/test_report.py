from __future__ import annotations

import shlex

import msgspec
import pytest

from app.console.report import Server, announcement


def server(**changes: object) -> Server:
    facts = Server(run_dir="/r", parent=1, host="127.0.0.1", port=8091, root_path="", model="demo", guarded=False)
    return msgspec.structs.replace(facts, **changes)


def curl(facts: Server) -> list[str]:
    return shlex.split(announcement(facts).splitlines()[-1])


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8091"), ("::", "http://[::1]:8091"), ("localhost", "http://localhost:8091")],
)
def test_the_url_works_on_this_machine(host: str, url: str) -> None:
    assert server(host=host).url == url


def test_the_curl_line_survives_any_model_name() -> None:
    words = curl(server(model='it\'s "mine"'))
    assert words[:2] == ["curl", "http://127.0.0.1:8091/v1/chat/completions"]
    assert msgspec.json.decode(words[words.index("-d") + 1])["model"] == 'it\'s "mine"'


def test_the_curl_line_of_a_unix_socket_and_of_https() -> None:
    assert curl(server(uds="/run/a b"))[1:4] == ["--unix-socket", "/run/a b", "http://localhost/v1/chat/completions"]
    assert curl(server(certificate="/c"))[1:4] == ["--cacert", "/c", "https://127.0.0.1:8091/v1/chat/completions"]


def test_a_key_is_asked_for_only_where_one_is_needed() -> None:
    assert "Authorization: Bearer KEY" in curl(server(guarded=True))
    assert "Authorization" not in announcement(server())


def test_each_output_has_its_routes_and_its_example() -> None:
    all_four = announcement(server(outputs=("text", "speech", "image", "video")))
    assert all_four.index("/v1/completions") < all_four.index("/v1/audio/voices")
    chat, speech, picture, video = (shlex.split(line) for line in all_four.splitlines()[-4:])
    assert chat[1].endswith("/v1/chat/completions")
    assert speech[1].endswith("/v1/audio/speech")
    assert speech[-2:] == ["-o", "speech.mp3"]
    assert picture[1].endswith("/v1/images/generations")
    assert picture[-2:] == ["-o", "picture.png"]
    assert msgspec.json.decode(picture[picture.index("-d") + 1])["response_format"] == "file"
    assert video[1].endswith("/v1/videos/sync")
    assert video[-2:] == ["-o", "video.mp4"]


def test_a_model_that_speaks_its_own_answers_is_asked_in_a_chat() -> None:
    told = announcement(server(outputs=("text", "spoken")))
    assert "/v1/audio/voices" in told
    assert "/v1/audio/speech" not in told
    spoken = shlex.split(told.splitlines()[-1])
    assert msgspec.json.decode(spoken[spoken.index("-d") + 1])["modalities"] == ["text", "audio"]
    assert spoken[-2:] == ["-o", "answer.json"]


def test_what_has_no_example_has_none() -> None:
    lines = announcement(server(outputs=("audio",))).splitlines()
    assert lines[-1].strip().startswith("GET")
