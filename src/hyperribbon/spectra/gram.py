"""Spectra of A = FᵀF through the smaller matrix FFᵀ, with the exact zeros counted."""

from __future__ import annotations

import torch

from hyperribbon.core.checks import ArgumentError, check_finite
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.spectra.krylov.convergence import select, tolerances
from hyperribbon.spectra.products import Products
from hyperribbon.spectra.rounding import Audit, random_signs, rounded_up


def gram_spectrum(
    products: Products, k: int, which: str, tol: float, eigenvectors: bool, seed: int
) -> Spectrum:
    """Return eigenpairs of A = FᵀF (P, P) from those (λ, u) of the Gram matrix G = FFᵀ (r, r).

    The nonzero eigenvalues agree and v = Fᵀu/√λ; the other P − rank eigenvalues are exactly zero.
    Eigenvalues of G below r·ε·λ_max are rounding of zero and are counted as zeros. Eigenvectors of
    zero are random directions orthogonal to all the others. Without eigenvectors the lifts of
    Σ gᵢuᵢ/√λᵢ and Σ gᵢ√λᵢuᵢ, with signs gᵢ, show how far A is from λᵢ on all of them together.

    Args:
        products: The operator, which has `gram()`, `gram_size` and `lift(U)` = FᵀU.
        k: Pairs wanted.
        which: "LA", "SA", "LM" or "BE".
        tol: Relative accuracy below which a pair counts as converged, as for `tolerances`.
        eigenvectors: Whether to lift the eigenvectors.
        seed: Seed of the directions for zero eigenvalues.

    Raises:
        ArgumentError: The operator has no `gram()`.
    """
    op = products.op
    if getattr(op, "gram_size", None) is None:
        remedy = "Use method='lanczos', or an operator of the form FᵀF such as GGN, Fisher or NTK."
        raise ArgumentError("method", "gram", f"{type(op).__name__} has no gram()", remedy)
    given = check_finite("op.gram()", tensor_of(op.gram())).double()
    G = (given + given.T) / 2
    precision = torch.finfo(products.dtype).eps
    values, U = products.processes.from_first(
        lambda: tuple(torch.linalg.eigh(G)), "a dense eigenproblem"
    )
    top = max(float(values[-1]), 0.0)
    rank = int((values > len(values) * precision * top).sum())
    zeros = products.size - rank
    listed = torch.cat([values.new_zeros(zeros), values[len(values) - rank :]])
    wanted = select(listed, k, which).flip(0).to(listed.device)
    eigenvalues = listed[wanted]
    nonzero = wanted[wanted >= zeros] - zeros
    lead = U[:, len(G) - rank :]
    if eigenvectors:
        vectors = _lift(products, lead, nonzero, k - len(nonzero), seed)
        image = products(vectors) - vectors * eigenvalues.to(vectors)
        residuals = torch.linalg.vector_norm(image.double(), dim=0)
        signs, listed = random_signs(k), eigenvalues.to(vectors)
        residual = products.part((image @ signs.to(image)).unsqueeze(0))
        audit = Audit(products, signs, products.part(vectors.T), listed, residual)
    else:
        vectors, residuals = None, torch.zeros_like(eigenvalues)
        alternate = 1 - 2 * (torch.arange(len(nonzero), device=lead.device) % 2)
        roots = eigenvalues[eigenvalues > 0].sqrt()
        pair = torch.stack([alternate / roots, alternate * roots], dim=1).to(lead)
        lifted = op.lift((lead[:, nonzero] @ pair).to(products.dtype))
        total, image = products.part(lifted.T).split(1)
        one = torch.ones(1, device="cpu")
        audit = Audit(products, one, total, one - one, image)
    floor = audit.floor(top) + (0.0 if rank == len(G) else len(G) * precision * top)
    bounds = residuals.clamp(min=len(G) * precision * top) + floor
    return Spectrum(
        eigenvalues=eigenvalues.to(products.dtype),
        eigenvectors=vectors,
        residuals=rounded_up(residuals + floor, products.dtype),
        matvecs=products.matvecs,
        method="gram",
        converged=residuals <= tolerances(eigenvalues, top, tol, 20 * precision).to(residuals),
        zeros=zeros - (k - len(nonzero)),
        bounds=rounded_up(bounds, products.dtype),
        rounding=rounded_up(torch.full_like(residuals, floor), products.dtype),
    )


def _lift(
    products: Products, U: torch.Tensor, nonzero: torch.Tensor, missing: int, seed: int
) -> torch.Tensor:
    """Return the Gram eigenvectors lifted, Fᵀu/√λ, and `missing` directions orthogonal to them."""
    chosen = U if missing else U[:, nonzero]
    lifted = tensor_of(products.op.lift(chosen.to(products.dtype))).to(products.dtype)
    lifted = lifted / torch.linalg.vector_norm(lifted, dim=0)
    if not missing:
        return lifted
    generator = torch_generator(seed, "null space")
    random = torch.randn(products.size, missing, generator=generator, device="cpu").to(lifted)
    for _ in range(2):
        random = torch.linalg.qr(random - lifted @ (lifted.T @ random)).Q
    return torch.cat([lifted[:, nonzero], random], dim=1)
