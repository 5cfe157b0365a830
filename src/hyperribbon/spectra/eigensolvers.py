"""`eigsh`: eigenpairs with their certificates, by the cheapest route."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np
import torch

from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_choice,
    check_finite,
    check_positive,
    check_positive_int,
    flag_or_text,
    function,
    tensor,
    validate,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.spectra.gram import gram_spectrum
from hyperribbon.spectra.krylov.convergence import select, tolerances
from hyperribbon.spectra.krylov.lanczos import Pairs, lanczos
from hyperribbon.spectra.planning import lanczos_route, plan
from hyperribbon.spectra.products import Products, ShouldStop
from hyperribbon.spectra.rounding import (
    Audit,
    least_floor,
    precise_images,
    random_signs,
    rounded_up,
)

_ROUNDING = 1e-15
_METHODS = ("auto", "lanczos", "gram", "dense")
ENDS = ("LA", "SA", "LM", "BE")
_STORAGES = ("auto", "memory", "disk")
_CERTIFICATES = ("residual", "full")
_SHARDED = "sharded"


@validate(eigenvectors=flag_or_text, should_stop=function)
@plain_arithmetic()
def eigsh(
    op: Any,
    k: int,
    which: str = "LA",
    tol: float = 1e-4,
    method: str = "auto",
    *,
    certificate: str = "residual",
    seed: int = 0,
    v0: Spectrum | torch.Tensor | np.ndarray | None = None,
    max_matvecs: int | None = None,
    max_seconds: float | None = None,
    eigenvectors: bool | str = True,
    basis: int | None = None,
    storage: str = "auto",
    memory: float | None = None,
    should_stop: ShouldStop | None = None,
) -> Spectrum:
    """Return k eigenpairs of a symmetric operator by an eigensolver, with residuals ‖A v − λ v‖.

    A pair is converged when

        ‖A v − λ v‖ ≤ tol · max(|λ|, ‖A‖/10).

    Two certificates: "residual" also shows that no eigenvalue lies beyond the outermost one, by
    more than that, so the sharpness (k=1) is certain; of several pairs, one in between may be
    missing, such as a second copy of a repeated eigenvalue. "full" shows that none is missing: the
    i-th eigenvalue that was asked for lies within `bounds` of the i-th one listed. Lanczos shows it
    from the growth of a second chain beside the first, see `End` and `Evidence`, and is wrong with
    a probability below 0.001 of its random start; that mostly takes 1.2 to 1.6 times the products.
    The dense methods see all eigenvalues.

    Methods: "dense" forms the matrix; "gram" uses A = FᵀF through the smaller FFᵀ, for operators
    that have `gram()`; "lanczos" is thick-restart Lanczos with full reorthogonalisation on the
    operator's device. "auto" takes the cheapest, see `plan`.

    Args:
        op: Any object with `.shape` and `@`: ours, curvlinops', scipy's, a matrix, a tensor.
        k: Number of pairs.
        which: "LA" largest, "SA" smallest, "LM" largest in magnitude, "BE" both ends.
        tol: Accuracy, relative to each eigenvalue, or to a tenth of the norm ‖A‖ (the largest
            magnitude of a Ritz value) for eigenvalues smaller than that. It bounds residuals, and
            how far an eigenvalue that was asked for may be from the one listed in its place; where
            they are apart, errors of eigenvalues are of the order of its square over the relative
            gap. Residuals below 20 units of rounding of ‖A‖ are not asked for.
        method: "auto", "lanczos", "gram" or "dense".
        certificate: "residual" or "full". `Spectrum.certificate` is what was reached.
        seed: Seed of the random directions.
        v0: Warm start for Lanczos: an earlier `Spectrum`, a vector (P,) or a block (P, b). This,
            `basis` and `storage` make it the route of "auto"; they and the limits are refused
            beside "dense" and "gram".
        max_matvecs: Products after which Lanczos returns what it has, with `converged` telling
            which pairs are good. None: 1000 + 100 k. Where "auto" finds another route cheaper than
            Lanczos without limits, it takes that to its end.
        max_seconds: Time after which Lanczos does so, once it has k pairs of any quality.
        eigenvectors: Whether to return eigenvectors. With an operator of several processes
            "sharded" returns only the rows `op.processes.rows(P)` that this rank has.
        basis: Vectors Lanczos keeps. None: as many as pay off and fit.
        storage: Where Lanczos keeps them: "memory", or "disk", in TMPDIR, with the same numbers.
            "auto" takes memory while it lasts.
        memory: Bytes that may be used; None for what the device has free. Where no route that was
            asked for keeps to them, the call is refused and says what it takes. Where float64 does
            not fit, `rounding` is measured in the operator's own precision, and at least the
            allowance of 20 units; errors that all its products share may be larger.
        should_stop: Called at the beginning and before every product, or block of columns where the
            matrix is formed; not inside a product or a Gram matrix. Once it returns True, Lanczos
            returns the pairs it has. With several processes all of them give one, and one that
            returns True stops all.

    Returns:
        Eigenvalues in descending order, with eigenvectors (P, k). `converged` says which pairs
        are; the others were stopped by `max_matvecs`, `max_seconds`, `should_stop` or rounding.

    Raises:
        ArgumentError: The operator is not square or not symmetric, gives NaN, or an argument does
            not fit.
        StoppedError: `should_stop` returned True before there were k pairs.

    >>> import torch
    >>> spectrum = eigsh(torch.diag(torch.tensor([3.0, -1.0, 2.0, 0.5])), k=2)
    >>> [round(value, 6) for value in spectrum.eigenvalues.tolist()]
    [3.0, 2.0]
    """
    products = Products(op, should_stop)
    k = check_positive_int("k", k)
    if k > products.size:
        raise ArgumentError(
            "k", k, f"the operator has only {products.size} eigenvalues", "Ask for fewer."
        )
    check_choice("which", which, ENDS)
    check_choice("method", method, _METHODS)
    check_choice("storage", storage, _STORAGES)
    is_full = check_choice("certificate", certificate, _CERTIFICATES) == "full"
    tol = check_positive("tol", tol)
    memory = None if memory is None else check_positive("memory", memory)
    if isinstance(eigenvectors, str):
        check_choice("eigenvectors", eigenvectors, (_SHARDED,))
    given = {"v0": v0, "basis": basis, "storage": None if storage == "auto" else storage}
    if method == "auto" and all(value is None for value in given.values()):
        method = _cheapest(products, k, tol, memory, bool(eigenvectors))
    elif method in ("dense", "gram"):
        limits = {"max_matvecs": max_matvecs, "max_seconds": max_seconds}
        for name, value in {**given, **limits}.items():
            check_absent(name, value, f"it is of Lanczos, and method={method!r}")
        _check_room(products, k, memory, method, bool(eigenvectors))
    if method in ("dense", "gram"):
        solve = _dense if method == "dense" else gram_spectrum
        spectrum = solve(products, k, which, tol, bool(eigenvectors), seed)
        if eigenvectors == _SHARDED and spectrum.eigenvectors is not None:
            spectrum = replace(spectrum, eigenvectors=spectrum.eigenvectors[products.rows])
        return spectrum
    with products.processes.together("the planning of a spectrum"):
        asked = None if basis is None else _capacity(products, k, basis)
        route = lanczos_route(products, k, tol, memory=memory, storage=storage, basis=asked)
    limit = products_limit(k)
    if max_matvecs is not None and (limit := check_positive_int("max_matvecs", max_matvecs)) < k:
        raise ArgumentError(
            "max_matvecs", limit, f"k={k} pairs need at least {k} products", f"Give {3 * k}."
        )
    generator = torch_generator(seed, "eigsh")
    pairs = lanczos(
        products,
        k,
        which,
        tol,
        is_full=is_full,
        capacity=-int(products.processes.largest(-route.basis)),
        start=None if v0 is None else _start_rows(v0, products),
        draw=lambda: products.random_part(generator),
        max_matvecs=limit,
        max_seconds=inf if max_seconds is None else check_positive("max_seconds", max_seconds),
        storage=products.processes.choose(route.storage),
        is_wide=products.processes.choose(route.is_wide),
    )
    return as_spectrum(products, pairs, is_full, eigenvectors)


def _cheapest(
    products: Products, k: int, tol: float, memory: float | None, eigenvectors: bool
) -> str:
    """Return the eigensolver of the best plan; with several processes, of rank 0's."""
    getattr(products.op, "gram_size", None)  # counted by all ranks together, before they plan
    with products.processes.together("the planning of a spectrum"):
        best = plan(products.op, k, memory=memory, eigenvectors=eigenvectors, tol=tol).best
    return products.processes.choose(best.method)


