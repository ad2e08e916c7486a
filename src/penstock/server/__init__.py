"""A server for teams: managed tables over HTTP."""

from penstock.server._app import create_app
from penstock.server._checks import Check, check_server
from penstock.server._config import DEFAULT_PORT, ServerConfig
from penstock.server._serve import Started, serve

__all__ = ["DEFAULT_PORT", "Check", "ServerConfig", "Started", "check_server", "create_app", "serve"]
