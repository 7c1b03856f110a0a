"""omni-app: an OpenAI-compatible server for omni-modal models. Importing it loads the standard library only."""

from app.asgi import create_app

__all__ = ["__version__", "create_app"]

__version__ = "0.1.0"