def _check_room(
    products: Products, k: int, memory: float | None, method: str, eigenvectors: bool
) -> None:
    """Raise where the eigensolver asked for does not fit into the memory that was given."""
    if memory is None:
        return
    getattr(products.op, "gram_size", None)  # counted by all ranks together, before they plan
    with products.processes.together("the planning of a spectrum"):
        found = plan(products.op, k, memory=memory, eigenvectors=eigenvectors)
        routes = [route for route in found.routes if route.method == method]
        if routes and not any(route.fits for route in routes):
            needed = min(route.memory for route in routes)
            reason = f"method={method!r} takes {needed / 1e6:.2f} MB"
            raise ArgumentError("memory", memory, reason, "Give more, or use method='auto'.")


def _dense(
    products: Products, k: int, which: str, tol: float, eigenvectors: bool, seed: int
) -> Spectrum:
    matrix = products.dense()
    values, vectors = products.processes.from_first(
        lambda: tuple(torch.linalg.eigh(matrix)), "a dense eigenproblem"
    )
    wanted = select(values, k, which).flip(0).to(values.device)
    norm, reachable = float(values.abs().max()), _ROUNDING * len(matrix)
    rounding = torch.finfo(products.dtype).eps * sqrt(len(matrix))  # of the entries
    values, vectors = values[wanted], vectors[:, wanted]
    before = torch.linalg.vector_norm(matrix @ vectors - vectors * values, dim=0)
    listed = values.to(products.dtype)
    vectors = vectors.to(products.dtype) if eigenvectors else vectors
    residual = matrix @ vectors.double() - vectors.double() * listed.double()
    signs = random_signs(k)
    combined = products.part((residual @ signs.to(residual)).unsqueeze(0))
    audit = Audit(products, signs, products.part(vectors.T), listed, combined)
    floor, error = _matrix_errors(products, matrix, audit, norm, seed)
    residuals = torch.linalg.vector_norm(residual, dim=0) + floor
    return Spectrum(
        eigenvalues=listed,
        eigenvectors=vectors if eigenvectors else None,
        residuals=rounded_up(residuals, products.dtype),
        matvecs=products.matvecs,
        method="dense",
        converged=before <= tolerances(values, norm, tol, reachable),
        bounds=rounded_up(residuals.clamp(min=(reachable + rounding) * norm) + error, listed.dtype),
        rounding=rounded_up(torch.full_like(residuals, floor), products.dtype),
    )


