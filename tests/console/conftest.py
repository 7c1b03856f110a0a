"""The fixtures of the settings."""

from __future__ import annotations

from tests.settings.conftest import model

__all__ = ["model"]
