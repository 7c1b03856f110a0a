from __future__ import annotations

from app.settings.layers import Layer, Merged


def merge(*layers: Layer) -> Merged:
    merged = Merged()
    for layer in layers:
        merged.add(layer)
    return merged


def test_stronger_replaces_and_mappings_merge() -> None:
    merged = merge(
        Layer("weak", {"a": 1, "args": {"x": 1, "y": [1, 2]}}),
        Layer("strong", {"args": {"y": [3], "z": {"deep": True}}}),
    )
    assert merged.values == {"a": 1, "args": {"x": 1, "y": [3], "z": {"deep": True}}}
    assert merged.origins == {"a": "weak", "args.x": "weak", "args.y": "strong", "args.z.deep": "strong"}


def test_none_takes_a_value_away() -> None:
    merged = merge(Layer("weak", {"args": {"x": {"a": 1}, "y": 2}}), Layer("strong", {"args": {"x": None}}))
    assert merged.values == {"args": {"y": 2}}
    assert merged.origins == {"args.y": "weak"}


def test_a_plain_value_and_a_mapping_replace_each_other() -> None:
    merged = merge(Layer("weak", {"x": 1, "y": {"a": 1}}), Layer("strong", {"x": {"a": 2}, "y": 3}))
    assert merged.values == {"x": {"a": 2}, "y": 3}
    assert merged.origins == {"x.a": "strong", "y": "strong"}


def test_sources_are_not_changed_by_later_layers() -> None:
    weak = {"args": {"x": {"a": 1}, "list": [1]}}
    merged = merge(Layer("weak", weak), Layer("strong", {"args": {"x": {"b": 2}}}))
    merged.values["args"]["list"].append(2)
    assert weak == {"args": {"x": {"a": 1}, "list": [1]}}
