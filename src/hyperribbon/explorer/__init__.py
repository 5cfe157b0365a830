"""The explorer: a local web page to play with the theory and look through stored runs."""

from hyperribbon.explorer.app import create_app
from hyperribbon.explorer.serving import ExplorerServer, serve

__all__ = ["ExplorerServer", "create_app", "serve"]
