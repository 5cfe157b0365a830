"""How few directions a network's Fisher matrix has, and how few weights they involve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hyperribbon.application.inspection.copies import copy_in_mode
from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_choice,
    check_finite,
    check_positive_int,
    validate,
)
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.core.result import Result, frame
from hyperribbon.operators import Fisher, Jacobian
from hyperribbon.spectra import eigsh
from hyperribbon.subnetworks.states import State, layer_of, state_of

if TYPE_CHECKING:
    import pandas as pd

_DENSE_LIMIT = 1200
_DENSE_SHARE = 10
_ROWS = 4096


@dataclass(frozen=True)
class Anisotropy(Result):
    """The leading spectrum of F = (1/N) Σ_n Σ_k ∇f_k(x_n) ∇f_k(x_n)ᵀ.

    Always read it with `samples` and `outputs`: the trace ratio of a trained classifier depends
    strongly on both.

    Attributes:
        eigenvalues: (k,), descending.
        trace: Of F, exact.
        frobenius: ‖F‖_F, the L2 norm of the spectrum, exact.
        effective_ranks: (k,), exp of the entropy of each eigenvector's entries, NaN for one of a
            zero matrix; None if not asked.
        kurtoses: (k,), excess kurtosis of each eigenvector's entries, likewise.
        eigenvectors: (P, m), those at the positions `kept`; None if none were kept.
        kept: Positions of the kept eigenvectors, 0 the leading one.
        sample_shares: (N,), each sample's share in the trace; NaN where that is zero.
        samples: N.
        outputs: "softmax" or "model".
        parameters: P.
        means: (C, m), the mean gradients of the outputs along the kept eigenvectors, where the
            matrix is centred; else None.
    """

    eigenvalues: torch.Tensor
    trace: float
    frobenius: float
    effective_ranks: torch.Tensor | None
    kurtoses: torch.Tensor | None
    eigenvectors: torch.Tensor | None
    kept: tuple[int, ...]
    sample_shares: torch.Tensor
    samples: int
    outputs: str
    parameters: int
    means: torch.Tensor | None = None

    def to_frame(self) -> pd.DataFrame:
        """Return anisotropy as a table: eigenvalues, with effective ranks and kurtoses if known."""
        own = {"effective_rank": self.effective_ranks, "kurtosis": self.kurtoses}
        return frame({"eigenvalue": self.eigenvalues} | own, "number")

    @property
    def spectral_norm(self) -> float:
        """Largest eigenvalue of the anisotropic Fisher matrix."""
        return float(self.eigenvalues[0])

    def trace_ratio(self, k: int) -> float:
        r"""Return the anisotropy T_k, the share of the k leading eigenvalues in the trace.

        $$T_k = \sum_{j\le k} \lambda_j \Big/ \sum_j \lambda_j$$

        Implements Eq. (4.22) of [subnetworks]; the sum below runs over all min(P, CN) eigenvalues.
        """
        if check_positive_int("k", k) > len(self.eigenvalues):
            reason = f"{len(self.eigenvalues)} eigenvalues were computed"
            raise ArgumentError("k", k, reason, "Measure with more.")
        return float(self.eigenvalues[:k].sum() / self.trace) if self.trace > 0 else float("nan")


_spectrum = checks.instance(Anisotropy, "Give the result of measure_anisotropy.")


def _columns(argument: str, value: Any) -> torch.Tensor:
    found = checks.tensor(argument, value)
    if found.ndim != 2 or not len(found):
        raise ArgumentError(argument, value, "expected columns (P, k)", "Give a matrix (P, k).")
    found = check_finite(argument, found.detach())
    return found.double() if not found.is_floating_point() else found


@validate(model=checks.torch_module, inputs=checks.tensor)
def measure_anisotropy(
    model: nn.Module,
    inputs: torch.Tensor,
    *,
    state: State | None = None,
    k: int = 100,
    outputs: str = "softmax",
    centre: bool = False,
    vectors: bool = True,
    keep: Sequence[int] | bool = False,
    params: ParameterFilter = None,
    mask: Mask | None = None,
) -> Anisotropy:
    """Measure the anisotropy of the Fisher matrix of a network or a sub-network.

    Works in float64 through the Gram matrix of the N·C output gradients, built layer by layer, of
    which the k leading pairs are found by Lanczos iteration. The model stays as it is.

    Args:
        model: A classifier that returns logits (or any model, with outputs="model").
        inputs: The N inputs the matrix averages over.
        state: A state of the model, such as `prune` and `reinitialize` return; its own by default.
        k: Number of eigenvalues; fewer are returned if the matrix has fewer.
        outputs: "softmax" for the gradients of the class probabilities, "model" for the logits.
        centre: Whether the gradients of each output are taken around their mean over the inputs,
            see `hr.Fisher`; trace, ratios and eigenfunctions are those of the centred matrix.
        vectors: Whether to measure the entries of the eigenvectors.
        keep: Positions of the eigenvectors to return, 0 the leading one; True for all.
        params: Restrict the matrix to these parameters.
        mask: Restrict it to these entries.
    """
    check_choice("outputs", outputs, ("softmax", "model"))
    network = _prepare(model, state)
    fisher = Fisher(
        network,
        inputs.double() if inputs.is_floating_point() else inputs,
        likelihood="gaussian",
        outputs=outputs,
        centre=centre,
        params=params,
        mask=mask,
    )
    gram = fisher.gram()
    count = min(check_positive_int("k", k), len(gram), fisher.shape[0])
    dense = len(gram) <= _DENSE_LIMIT or _DENSE_SHARE * count >= len(gram)
    method = "dense" if dense else "lanczos"
    spectrum = eigsh(gram, count, tol=1e-9, method=method, certificate="full")
    kept = tuple(range(count)) if keep is True else ()
    if not isinstance(keep, bool):
        kept = tuple(checks.wholes("keep", keep).tolist())
        if max(kept) >= count:
            remedy = f"Give positions from 0 to {count - 1}."
            raise ArgumentError("keep", keep, f"there are {count} eigenvectors", remedy)
    lifted = range(count) if vectors else kept
    columns = _lift(fisher, spectrum.eigenvectors, list(lifted)) if lifted else None
    norms = gram.diagonal().reshape(len(inputs), -1).sum(1)
    own = columns[:, list(kept)] if vectors and columns is not None else columns
    means = fisher.mean_rows().T @ own if centre and own is not None else None
    return Anisotropy(
        eigenvalues=spectrum.eigenvalues.clamp_min(0.0),
        trace=float(gram.trace()),
        frobenius=float(torch.linalg.matrix_norm(gram)),
        effective_ranks=effective_ranks(columns) if vectors and columns is not None else None,
        kurtoses=excess_kurtoses(columns) if vectors and columns is not None else None,
        eigenvectors=own,
        kept=kept,
        sample_shares=norms / norms.sum(),
        samples=len(inputs),
        outputs=outputs,
        parameters=fisher.shape[0],
        means=means,
    )


@validate(model=checks.torch_module, inputs=checks.tensor)
def anisotropy_by_layer(
    model: nn.Module,
    inputs: torch.Tensor,
    *,
    state: State | None = None,
    k: int = 100,
    outputs: str = "softmax",
    centre: bool = False,
    vectors: bool = True,
    mask: Mask | None = None,
) -> dict[str, Anisotropy]:
    """Measure the anisotropy of every layer's diagonal block of the Fisher matrix.

    Args:
        model: As there.
        inputs: As there.
        state: As there.
        k: Number of eigenvalues for each layer.
        outputs: As there.
        centre: As there.
        vectors: As there.
        mask: As there; layers in which it selects nothing are omitted.

    Raises:
        ArgumentError: The mask selects nothing.
    """
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (mask is None or (name in mask and bool(mask[name].any())))
    ]
    if not names:
        reason = "it selects no entry of a trainable parameter"
        raise ArgumentError("mask", mask, reason, "Select at least one.")
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(layer_of(name), []).append(name)
    options: dict[str, Any] = {"state": state, "k": k, "outputs": outputs, "vectors": vectors}
    options["centre"] = centre
    return {
        layer: measure_anisotropy(model, inputs, params=owned, mask=mask, **options)
        for layer, owned in members.items()
    }


@validate(vectors=_columns)
def effective_ranks(vectors: torch.Tensor) -> torch.Tensor:
    r"""Return the effective rank (number of entries) of each eigenvector, for the anisotropy.

    $$\operatorname{erank}(v) = e^{H(v)},\quad H(v) = -\sum_i p_i\log p_i,\quad
      p_i = |v_i| / \textstyle\sum_j |v_j|$$

    with 0·log 0 = 0. A column of one entry has 1, a constant one its length, a Gaussian one about
    0.75 of it, one of zeros NaN. Implements Eqs. (4.26) and (4.28) of [subnetworks].

    Args:
        vectors: (P, k).
    """
    total, logs = vectors.new_zeros(2, vectors.shape[1])
    scale = vectors.abs().amax(0)
    for rows in vectors.split(_ROWS):
        magnitudes = rows.abs() / scale
        total += magnitudes.sum(0)
        logs += torch.special.xlogy(magnitudes, magnitudes).sum(0)
    return (total.log() - logs / total).exp()


@validate(vectors=_columns)
def excess_kurtoses(vectors: torch.Tensor) -> torch.Tensor:
    r"""Return the excess kurtosis of the entries of each eigenvector, for the anisotropy.

    $$K(v) = \frac1n\sum_i\Bigl(\frac{v_i-\mu}{\sigma}\Bigr)^4 - 3$$

    A constant column has NaN. Implements Eq. (4.25) of [subnetworks].

    Args:
        vectors: (P, k).
    """
    scale = vectors.abs().amax(0)
    mean = (vectors / scale).mean(0)
    second, fourth = vectors.new_zeros(2, vectors.shape[1])
    for rows in vectors.split(_ROWS):
        squares = (rows / scale - mean).square_()
        second += squares.sum(0)
        fourth += squares.square_().sum(0)
    return len(vectors) * fourth / second.square() - 3.0


@validate(
    model=checks.torch_module,
    spectrum=_spectrum,
    inputs=checks.tensor,
    which=checks.list_of(checks.whole),
)
def eigenfunctions(
    model: nn.Module,
    spectrum: Anisotropy,
    inputs: torch.Tensor,
    *,
    state: State | None = None,
    which: tuple[int, ...] | None = None,
) -> torch.Tensor:
    r"""Return how outputs move along the anisotropic Fisher matrix's eigenvectors, (n, C, k).

    $$u_i^{(c)}(x) = \frac{1}{\sqrt{\lambda_i}}\,\langle v_i, \nabla f_c(x)\rangle$$

    Implements Eq. (4.24) of [subnetworks] for every output c; for a centred spectrum the gradient
    is taken around its mean over the inputs of the spectrum. Over the inputs the matrix was made
    of, $\sum_c E[u_i^{(c)}(x)^2] = 1$; the single output of the text has less than unit norm, since
    its matrix sums over all outputs.

    Args:
        model: The model of the spectrum.
        spectrum: Measured with eigenvectors kept, over all parameters.
        inputs: Any inputs, held-out ones too.
        state: The state of the spectrum.
        which: Positions of the eigenvectors, 0 the leading one; all that were kept by default.
    """
    wanted = spectrum.kept if which is None else which
    if spectrum.eigenvectors is None or not set(wanted) <= set(spectrum.kept) or not wanted:
        reason = f"the spectrum keeps the eigenvectors at {spectrum.kept}"
        remedy = "Measure with keep=True, or with the positions wanted."
        raise ArgumentError("which", which, reason, remedy)
    lost = [i for i in wanted if spectrum.eigenvalues[i] <= _rounding(spectrum)]
    if lost:
        reason = "these eigenvalues are zero to rounding, so their eigenvectors are arbitrary"
        remedy = "Take leading ones, or measure the spectrum over more inputs."
        raise ArgumentError("which", lost, reason, remedy)
    network = _prepare(model, state)
    space = ParameterSpace.of_model(network)
    if space.dimension != len(spectrum.eigenvectors):
        reason = f"the model has {space.dimension} parameters"
        remedy = "Measure it over all parameters of this model."
        raise ArgumentError("spectrum", spectrum.eigenvectors, reason, remedy)
    columns = [spectrum.kept.index(position) for position in wanted]
    values = inputs.double() if inputs.is_floating_point() else inputs
    change = Jacobian(network, values) @ spectrum.eigenvectors[:, columns].double()
    with torch.no_grad():
        logits = network(values)
    change = change.reshape(*logits.shape, len(wanted))
    if spectrum.outputs == "softmax":
        change = _softmax_change(logits, change)
    if spectrum.means is not None:
        change = change - spectrum.means[:, columns].reshape(*logits.shape[1:], len(wanted))
    return change / spectrum.eigenvalues[list(wanted)].sqrt()


def _rounding(spectrum: Anisotropy) -> float:
    """Return the size below which eigenvalues are rounding when anisotropy is measured."""
    return float(spectrum.eigenvalues[0]) * spectrum.samples * torch.finfo(torch.float64).eps


def _softmax_change(logits: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """Return p∘(dz − p·dz) for anisotropy's eigenfunctions, so that nothing cancels."""
    p = torch.softmax(logits, dim=1).unsqueeze(-1)
    largest = logits.argmax(1)[:, None, None].expand(-1, 1, change.shape[-1])
    shifted = change - change.gather(1, largest)
    return p * (shifted - (p * shifted).sum(1, keepdim=True))


def _lift(fisher: Fisher, coefficients: torch.Tensor | None, columns: list[int]) -> torch.Tensor:
    """Return unit eigenvectors of the Fisher matrix in weight space, for the anisotropy."""
    assert coefficients is not None
    lifted = fisher.lift(coefficients[:, columns])
    return lifted.div_(torch.linalg.vector_norm(lifted, dim=0).clamp_min(1e-300))


def _prepare(model: nn.Module, state: State | None) -> nn.Module:
    network = copy_in_mode(model)
    if state is not None:
        network.load_state_dict(state_of("state", state))
    return network.double()