def _matrix_errors(
    products: Products, matrix: torch.Tensor, audit: Audit, norm: float, seed: int
) -> tuple[float, float]:
    """Return rounding for an eigensolver of a written-out matrix: of residuals, and of ‖A‖.

    A random vector ω has E‖Eω‖² = ‖E‖² (Frobenius) for the error E of the matrix, which moves no
    eigenvalue by more than that.
    """
    floor = least_floor(products, norm)
    floor += _ROUNDING * sqrt(len(matrix)) * norm  # of the product with the matrix
    if products.is_explicit:
        return floor, 0.0
    generator = torch_generator(seed, "errors of a matrix")
    omega = torch.randn(1, len(matrix), generator=generator, dtype=matrix.dtype, device="cpu").to(
        matrix.device
    )
    error = precise_images(products, products.part(omega)) - products.part(omega @ matrix)
    return floor + audit.floor(0.0), 4 * float(products.norms(error))


def products_limit(k: int) -> int:
    """Return the products after which the eigensolver gives up when no limit is set."""
    return 1000 + 100 * k


def as_spectrum(
    products: Products, pairs: Pairs, is_full: bool, eigenvectors: bool | str
) -> Spectrum:
    """Return what an eigensolver found, Ritz pairs in descending order, as a spectrum."""
    shown = pairs.bounds.isfinite()
    converged = pairs.converged & shown if is_full else pairs.converged
    values = pairs.values.flip(0).to(products.device, products.dtype)
    rows = pairs.rows if eigenvectors == _SHARDED else products.whole(pairs.rows)
    return Spectrum(
        eigenvalues=values,
        eigenvectors=_as_columns(rows) if eigenvectors else None,
        residuals=rounded_up(pairs.residuals.flip(0) + pairs.floor, values.dtype).to(values),
        matvecs=products.matvecs,
        method="lanczos",
        converged=converged.flip(0).to(products.device),
        bounds=rounded_up(pairs.bounds.flip(0) + pairs.floor, values.dtype).to(values),
        rounding=torch.full_like(values, pairs.floor),
        certificate="full" if bool(shown.all()) else "residual",
    )


def _as_columns(rows: torch.Tensor) -> torch.Tensor:
    """Return an eigensolver's rows (k, P) as columns (P, k) in reverse, without a further copy."""
    columns = rows.new_empty(rows.shape[1], len(rows))
    for position, row in enumerate(rows):
        columns[:, len(rows) - 1 - position] = row
    return columns


def _capacity(products: Products, k: int, basis: int) -> int:
    least = min(k + 2, products.size)
    if check_positive_int("basis", basis) < least:
        raise ArgumentError(
            "basis", basis, f"{k} pairs need at least {least} vectors", f"Give {2 * k + 10}."
        )
    return min(basis, products.size)


def _start_rows(v0: Spectrum | torch.Tensor | np.ndarray, products: Products) -> torch.Tensor:
    """Return an eigensolver's warm start as rows (b, P)."""
    given = v0.eigenvectors if isinstance(v0, Spectrum) else v0
    if given is None:
        raise ArgumentError(
            "v0", v0, "that spectrum has no eigenvectors", "Compute it with eigenvectors=True."
        )
    block = tensor("v0", given).to(products.device, products.dtype)
    block = block.unsqueeze(1) if block.ndim == 1 else block
    if block.ndim != 2 or block.shape[0] != products.size or block.shape[1] == 0:
        remedy = f"Give a vector ({products.size},) or a block ({products.size}, b)."
        raise ArgumentError("v0", given, f"the operator has {products.size} coordinates", remedy)
    return check_finite("v0", block).T.contiguous()
