"""A LoRA adapter for one request, under each of the names that clients know its parts by."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from app.protocol.errors import ApiError
from app.protocol.pictures import LoraChoice

MAX_ADAPTERS = 8

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Scale = Annotated[float, msgspec.Meta(ge=-10, le=10)]


class Lora(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vllm-omni's names, three for a name, four for a path, two for a scale. Its ids have no effect here."""

    name: _Name | None = None
    lora_name: _Name | None = None
    adapter: _Name | None = None
    path: _Name | None = None
    local_path: _Name | None = None
    lora_path: _Name | None = None
    lora_local_path: _Name | None = None
    scale: _Scale | None = None
    lora_scale: _Scale | None = None
    int_id: int | None = None
    lora_int_id: int | None = None


def lora_choices(asked: Lora | list[Lora] | None) -> list[LoraChoice]:
    """The adapters of a request.

    Raises:
        ApiError: 400; one has neither name nor path, or something twice; or there are too many.
    """
    if asked is None:
        return []
    if isinstance(asked, Lora):
        return [_choice(asked, "lora")]
    if len(asked) > MAX_ADAPTERS:
        message = f"lora: at most {MAX_ADAPTERS} adapters, got {len(asked)}."
        raise ApiError(400, message, param="lora", code="invalid_value")
    return [_choice(item, f"lora[{position}]") for position, item in enumerate(asked)]


def _choice(asked: Lora, place: str) -> LoraChoice:
    name = _one_of(asked, ("name", "lora_name", "adapter"), place)
    path = _one_of(asked, ("path", "local_path", "lora_path", "lora_local_path"), place)
    scale = _one_of(asked, ("scale", "lora_scale"), place)
    if name is None and path is None:
        message = f"{place} needs a name or a path."
        raise ApiError(400, message, param=place, code="missing_required_parameter")
    return LoraChoice(name or "", path or "", 1.0 if scale is None else scale)


def _one_of(asked: Lora, names: tuple[str, ...], place: str) -> Any:
    given = [name for name in names if getattr(asked, name) is not None]
    if len(given) > 1:
        param = f"{place}.{given[1]}"
        raise ApiError(
            400, f"{param} is another name of {given[0]}; give one of them.", param=param, code="invalid_value"
        )
    return getattr(asked, given[0]) if given else None
