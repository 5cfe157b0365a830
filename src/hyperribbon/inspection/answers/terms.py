"""Two paragraphs on every term an answer uses: what it is, and how to read it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TERMS", "Term"]


@dataclass(frozen=True)
class Term:
    """A word that is explained.

    Attributes:
        title: The word.
        what: What it is.
        reading: What its size means, and what it does not mean.
    """

    title: str
    what: str
    reading: str


TERMS = {
    "loss": Term(
        "Loss and gradient",
        "The loss is the mean over the samples that were used, in evaluation mode unless another "
        "is named: batch norm takes its running averages and dropout is off. The gradient is the "
        "slope of that mean by all weights together; its norm says how far from a stationary point "
        "the weights are.",
        "A loss on training samples says how well they are fitted, not how well others will be. A "
        "gradient that is not small means that training had not come to rest, and then curvature "
        "describes a place on the way: many networks are stopped there on purpose.",
    ),
    "sharpness": Term(
        "Sharpness",
        "The Hessian H holds the second derivatives of the loss by all weights. Sharpness is its "
        "largest eigenvalue λ₁: moving the weights by a distance d along its eigenvector raises "
        "the loss by about ½·λ₁·d². It is found by multiplying H with vectors, never by writing "
        "H out, and comes with the residual of the eigenpair and with the standard error over "
        "samples.",
        "It sets the largest step that gradient descent can take, 2/λ₁. It is not by itself a "
        "measure of how well a network generalises: rescaling the layers of a ReLU network changes "
        "it and leaves every prediction as it is. Compare it between networks of the same "
        "architecture, on the same samples, or relative to the limit of the optimiser.",
    ),
    "stability": Term(
        "Stability limit",
        "On a quadratic, gradient descent with rate η is stable while η·λ₁ < 2. Momentum β "
        "raises the limit to 2(1+β), weight decay adds to the curvature, and Adam scales every "
        "weight by D = η/(√v + ε), so that the largest eigenvalue of D½HD½ counts and the limit is "
        "2(1+β₁)/(1−β₁). Parameter groups may differ in all of this.",
        "Below about four fifths of the limit the step is safe; near it, training often settles at "
        "the edge of stability, where the loss still falls, unsteadily; beyond it displacements "
        "along the sharpest direction grow, and training may settle in a flatter place. The limit "
        "is that of full batches: the noise of mini-batches lowers it. With batch norm it is "
        "measured in training mode, on fixed batches and with dropout off.",
    ),
    "concentration": Term(
        "Share of the trace in a few directions",
        "The Gauss-Newton matrix is the part of the Hessian that comes from the loss's own "
        "curvature; it has no negative eigenvalues. Its trace is the sum of all of them. The share "
        "in 10 directions is the sum of its ten largest over the trace; the effective rank of the "
        "first 50 says how many equal eigenvalues would be spread as widely.",
        "A large share means that the loss is nearly flat in all other directions: training "
        "explores a thin hyper-ribbon. A classifier with C classes has about C large "
        "eigenvalues. The numbers are of a fixed number of directions and of samples, so that two "
        "reports can be laid side by side.",
    ),
    "trace": Term(
        "Trace",
        "The trace of the Gauss-Newton matrix is the sum of its eigenvalues, and also the sum over "
        "weights of the curvature along each of them. It is computed exactly, from the "
        "matrix's diagonal, and its error is that of the choice of samples.",
        "A random step of length d raises the loss by about ½·trace/P·d², with P weights. Unlike "
        "the sharpness it counts all directions; trace over sharpness is an effective "
        "number of sharp directions.",
    ),
    "layers": Term(
        "Layers",
        "The trace is a sum over weights, so each layer has a share of it. Layers are ranked by "
        "these exact shares, and the sharpness of a layer's own block of the Hessian is measured "
        "from the first one on, as far as the time goes.",
        "A layer with most of the trace is where a step of a given length changes the outputs "
        "most. It is the first candidate for a smaller learning rate or for normalisation, and the "
        "last one for noise or low precision. Shares depend on how the layers are scaled against "
        "each other.",
    ),
    "noise": Term(
        "Gradient noise and batch size",
        "Gradients of single samples scatter around their mean with covariance C. The noise scale "
        "tr C/‖∇L‖² is the batch size at which the noise of a step is as long as its signal.",
        "Batches well below it are mostly noise, and doubling them nearly halves the steps that "
        "are needed; batches well above it buy little. It grows without bound as the gradient goes "
        "to zero, so late in training it is large, and it is that of the present weights only.",
    ),
    "pruning": Term(
        "Weights that may be pruned",
        "The smallest weights are set to zero, a growing share of them, and the accuracy (or the "
        "loss) is measured on the samples of the inspection, without any training afterwards. The "
        "number is the largest share of those tested up to which it falls by no more than the "
        "tolerance.",
        "It is a lower bound on what pruning with retraining can do, and it is of the samples "
        "given: on held-out samples it may be smaller. The tolerance and the samples are said "
        "beside the number; the chart shows the whole curve.",
    ),
    "negative": Term(
        "Negative curvature",
        "The smallest eigenvalue of the Hessian is found like the largest one. Below zero, there "
        "is a direction along which the loss curves downwards, so that a step either way along it "
        "lowers the loss.",
        "A few percent of the largest eigenvalue is ordinary for networks stopped early. "
        "A large negative share says that the weights lie near a saddle, and that training on "
        "would still find a lower loss.",
    ),
}
"""By the name that answers use."""
