"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from litestar.params import FromPath

from app.protocol.models import Model, ModelList, served_models, served_name
from app.routes.openapi import ERRORS
from app.routes.state import model_names, orchestrator, settings


@get("/v1/models", responses=ERRORS, tags=["models"], operation_id="listModels", summary="The models served here")
async def list_models(request: Request[Any, Any, Any]) -> ModelList:
    """Every served name, with what its pipeline can do."""
    return ModelList(_models(request))


@get(
    "/v1/models/{model_id:path}",
    responses=ERRORS,
    raises=[],
    tags=["models"],
    operation_id="retrieveModel",
    summary="One model",
)
async def retrieve_model(request: Request[Any, Any, Any], model_id: FromPath[str]) -> Model:
    """The model of that name, which may contain slashes.

    Raises:
        ApiError: 404 model_not_found.
    """
    name = served_name(model_names(request.app), model_id.removeprefix("/"))
    return next(model for model in _models(request) if model.id == name)


def _models(request: Request[Any, Any, Any]) -> list[Model]:
    known = orchestrator(request.app)
    adapters = [adapter.name for adapter in known.membership.adapters]
    return served_models(settings(request.app), known.capabilities(), adapters)
