"""The explorer: a local web app for stored and live runs and the theory behind them."""

try:
    import dash  # noqa: F401
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "dash":
        raise
    from hyperribbon.core.checks import MissingExtraError

    raise MissingExtraError("dash", "explore", "The explorer") from None

from hyperribbon.application.explorer.app import create_app
from hyperribbon.application.explorer.server import Explorer, ExplorerServer, explore, serve

__all__ = ["Explorer", "ExplorerServer", "create_app", "explore", "serve"]
