"""The Hessian spectrum of linear networks."""

from typing import Any

__all__ = ["reduced"]


def reduced(config: Any) -> dict[str, str]:
    """Return the numbers of images that the data sets of a configuration leave of those asked for.

    With a large share of class 0 there are soon too few images of it; see `fitting_samples`.

    Args:
        config: Of an experiment; one without shares of classes leaves nothing out.
    """
    from hyperribbon.experiments.linear_networks._data import NAMES, fitting_samples

    parts = []
    for data in getattr(config, "data", ()) if hasattr(config, "shares") else ():
        for share in config.shares:
            samples = fitting_samples(data, share, config.samples)
            if samples < config.samples:
                parts.append(f"{samples} at share {share:g} of {NAMES[data]}")
    return {"samples": f"{config.samples}, but {', '.join(parts)}"} if parts else {}
