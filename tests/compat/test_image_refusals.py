"""Every route that draws refuses what is wrong, with the field at fault; no body is a fault of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compat.fuzz import bodies, documented, example, fault
from tests.compat.negative import LIMIT, Case, Json, Route, cases, problem, send
from tests.servers import start_server

CONTROLS = {
    "n": "count",
    "size": "text",
    "quality": "choice",
    "background": "choice",
    "output_format": "choice",
    "output_compression": "count",
    "negative_prompt": "text",
    "seed": "count",
    "num_inference_steps": "count",
    "guidance_scale": "number",
    "guidance_scale_2": "number",
    "true_cfg_scale": "number",
    "strength": "number",
    "flow_shift": "number",
    "layers": "count",
    "resolution": "count",
    "lora": "object",
    "extra_params": "object",
}
REQUEST = CONTROLS | {
    "response_format": "choice",
    "stream": "flag",
    "partial_images": "count",
    "moderation": "choice",
    "user": "text",
    "safety_identifier": "text",
}
ROUTES = [
    Route("/v1/images/generations", {"prompt": "x"}, {"prompt": "text"}, REQUEST, ("prompt",)),
    Route(
        "/v1/images/edits",
        {"prompt": "x", "image": "data:image/png;base64,AAAA"},
        {"prompt": "text", "image": "texts"},
        REQUEST | {"images": "list", "url": "texts", "mask_image": "text", "input_fidelity": "choice"},
        ("prompt", "image"),
    ),
    Route(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": "list"},
        CONTROLS
        | {
            "width": "count",
            "height": "count",
            "num_outputs_per_prompt": "count",
            "cfg_scale": "number",
            "extra_args": "object",
            "extra_body": "object",
            "modalities": "list",
            "stream": "flag",
            "stream_options": "object",
            "metadata": "object",
        },
        ("messages",),
    ),
]
FORMS = ("/v1/images/edits", "/v1/images/variations")
FILE = ("a.png", b"\x89PNG", "image/png")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server with a stub that only draws."""
    overrides = {"0": {"engine_args": {"chats": False, "draws": True}}}
    env = {
        "OMNI_MODEL": "stub",
        "OMNI_STAGE_OVERRIDES": json.dumps(overrides),
        "OMNI_MAX_BODY_BYTES": str(LIMIT),
        "GRANIAN_WORKERS": "2",
    }
    with start_server(env=env) as server:
        server.wait_ready(60)
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield client


def all_cases() -> list[Any]:
    return [
        pytest.param(_here(route, case), id=f"{case.path} {case.name}") for route in ROUTES for case in cases(route)
    ]


def _here(route: Route, case: Case) -> Case:
    """The case as these routes see it: judged in one pass, so a wrong type is told before what lies inside of it."""
    field = next(iter(route.required))
    if case.name == "very deep" or (case.name == "invalid UTF-8" and route.required[field] == "list"):
        return case._replace(param=field)
    if route.path in FORMS and case.media_type == "multipart/form-data":
        return case._replace(status=(400,))  # a form is welcome there, so it is a broken one
    return case


@pytest.mark.parametrize("case", all_cases())
def test_refused(client: httpx.Client, case: Case) -> None:
    assert problem(case, send(client, case)) is None


@pytest.fixture(scope="module")
def operations(client: httpx.Client) -> dict[str, Json]:
    return documented(client.get("/openapi.json").json())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_the_documented_example_is_answered(client: httpx.Client, operations: dict[str, Json], route: Route) -> None:
    answer = client.post(route.path, json=example(operations[route.path]))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_no_body_is_a_fault(client: httpx.Client, operations: dict[str, Json], route: Route) -> None:
    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(bodies(operations[route.path], route))
    def check(body: Json) -> None:
        assert fault(client.post(route.path, json=body)) is None

    check()


@pytest.mark.parametrize("path", FORMS)
def test_no_form_is_a_fault(client: httpx.Client, operations: dict[str, Json], path: str) -> None:
    form = operations[path]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    names = st.sampled_from([*sorted(set(form) - {"size"}), "lora[name]", "extra_params[eta]", "zzz"])
    values = st.sampled_from(["", "null", "true", "-1", "1e999", "nan", "[]", "{}", '{"a":1}', "9" * 400, "x"])
    values |= st.text(max_size=8)

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(st.dictionaries(names, values, max_size=3))
    def check(fields: dict[str, str]) -> None:
        assert fault(client.post(path, data={"prompt": "x"} | fields, files={"image": FILE})) is None

    check()


@pytest.mark.parametrize("path", FORMS)
def test_no_bytes_are_a_fault(client: httpx.Client, path: str) -> None:
    """Forms of any bytes, with pieces of real ones among them."""
    pieces = [b"--b", b"--b--", b"\r\n", b"\r\n\r\n", b'Content-Disposition: form-data; name="image"', b"; filename=a"]

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.sampled_from(pieces) | st.binary(max_size=5), max_size=12))
    def check(parts: list[bytes]) -> None:
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = client.post(path, content=b"".join(parts), headers=headers)
        assert answer.status_code >= 400
        assert fault(answer) is None

    check()
