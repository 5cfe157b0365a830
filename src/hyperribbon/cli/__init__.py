"""The command line."""

from hyperribbon.cli.app import main

__all__ = ["main"]
