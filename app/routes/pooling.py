"""The routes of models that pool: embeddings, scores, classes."""

from __future__ import annotations

from litestar.openapi.spec import OpenAPIType

from app.routes.openapi import Body
from app.routes.relay import relayed

_STRING, _ARRAY = OpenAPIType.STRING, OpenAPIType.ARRAY
_TEXTS = {"input": "What is the capital of France?"}
_PAIR = {"queries": "capital of France", "documents": ["Paris", "Berlin"]}
_DOCUMENTS = {"query": "capital of France", "documents": ["Paris", "Berlin"]}

create_embedding = relayed(
    "/v1/embeddings",
    "embeddings",
    summary="Embed texts",
    body=Body("pooling", (), {"encoding_format": _STRING, "dimensions": OpenAPIType.INTEGER}, _TEXTS),
)
create_cohere_embedding = relayed(
    "/v2/embed",
    "cohere_embed",
    summary="Embed texts (Cohere's form)",
    body=Body("pooling", (), {"texts": _ARRAY, "embedding_types": _ARRAY}, {"texts": ["Paris"]}),
)
pool = relayed(
    "/pooling",
    "pooling",
    summary="What the model's pooler gives",
    body=Body("pooling", (), {"task": _STRING, "encoding_format": _STRING}, _TEXTS),
)
classify = relayed("/classify", "classify", summary="Classify texts", body=Body("pooling", (), {}, _TEXTS))
score = relayed(["/score", "/v1/score"], "score", summary="Score pairs of texts", body=Body("pooling", (), {}, _PAIR))
rerank = relayed(
    ["/rerank", "/v1/rerank", "/v2/rerank"],
    "rerank",
    summary="Order documents by how well they fit a query",
    body=Body("pooling", ("query", "documents"), {"query": _STRING, "top_n": OpenAPIType.INTEGER}, _DOCUMENTS),
)
