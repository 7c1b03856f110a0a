from __future__ import annotations

import pytest

from app.cluster.messages import Capabilities
from app.protocol.errors import ApiError
from app.protocol.models import served_models, served_name
from app.settings.schema import Settings

SETTINGS = Settings(model="org/root", served_model_names=["a", "org/b"], pipeline="llm", stages=[], created=7)


def test_nothing_is_invented_before_a_replica_has_told() -> None:
    [first, second] = served_models(SETTINGS, Capabilities())
    assert (first.id, second.id) == ("a", "org/b")
    assert (first.max_model_len, first.input_modalities, first.root, first.created) == (None, [], "org/root", 7)


def test_names() -> None:
    assert served_name(SETTINGS.served_model_names, None) == "a"
    assert served_name(SETTINGS.served_model_names, "org/b") == "org/b"
    with pytest.raises(ApiError, match="'org/root' is not served here; this server has 'a', 'org/b'"):
        served_name(SETTINGS.served_model_names, "org/root")
