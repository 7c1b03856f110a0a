"""The keys that are made of a token."""

from __future__ import annotations

from app.cluster.access import Access, access_of
from app.settings.schema import MasterConfig


def test_a_token_has_one_pair_of_keys() -> None:
    assert Access("a").public_key == Access("a", encrypt=True).public_key
    assert Access("a").public_key != Access("b").public_key
    assert len(Access("a").public_key) == 40
    assert b"a secret" not in Access("a secret").public_key


def test_it_is_what_the_settings_say() -> None:
    assert access_of(MasterConfig(token="t", encrypt=True)) == Access("t", encrypt=True)
    assert access_of(MasterConfig()) == Access("", encrypt=False)
