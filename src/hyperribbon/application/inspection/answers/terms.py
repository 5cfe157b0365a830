"""Two paragraphs on every term that an answer uses: its definition, and how to interpret it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A term that answers use, and its explanation.

    Attributes:
        title: The term.
        what: What it is.
        reading: What its size means, and what it does not mean.
    """

    title: str
    what: str
    reading: str


TERMS = {
    "loss": Term(
        "Loss and gradient",
        "The loss is the mean over the samples used, in evaluation mode unless stated otherwise: "
        "batch norm uses its running averages, and dropout is off. The gradient is the derivative "
        "of that mean with respect to all weights; its norm indicates how far the weights are from "
        "a stationary point.",
        "The loss on training samples shows how well they are fitted, not how well the network "
        "generalises. If the gradient is not small, training had not converged, and the curvature "
        "is that of an intermediate point. Many networks are stopped early on purpose.",
    ),
    "sharpness": Term(
        "Sharpness",
        "The Hessian H contains the second derivatives of the loss with respect to all weights. "
        "The sharpness is its largest eigenvalue λ₁: moving the weights by a distance d along its "
        "eigenvector raises the loss by about ½·λ₁·d². It is computed from Hessian-vector "
        "products, without forming H, and comes with the residual of the eigenpair and the "
        "standard error over samples.",
        "It sets the largest stable learning rate of gradient descent, 2/λ₁. By itself it does not "
        "measure how well a network generalises: rescaling the layers of a ReLU network changes "
        "the sharpness but no prediction. Compare networks of the same architecture on the same "
        "samples, or compare the sharpness with the limit of the optimiser.",
    ),
    "stability": Term(
        "Stability limit",
        "On a quadratic, gradient descent with learning rate η is stable while η·λ₁ < 2. Momentum "
        "β raises the limit to 2(1+β), and weight decay adds to the curvature. Adam scales every "
        "weight by D = η/(√v + ε), so the relevant number is the largest eigenvalue of D½HD½, and "
        "the limit is 2(1+β₁)/(1−β₁). Parameter groups may have different settings.",
        "Below about four fifths of the limit, the step is safe. Near it, training often settles "
        "at the edge of stability, where the loss decreases non-monotonically. Beyond it, "
        "displacements along the sharpest direction grow, and training may settle at a flatter "
        "minimum. The limit is for full batches: mini-batch noise lowers it. With batch norm it "
        "is measured in training mode, on fixed batches and with dropout off.",
    ),
    "concentration": Term(
        "Share of the trace in a few directions",
        "The Gauss-Newton matrix is the part of the Hessian that comes from the curvature of the "
        "loss function; it has no negative eigenvalues. Its trace is the sum of its eigenvalues. "
        "The share in 10 directions is the sum of the ten largest divided by the trace. The "
        "effective rank of the first 50 is the number of equal eigenvalues with the same entropy.",
        "A large share means that the loss is nearly flat in all other directions: training "
        "explores a thin hyper-ribbon. A classifier with C classes has about C large eigenvalues. "
        "The numbers of directions and of samples are fixed, so two reports can be compared.",
    ),
    "path": Term(
        "The path of training",
        "Every record of the training is a set of predictions on the same samples. Their "
        "Bhattacharyya distances are embedded by InPCA, which keeps distances in as few "
        "dimensions as possible. The share is the part of the squared distances that the first "
        "three dimensions keep.",
        "A share near 100% means that training stayed on a hyper-ribbon: long in one direction, "
        "thin in all others. The records are of one run; runs from other initialisations lie on "
        "nearby ribbons. The picture shows the first two dimensions, dark at the start.",
    ),
    "trace": Term(
        "Trace",
        "The trace of the Gauss-Newton matrix is the sum of its eigenvalues, and equally the sum "
        "of the curvatures along the weights. It is computed exactly, from the diagonal; its error "
        "is the sampling error.",
        "A random step of length d raises the loss by about ½·trace/P·d², with P weights. Unlike "
        "the sharpness, the trace counts all directions; trace over sharpness is an effective "
        "number of sharp directions.",
    ),
    "layers": Term(
        "Layers",
        "The trace is a sum over weights, so each layer has a share of it. Layers are ranked by "
        "these exact shares. The sharpness of each layer's own block of the Hessian is measured in "
        "that order while time allows.",
        "In the layer with most of the trace, a step of a given length changes the outputs most. "
        "It is the first candidate for a smaller learning rate or for normalisation, and the last "
        "one for noise or low precision. Shares depend on the relative scale of the layers.",
    ),
    "noise": Term(
        "Gradient noise and batch size",
        "Per-sample gradients scatter around their mean with covariance C. The noise scale "
        "tr C/‖∇L‖², or critical batch size, is the batch size at which the noise of a step is as "
        "large as its signal.",
        "Well below it, steps are mostly noise, and doubling the batch size nearly halves the "
        "number of steps. Well above it, larger batches gain little. It grows without bound as the "
        "gradient goes to zero, so it is large late in training; it describes the current weights "
        "only.",
    ),
    "pruning": Term(
        "Weights that may be pruned",
        "Increasing fractions of the smallest weights are set to zero, and the accuracy (or the "
        "loss) is measured on the samples of the inspection, without retraining. The number is the "
        "largest tested fraction up to which the accuracy falls by no more than the tolerance.",
        "It is a lower bound on what pruning with retraining can achieve. It holds for the given "
        "samples; on held-out data it may be smaller. The tolerance and the number of samples are "
        "given with it, and the chart shows the full curve.",
    ),
    "negative": Term(
        "Negative curvature",
        "The smallest eigenvalue of the Hessian is computed in the same way as the largest. If it "
        "is negative, a step in either direction along its eigenvector lowers the loss.",
        "A few percent of the largest eigenvalue is typical for networks stopped early. A large "
        "negative eigenvalue shows that the weights are near a saddle point, and that further "
        "training would lower the loss.",
    ),
}
"""By the name that answers use."""
