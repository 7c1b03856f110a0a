"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, for administrators."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.openapi.spec import OpenAPIType

from app.pipeline.adapters import load_adapter, unload_adapter
from app.protocol.decoding import BodyDecoder
from app.protocol.errors import ApiError
from app.routes.auth import require_admin
from app.routes.body import read_strictly
from app.routes.openapi import ERRORS, Body, operation
from app.routes.state import model_names, orchestrator, settings
from app.routes.submission import refuse_while_stopping

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=r"\S")]


class LoadAdapter(msgspec.Struct, forbid_unknown_fields=True):
    """`lora_path`: a directory on the replicas' hosts. `load_inplace`: a loaded adapter of that name is replaced."""

    lora_name: _Name
    lora_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadAdapter(msgspec.Struct, forbid_unknown_fields=True):
    """`lora_int_id` is vLLM's own number of the adapter, and has no effect."""

    lora_name: _Name
    lora_int_id: int | None = None


_load = BodyDecoder(LoadAdapter)
_unload = BodyDecoder(UnloadAdapter)

_NAME: dict[str, OpenAPIType] = {"lora_name": OpenAPIType.STRING}
_LOAD_BODY = Body(
    "models",
    ("lora_name", "lora_path"),
    {**_NAME, "lora_path": OpenAPIType.STRING, "load_inplace": OpenAPIType.BOOLEAN},
    {"lora_name": "sql", "lora_path": "/models/sql-adapter"},
)
_UNLOAD_BODY = Body("models", ("lora_name",), {**_NAME}, {"lora_name": "sql"})


@post(
    "/v1/load_lora_adapter",
    status_code=200,
    guards=[require_admin],
    operation_class=operation(_LOAD_BODY),
    operation_id="loadAdapter",
    responses=ERRORS,
    raises=[],
    tags=["models"],
    summary="Load a LoRA adapter on every replica",
)
async def load_lora_adapter(request: Request[Any, Any, Any]) -> Response[str]:
    """Everywhere or nowhere; a replica that is started later loads it, too. Its name can then be asked for."""
    refuse_while_stopping(request)
    asked = await read_strictly(request, _load)
    name = asked.lora_name
    if name in settings(request.app).served_model_names:
        raise _taken(f"{name!r} is the name of the served model.")
    if name in model_names(request.app) and not asked.load_inplace:
        raise _taken(f"The LoRA adapter {name!r} is loaded; send load_inplace to replace it.")
    await load_adapter(
        orchestrator(request.app), name, asked.lora_path, is_3d=asked.is_3d_lora_weight, replace=asked.load_inplace
    )
    return _said(f"The LoRA adapter {name!r} is loaded on every replica.")


@post(
    "/v1/unload_lora_adapter",
    status_code=200,
    guards=[require_admin],
    operation_class=operation(_UNLOAD_BODY),
    operation_id="unloadAdapter",
    responses=ERRORS,
    raises=[],
    tags=["models"],
    summary="Unload a LoRA adapter from every replica",
)
async def unload_lora_adapter(request: Request[Any, Any, Any]) -> Response[str]:
    """Its name is unknown from then on."""
    refuse_while_stopping(request)
    asked = await read_strictly(request, _unload)
    await unload_adapter(orchestrator(request.app), asked.lora_name)
    return _said(f"The LoRA adapter {asked.lora_name!r} is unloaded from every replica.")


def _taken(message: str) -> ApiError:
    return ApiError(400, message, param="lora_name", code="invalid_value")


def _said(sentence: str) -> Response[str]:
    """vLLM's clients look at the status; the sentence is for people."""
    return Response(sentence, media_type="text/plain")
