"""The first step: loss, gradient and accuracy at the present weights."""

from __future__ import annotations

import torch

from hyperribbon.inspection.evaluating import is_classification, scores_at
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, exact
from hyperribbon.inspection.subject import Subject

__all__ = ["basics_part"]


def basics_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the loss, the gradient, and for class labels the accuracy."""
    norm = float(torch.linalg.vector_norm(subject.gradient))
    quantities = [
        exact("model.parameters", "Parameters", subject.dimension, "counted, shared ones once"),
        exact("model.samples", "Samples used", subject.samples, subject.where()),
        exact("model.loss", "Loss", subject.hessian.risk.value(), "forward pass"),
        exact("model.gradient", "Norm of the gradient", norm, "one pass"),
    ]
    if is_classification(subject):
        right = scores_at(subject)
        error = float(right.std() / len(right) ** 0.5) if len(right) > 1 else float("nan")
        quantities.append(
            Quantity("model.accuracy", "Accuracy", float(right.mean()), error, "forward pass",
                     "standard error over samples")
        )  # fmt: skip
    return Part("basics", "The network", "Curvature", tuple(quantities))
