"""The command line."""

from hyperribbon.application.cli.app import main

__all__ = ["main"]
