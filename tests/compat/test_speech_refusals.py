"""Every route that speaks or makes sound refuses what is wrong, with the field at fault; no body is a fault of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compat.fuzz import bodies, documented, example, fault
from tests.compat.negative import Case, Json, Route, cases, problem, send
from tests.servers import Server

MANNER = {
    "voice": "texts",
    "speaker": "text",
    "response_format": "choice",
    "sample_rate": "count",
    "speed": "number",
    "instructions": "text",
    "language": "text",
    "ref_audio": "texts",
    "ref_text": "text",
    "references": "list",
    "x_vector_only_mode": "flag",
    "max_new_tokens": "count",
    "seed": "count",
    "extra_params": "object",
    "word_timestamps": "flag",
    "user": "text",
}
SPEECH = Route(
    "/v1/audio/speech",
    {"input": "x"},
    {"input": "text"},
    MANNER | {"stream": "flag", "stream_format": "choice"},
    ("input",),
)
BATCH = Route("/v1/audio/speech/batch", {"items": [{"input": "x"}]}, {"items": "list"}, MANNER, ("items",))
SOUND = Route(
    "/v1/audio/generate",
    {"input": "x"},
    {"input": "text"},
    {
        "response_format": "choice",
        "sample_rate": "count",
        "speed": "number",
        "stream_format": "choice",
        "audio_length": "number",
        "audio_start": "number",
        "negative_prompt": "text",
        "guidance_scale": "number",
        "num_inference_steps": "count",
        "seed": "count",
        "extra_params": "object",
    },
    ("input",),
)
VOICES = Route(
    "/v1/audio/voices",
    {"name": "ada", "consent": "yes", "audio_sample": "data:audio/wav;base64,UklGRiQAAABXQVZF"},
    {"name": "text", "consent": "text"},
    {"audio_sample": "text", "type": "choice", "ref_text": "text", "speaker_description": "text"},
    ("name", "consent"),
    strict=True,
)
ROUTES = [SPEECH, BATCH, SOUND, VOICES]
FORMS = {"/v1/audio/voices": "audio_sample", "/v1/audio/transcriptions": "file", "/v1/audio/translations": "file"}
"""Routes that take a form, and the part that is a recording."""


@pytest.fixture(scope="module")
def client(speaking_stub: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=speaking_stub.url, timeout=30) as client:
        yield client


def all_cases() -> list[Any]:
    return [
        pytest.param(_here(route, case), id=f"{case.path} {case.name}") for route in ROUTES for case in cases(route)
    ]


def _here(route: Route, case: Case) -> Case:
    """The case as these routes see it: judged in one pass, so a wrong type is told before what lies inside of it."""
    field = next(iter(route.required))
    if case.name == ("very deep" if route.required[field] == "text" else "invalid UTF-8"):
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


@pytest.mark.parametrize("route", [SPEECH, BATCH], ids=lambda route: route.path)
def test_the_documented_example_is_answered(client: httpx.Client, operations: dict[str, Json], route: Route) -> None:
    answer = client.post(route.path, json=example(operations[route.path]))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_no_body_is_a_fault(client: httpx.Client, operations: dict[str, Json], route: Route) -> None:
    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(bodies(operations[route.path], route))
    def check(body: Json) -> None:
        answer = client.post(route.path, json=body)
        assert answer.headers["content-type"].startswith("audio/") or fault(answer) is None

    check()


@pytest.mark.parametrize("path", FORMS)
def test_no_form_is_a_fault(client: httpx.Client, operations: dict[str, Json], path: str) -> None:
    form = operations[path]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    names = st.sampled_from([*sorted(form), "zzz"])
    values = st.sampled_from(["", "null", "true", "-1", "1e999", "nan", "[]", "{}", '{"a":1}', "9" * 400, "x"])
    values |= st.text(max_size=8)

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(st.dictionaries(names, values, max_size=4))
    def check(fields: dict[str, str]) -> None:
        files = {FORMS[path]: ("a.wav", b"RIFF", "audio/wav")}
        assert fault(client.post(path, data=fields, files=files)) is None

    check()
