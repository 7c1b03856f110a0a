"""What users of such servers report of refusals, on the wire. Numbers are those of the report that a test plays.

The same over every field of every route, on the real vLLM: test_negative.py, tests/engines/llm/test_refusals.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

from app.routes import handlers
from tests.compat.wire import CHAT, JSON, Wire, head
from tests.servers import Server, start_server

KEY = "key-of-the-tests"
ASK = b'{"messages":[{"role":"user","content":"x"}]}'
LIMIT = 200_000
ORIGIN = "https://chat.example.org"
PUBLIC = {"/livez", "/readyz", "/health", "/v1/files/generated/x"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server with the stub for all tests of this file."""
    env = {"OMNI_MODEL": "stub", "OMNI_API_KEY": KEY, "OMNI_MAX_BODY_BYTES": str(LIMIT), "OMNI_ALLOWED_ORIGINS": ORIGIN}
    with start_server(env=env) as server:
        yield server.wait_ready(60)


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(server) as wire:
        yield wire


def with_key(**headers: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {KEY}",
        **JSON,
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }


# ------------------------------------------------------------------------------- stable errors (69, 70, 83, 149)


class Refused(NamedTuple):
    """A request, and what clients may rely on in its answer."""

    name: str
    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    status: int
    type: str
    code: str | None
    param: str | None = None


def chat(name: str, body: bytes, *expected: Any, **headers: str) -> Refused:
    return Refused(name, "POST", CHAT, body, with_key(**headers), *expected)


def asked(**fields: Any) -> bytes:
    return json.dumps({"messages": [], **fields}).encode()


