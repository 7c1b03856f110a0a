"""POST /tokenize and /detokenize."""

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
