"""POST /tokenize, /detokenize and /generative_scoring: tokens and their probabilities."""

from __future__ import annotations

from litestar.openapi.spec import OpenAPIType

from app.routes.openapi import Body
from app.routes.relay import relayed

tokenize = relayed(
    "/tokenize",
    "tokenize",
    summary="The tokens of a text (`prompt`) or of a conversation (`messages`)",
    body=Body("tokens", (), {"prompt": OpenAPIType.STRING, "return_token_strs": OpenAPIType.BOOLEAN}, {"prompt": "Hi"}),
)
detokenize = relayed(
    "/detokenize",
    "detokenize",
    summary="The text of tokens",
    body=Body("tokens", ("tokens",), {"tokens": OpenAPIType.ARRAY}, {"tokens": [1, 2]}),
)
generative_scoring = relayed(
    "/generative_scoring",
    "generative_scoring",
    summary="How probable given tokens are after each of several texts",
    body=Body(
        "tokens",
        ("query", "items", "label_token_ids"),
        {"query": OpenAPIType.STRING, "items": OpenAPIType.ARRAY, "label_token_ids": OpenAPIType.ARRAY},
        {"query": "Is this a city?", "items": ["Paris", "blue"], "label_token_ids": [1, 2]},
    ),
)
