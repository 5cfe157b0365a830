"""The Hessian spectrum of linear networks.

- balance: Balance of the layers along training: flow, weight decay, edge of stability
- bound: Upper bound of the sharpness along training, by depth
- counts: Non-zero eigenvalues of rectangular networks, counted
- depth: Sharpness by depth and label imbalance, trained and predicted
- edge: Sharpness against the learning rate, up to the edge of stability and beyond
- fig1_left: Every Hessian eigenvalue of a balanced solution, from the labels
- fig1_middle: Sharpness by depth and by the spectral norm of the labels
- fig1_right: Sharpness of trained balanced networks against label imbalance
- fig2_left: Sharpness on raw inputs: the theory needs white ones
- fig2_middle: Sharpness from Kaiming uniform starts: layers out of balance
- fig2_right: Sharpness of trained Tanh networks against label imbalance
- fig3: Sum of eigenvalues along training, sampled and in closed form
- fig4: Error of Eq. (15) for the top ten eigenvalues of two layers
- flattening: Early flattening: sharpness, trace and parameter norm of new networks
- peak: Peak sharpness along training against label imbalance, on white and raw inputs
- samples: Sharpness against the number of samples: white, raw, and the disputed setting
"""

from typing import Any

__all__ = ["reductions"]


def reductions(config: Any) -> dict[str, str]:
    """Return how many images a run of [linear_networks] really uses, where there are too few.

    A large share of class 0 needs more images of it than there are; see `fitting_samples`.

    Args:
        config: Of an experiment; one without shares of classes uses all images.
    """
    from hyperribbon.papers.experiments.linear_networks._data import NAMES, fitting_samples

    parts = []
    for data in getattr(config, "data", ()) if hasattr(config, "shares") else ():
        for share in config.shares:
            samples = fitting_samples(data, share, config.samples)
            if samples < config.samples:
                parts.append(f"{samples} at share {share:g} of {NAMES[data]}")
    return {"samples": f"{config.samples}, but {', '.join(parts)}"} if parts else {}