INVALID = "invalid_request_error"
REFUSED = [
    chat("cut off", b"{", 400, INVALID, "invalid_json"),
    chat("empty", b"", 400, INVALID, "invalid_json"),
    chat("array", b"[]", 400, INVALID, "invalid_value"),
    chat("not UTF-8", b'{"model":"\xff"}', 400, INVALID, "invalid_json"),
    chat("gzip that is not declared", b"\x1f\x8b\x08\x00", 400, INVALID, "invalid_json"),
    chat("wrong type", asked(stream="yes"), 400, INVALID, "invalid_value", "stream"),
    chat("out of range", asked(n=0), 400, INVALID, "invalid_value", "n"),
    chat("by the replica", asked(stub={"refuse": "no"}), 400, INVALID, None, "stub"),
    chat("by the replica, streamed", asked(stub={"refuse": "no"}, stream=True), 400, INVALID, None, "stub"),
    chat("a header", ASK, 400, INVALID, "invalid_header", "X-Request-Timeout", X_Request_Timeout="soon"),
    Refused("no key", "POST", CHAT, ASK, JSON, 401, "authentication_error", "invalid_api_key"),
    chat("wrong key", ASK, 401, "authentication_error", "invalid_api_key", Authorization="Bearer x"),
    Refused(
        "preflight of another origin",
        "OPTIONS",
        CHAT,
        b"",
        {"Origin": "https://evil.test", "Access-Control-Request-Method": "POST"},
        403,
        "permission_error",
        "cors_refused",
    ),
    chat("unknown model", asked(model="nope"), 404, "not_found_error", "model_not_found", "model"),
    Refused("unknown route", "GET", "/v1/health", b"", {}, 404, "not_found_error", "unknown_route"),
    Refused("unknown route, body", "POST", "/v1/nope", ASK, JSON, 404, "not_found_error", "unknown_route"),
    Refused("wrong method", "GET", CHAT, b"", with_key(), 405, INVALID, "method_not_allowed"),
    Refused("wrong method, body", "PUT", "/v1/models", ASK, with_key(), 405, INVALID, "method_not_allowed"),
    chat("body too large", b" " * (LIMIT + 1), 413, "request_too_large", "request_too_large"),
    chat("text", ASK, 415, INVALID, "unsupported_media_type", Content_Type="text/plain"),
    chat("no boundary", ASK, 415, INVALID, "unsupported_media_type", Content_Type="multipart/form-data"),
    chat("compressed", b"\x1f\x8b", 415, INVALID, "unsupported_media_type", Content_Encoding="gzip"),
    chat("huge header", ASK, 431, INVALID, "headers_too_large", X="a" * 70_000),
    chat("fault", asked(stub={"fail_after": 0}), 500, "server_error", None),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_083_errors_have_openais_body_and_stable_codes(wire: Wire, case: Refused) -> None:
    """69, 70, 83, 149; 84: and the connection stays usable, whether the body was read or not."""
    answer = wire.ask(case.method, case.path, case.body, case.headers)
    error = answer.error
    assert (answer.status, error["type"], error["code"], error["param"]) == case[5:]
    assert answer.headers["content-type"] == "application/json"
    assert error["message"]
    assert wire.ask("GET", "/livez").status == 200


def test_149_a_wrong_method_is_told_the_right_ones(wire: Wire) -> None:
    assert "POST" in wire.ask("GET", CHAT, headers=with_key()).headers["allow"].split(", ")
    assert "GET" in wire.ask("DELETE", "/health").headers["allow"].split(", ")


def test_074_the_served_models_are_named(wire: Wire) -> None:
    assert "stub" in wire.ask("POST", CHAT, asked(model="nope"), with_key()).error["message"]
    assert wire.ask("POST", CHAT, asked(stub={"tokens": 1}), with_key()).status == 200, "absent: the one that is served"


def test_157_a_refusal_of_a_stream_is_a_status(wire: Wire) -> None:
    """A stream that could not begin is no 200 with an error in it."""
    body = asked(stub={"refuse": "cannot"}, stream=True)
    answer = wire.ask("POST", CHAT, body, with_key())
    assert (answer.status, answer.error["message"]) == (400, "cannot")


# ------------------------------------------------------------------------------------- malformed uploads (84)


def test_084_a_gigabyte_that_is_announced_is_refused_at_once(wire: Wire) -> None:
    wire.socket.sendall(head("POST", CHAT, with_key(Content_Length=str(1 << 30))))
    answer = wire.answer()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_084_a_client_that_asks_before_it_sends_is_answered(wire: Wire) -> None:
    """Expect: 100-continue. The body is asked for when it is wanted, and only then."""
    expecting = with_key(Content_Length=str(len(ASK)), Expect="100-continue")
    wire.socket.sendall(head("POST", CHAT, expecting))
    assert wire.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
    wire.socket.sendall(ASK)
    assert wire.answer().status == 200
    wire.socket.sendall(head("POST", CHAT, expecting | {"Authorization": "Bearer x"}))
    assert wire.answer().status == 401, "not a 100"


def test_084_a_chunk_without_a_length_is_told_so(wire: Wire) -> None:
    wire.socket.sendall(head("POST", CHAT, with_key(Transfer_Encoding="chunked")) + b"zz\r\n{}\r\n0\r\n\r\n")
    assert wire.answer().error["code"] == "incomplete_request"


def test_084_a_body_in_pieces_that_is_no_multipart(wire: Wire) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename=""\r\n\r\n\r\n--x--\r\n'
    answer = wire.ask("POST", CHAT, body, with_key(Content_Type="multipart/form-data; boundary=x"))
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


# --------------------------------------------------------------------------------- routes and keys (41, 42, 138, 139)


def test_041_health_is_small_and_never_500(wire: Wire) -> None:
    answer = wire.ask("GET", "/health")
    assert (answer.status, json.loads(answer.body)["status"]) == (200, "ok")
    assert len(answer.body) < 500


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz"])
def test_042_probes_answer_get_and_head(wire: Wire, path: str) -> None:
    get, without_body = wire.ask("GET", path), wire.ask("HEAD", path)
    assert (get.status, without_body.status) == (200, 200)
    assert without_body.headers["content-length"] == str(len(get.body))


def test_042_an_unknown_path_for_probes_is_a_json_404(wire: Wire) -> None:
    for method in ("GET", "HEAD"):
        answer = wire.ask(method, "/v1/health")
        assert (answer.status, answer.headers["content-type"]) == (404, "application/json")


def all_routes() -> list[tuple[str, HTTPRouteHandler]]:
    """Path (parameters filled in) and handler of every route."""
    found = []
    for route in Litestar(handlers, openapi_config=None).routes:
        for handler in getattr(route, "route_handlers", ()):
            if isinstance(handler, HTTPRouteHandler) and handler.http_methods != {"OPTIONS"}:
                path = "/".join("x" if part.startswith("{") else part for part in route.path.split("/"))
                found.append((path, handler))
    return found


def test_139_every_route_but_health_needs_the_key(server: Server) -> None:
    """138, 139: also those that change the server, before anything of the request is looked at. A link is a key."""
    open_routes = set()
    with Wire(server) as wire:
        for path, handler in all_routes():
            for method in handler.http_methods:
                for headers in (JSON, {**JSON, "Authorization": "Bearer wrong"}):
                    answer = wire.ask(method, path, b"{" if method == "POST" else b"", headers)
                    if answer.status == 401:
                        assert answer.error["code"] == "invalid_api_key"
                        assert answer.headers["www-authenticate"] == "Bearer"
                    else:
                        open_routes.add(path)
    assert open_routes == PUBLIC


def test_138_a_preflight_needs_no_key_and_the_scheme_has_no_case(wire: Wire) -> None:
    wish = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = wire.ask("OPTIONS", CHAT, headers=wish)
    assert answer.status in (200, 204)
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert wire.ask("GET", "/v1/models", headers={"Authorization": f"bearer {KEY}"}).status == 200


def test_148_every_post_answers_200() -> None:
    """Litestar's own default is 201."""
    posts = {path: handler.status_code for path, handler in all_routes() if "POST" in handler.http_methods}
    assert posts.pop("/v1/omni/scale") == 202, "it is accepted, and goes on"
    assert len(posts) > 20
    assert set(posts.values()) == {200}, posts
