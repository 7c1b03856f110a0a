"""The `openai` package as the judge of what our routes send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import openai
import pytest

from app.cluster.messages import AnyEvent, Chunk, Delta, Done, Finish, Usage
from app.protocol.errors import ApiError
from tests.routes.serving import ScriptedOrchestrator, Served, Step

Connect = Callable[..., openai.AsyncOpenAI]
ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes a client of a server that plays a script."""
    clients: list[openai.AsyncOpenAI] = []

    def make(script: list[Step] | None = None, *, api_key: str = "none", **server: object) -> openai.AsyncOpenAI:
        transport = httpx.ASGITransport(Served(ScriptedOrchestrator(script), **server).app)
        http = httpx.AsyncClient(transport=transport)
        client = openai.AsyncOpenAI(api_key=api_key, base_url="http://test/v1", http_client=http, max_retries=0)
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()


async def test_a_chat(connect: Connect) -> None:
    answer = await connect().chat.completions.create(model="smol", messages=ASK)
    assert answer.choices[0].message.content == "Hello Wörld"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 8
    type(answer).model_validate(answer.model_dump(), strict=True)


async def test_a_streamed_chat(connect: Connect) -> None:
    stream = await connect().chat.completions.create(
        model="smol", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "Hello Wörld"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices] == [None] * 4 + ["stop"]
    assert [chunk.usage is not None for chunk in chunks] == [False] * 5 + [True]
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    for chunk in chunks:
        type(chunk).model_validate(chunk.model_dump(), strict=True)


async def test_the_stream_helper_accumulates_tool_calls(connect: Connect) -> None:
    first = b'{"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]}}'
    pieces: list[AnyEvent] = [
        Chunk(0, b'{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%b"}}]}}' % text)
        for text in (b'{\\"a\\":', b"1}")
    ]
    script: list[Step] = [[Chunk(0, first)], pieces, [Finish(0, "tool_calls"), Usage(3, 4), Done()]]
    async with connect(script).chat.completions.stream(model="smol", messages=ASK) as stream:
        answer = await stream.get_final_completion()
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert (calls[0].function.name, calls[0].function.arguments) == ("f", '{"a":1}')


async def test_completions(connect: Connect) -> None:
    client = connect()
    whole = await client.completions.create(model="smol", prompt="x")
    assert whole.choices[0].text == "Hello Wörld"
    stream = await client.completions.create(model="smol", prompt="x", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello Wörld"


async def test_models(connect: Connect) -> None:
    client = connect()
    listed = [model.id async for model in await client.models.list()]
    assert listed == ["smol", "HuggingFaceTB/SmolLM2"]
    for name in listed:
        assert (await client.models.retrieve(name)).id == name
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("a/b")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
    ],
)
async def test_refusals_are_the_exceptions_of_their_status(
    connect: Connect, status: int, error: type[openai.APIStatusError]
) -> None:
    client = connect([ApiError(status, "why", param="p", code="c")])
    with pytest.raises(error) as caught:
        await client.chat.completions.create(model="smol", messages=ASK)
    assert (caught.value.status_code, caught.value.param, caught.value.code) == (status, "p", "c")
    assert caught.value.request_id is not None


async def test_a_failure_in_mid_stream_is_raised(connect: Connect) -> None:
    client = connect([[Delta(0, "Hel")], ApiError(503, "the replica was lost", code="replica_lost")])
    stream = await client.chat.completions.create(model="smol", messages=ASK, stream=True)
    role, text = await anext(stream), await anext(stream)
    assert (role.choices[0].delta.role, text.choices[0].delta.content) == ("assistant", "Hel")
    with pytest.raises(openai.APIError, match="the replica was lost") as caught:
        await anext(stream)
    assert caught.value.code == "replica_lost"


async def test_a_wrong_key(connect: Connect) -> None:
    with pytest.raises(openai.AuthenticationError):
        await connect(api_key="wrong", api_keys=["right"]).models.list()
    assert (await connect(api_key="right", api_keys=["right"]).models.list()).data
