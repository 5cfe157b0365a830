"""What each route to a spectrum would take, before anything runs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_positive, check_positive_int, validate
from hyperribbon.core.devices.memory import free_memory
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.result import Result
from hyperribbon.spectra.krylov.rows import piece_length
from hyperribbon.spectra.product_costs import gigabytes, product_bytes, product_seconds, speed
from hyperribbon.spectra.products import Products
from hyperribbon.spectra.rounding import is_near_rounding

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Plan",
    "Route",
    "affordable_vectors",
    "agreed_capacity",
    "free_memory",
    "lanczos_capacity",
    "lanczos_route",
    "plan",
]

_EIGH = 40.0  # a dense eigenproblem of size n takes about as long as 40 n³ operations of a product
_EXACT_SECONDS = 0.2  # below this, the exact dense route is preferred to any estimate of its time
_STEP_SECONDS = 5e-4  # bookkeeping of one Lanczos step
_WORKING = 2  # vectors that Lanczos holds besides its basis and the pairs that it takes from it
_SMALL = 1 << 16  # bytes of everything that does not grow with the operator
_BANDWIDTH = {"memory": 8e9, "disk": 3e8}  # bytes a second when Lanczos reads its basis


@dataclass(frozen=True)
class Route:
    """One planned route to the spectrum: method, memory, seconds, products.

    Attributes:
        method: "dense", "gram" or "lanczos".
        memory: Bytes at the peak, on top of what is in use.
        seconds: Estimated time.
        matvecs: Products with the operator, estimated for Lanczos.
        fits: Whether the memory (and the disk) is there.
        storage: Where Lanczos keeps its basis: "memory" or "disk".
        basis: Vectors Lanczos keeps; 0 for other methods.
        disk: Bytes on disk.
        is_wide: Whether there is room to measure the rounding of the results in float64.
    """

    method: str
    memory: int
    seconds: float
    matvecs: int
    fits: bool
    storage: str = "memory"
    basis: int = 0
    disk: int = 0
    is_wide: bool = True

    @property
    def name(self) -> str:
        """The method of a planned route, with the storage where it is not memory."""
        return self.method if self.storage == "memory" else f"{self.method}, {self.storage}"


@dataclass(frozen=True)
class Plan(Result, plot="plot_plan"):
    """The routes that exist, the best one first.

    Attributes:
        routes: Those that fit by time, then those that do not.
        available: Bytes that are free.
    """

    routes: tuple[Route, ...]
    available: int

    @property
    def best(self) -> Route:
        """The planned route that `eigsh` takes with method="auto"."""
        return self.routes[0]

    def __str__(self) -> str:
        """Return the plan, one line per route."""
        lines = [f"{'route':<13} {'memory':>10} {'time':>10} {'products':>9}"]
        for route in self.routes:
            note = "" if route.fits else f"  does not fit in {gigabytes(self.available)}"
            lines.append(
                f"{route.name:<13} {gigabytes(route.memory):>10} {route.seconds:>8.2g} s "
                f"{route.matvecs:>9}{note}"
            )
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """Return method, memory and disk in bytes, seconds and products, one row per route."""
        import pandas as pd

        return pd.DataFrame([{"route": route.name, **vars(route)} for route in self.routes])

    def _headline(self) -> str:
        needs = f"{gigabytes(self.best.memory)}, about {self.best.seconds:.2g} s"
        others = [route.name for route in self.routes[1:]]
        beside = f"; also {', '.join(others)}" if others else ""
        return f"best: {self.best.name}, {needs}; {gigabytes(self.available)} free{beside}"


@validate(tol=checks.positive)
@plain_arithmetic()
def plan(
    op: Any,
    k: int,
    *,
    memory: float | None = None,
    eigenvectors: bool = True,
    tol: float = 1e-4,
) -> Plan:
    """Plan: return memory and time of every route to k eigenpairs; nothing is multiplied.

    Where the operator has been multiplied with a vector before, a product takes as long as it did
    then; else the time follows from its operations.

    With P coordinates, m basis vectors, r = gram_size and c operations a product:

        dense    P products, 5·8·P² bytes, P·c + 40 P³ operations
        gram     5·8·r² bytes and the factors of F, r·c + 40 r³ operations
        lanczos  about m = 3k + 25 products, m·P numbers, m·(c + 4·m·P) operations and one
                 reading of the basis per product

    on top of what a product itself takes (`op.cost()`, where the operator knows it). The one in
    double precision that measures the rounding of the results comes after Lanczos has given its
    basis back, so the larger of the two counts; where it does not fit, the product is made in the
    operator's own precision. Where memory is short of m vectors,
    Lanczos restarts with fewer, and its basis may be kept on disk instead.

    Args:
        op: Any object with `.shape` and `@`.
        k: Pairs wanted.
        memory: Bytes that may be used; None for what the device has free.
        eigenvectors: Whether eigenvectors are wanted.
        tol: Relative residuals wanted.

    Returns:
        The plan, best route first.

    Raises:
        ArgumentError: No route fits; the message says how large they are and what would fit.

    >>> import torch
    >>> plan(torch.eye(300), k=5).best.method
    'dense'
    """  # noqa: DOC501 - _nothing_fits() returns an ArgumentError
    products = Products(op)
    k = check_positive_int("k", k, maximum=products.size)
    available = (
        free_memory(products.device) if memory is None else int(check_positive("memory", memory))
    )
    rate = speed(products)
    routes = [
        _dense(products, available, rate),
        *_lanczos(products, k, available, rate, tol),
        *_gram(products, k, available, rate, eigenvectors),
    ]
    fitting = sorted((route for route in routes if route.fits), key=_preference)
    if not fitting:
        raise _nothing_fits(products, k, routes, memory, available)
    others = sorted((route for route in routes if not route.fits), key=lambda r: r.memory)
    return Plan((*fitting, *others), available)


def lanczos_capacity(products: Products, k: int, available: int) -> int:
    """Return how many basis vectors to plan for: no restart where half the memory allows that.

    Where half of it is short of eight vectors more than k, all of it is used, for k + 2 at the
    least.

    Args:
        products: The operator.
        k: Pairs wanted.
        available: Bytes that may be used.
    """
    vector = max(products.length * products.dtype.itemsize, 1)
    product = product_bytes(products, is_audited=False)
    beside = _beside(products, k)
    wished = max((available - product) // 2, (k + 8) * vector)
    affordable = max(min(available - beside, wished), 0) // vector
    return min(products.size, max(k + 2, min(_wished(k), affordable)))


def _beside(products: Products, k: int, storage: str = "memory") -> int:
    """Return the planned bytes beside the basis while it grows, and when the pairs are taken."""
    whole = products.size * products.dtype.itemsize
    product = product_bytes(products, is_audited=False)
    if storage == "disk" or not getattr(products.op, "products_are_new", False):
        product += whole  # the vector, or a copy of the product
    return max(product, (k + _WORKING) * whole)


def affordable_vectors(products: Products, memory: float | None, least: int) -> int:
    """Return how many vectors of P numbers can be planned beside a product, on the worst rank.

    Args:
        products: The operator.
        memory: Bytes that may be used; None for what the device has free.
        least: Vectors that are needed.

    Raises:
        ArgumentError: There is not enough memory for so many.
    """
    available = free_memory(products.device) if memory is None else int(memory)
    vector = products.size * products.dtype.itemsize
    product = product_bytes(products, is_audited=False) + _SMALL
    count = -int(products.processes.largest(-((available - product) // vector)))
    if count < least:
        needed = product + least * vector
        raise ArgumentError(
            "op" if memory is None else "memory",
            f"{products.size} × {products.size}" if memory is None else memory,
            f"a product and {least} vectors take {gigabytes(needed)}, and "
            f"{gigabytes(available)} may be used",
            f"Give memory={needed:.3g} if there is as much, or restrict the operator with params= "
            "or mask=.",
        )
    return count


def agreed_capacity(products: Products, k: int) -> int:
    """Return the basis vectors planned for the free memory, on the rank with the least."""
    capacity = lanczos_capacity(products, k, free_memory(products.device))
    return -int(products.processes.largest(-capacity))


def lanczos_route(
    products: Products,
    k: int,
    tol: float,
    *,
    memory: float | None = None,
    storage: str = "auto",
    basis: int | None = None,
) -> Route:
    """Return the best planned Lanczos route with a storage, or the best of all.

    Args:
        products: The operator.
        k: Pairs wanted.
        tol: Relative residuals wanted.
        memory: Bytes that may be used; None for what the device has free.
        storage: "auto", "memory" or "disk".
        basis: Vectors to keep; None for as many as pay off and fit.

    Raises:
        ArgumentError: A memory is given, and no such route keeps to it.
    """  # noqa: DOC501 - _does_not_keep() returns an ArgumentError
    available = free_memory(products.device) if memory is None else int(memory)
    if storage != "auto":
        routes = [_lanczos_with(storage, products, k, available, 1e9, tol, basis)]
    else:
        routes = _lanczos(products, k, available, speed(products), tol, basis)
    best = min(routes, key=lambda route: (not route.fits, route.seconds))
    if memory is not None and not best.fits:
        raise _does_not_keep(memory, min(routes, key=lambda route: route.memory))
    return best


def _dense(products: Products, available: int, rate: float) -> Route:
    size = products.size
    memory = 5 * 8 * size**2 + product_bytes(products)
    matvecs = 0 if products.is_explicit else size
    seconds = matvecs * product_seconds(products, rate) + _EIGH * size**3 / rate
    return Route("dense", memory, seconds, matvecs, memory <= available)


def _wished(k: int) -> int:
    """Return the planned basis vectors with which Lanczos hardly ever restarts."""
    return max(3 * k + 40, 90)


def _lanczos(
    products: Products, k: int, available: int, rate: float, tol: float, basis: int | None = None
) -> list[Route]:
    """Return the planned Lanczos routes by storage; the disk only where memory is short."""
    first = _lanczos_with("memory", products, k, available, rate, tol, basis)
    enough = min(products.size, first.matvecs, _wished(k))
    if first.fits and (basis is not None or first.basis >= enough):
        return [first]
    return [first, _lanczos_with("disk", products, k, available, rate, tol, basis)]


def _lanczos_with(
    storage: str,
    products: Products,
    k: int,
    available: int,
    rate: float,
    tol: float,
    asked: int | None = None,
) -> Route:
    """Return the planned Lanczos route with a storage and basis."""
    size, part, item = products.size, products.length, products.dtype.itemsize
    disk, free = 0, 0
    if storage == "disk":
        free = shutil.disk_usage(tempfile.gettempdir()).free // 2
        fitting = min(3 * k + 24, free // (max(part, 1) * item))
        capacity = min(size, max(k + 2, fitting)) if asked is None else asked
        disk = capacity * part * item
    elif asked is None:
        capacity = lanczos_capacity(products, k, available)
    else:
        capacity = asked
    matvecs = min(size, 3 * k + 25)
    if capacity < matvecs:
        matvecs = int(matvecs * (matvecs / capacity) ** 0.25)  # restarts forget a part
    kept = min(matvecs, capacity) if asked is None else capacity
    vector, whole = part * item, size * item
    held = kept * vector
    if storage == "disk":
        held = capacity * min(part, piece_length(capacity, part)) * item
    growing = held + _beside(products, k, storage) + _SMALL
    is_audited = is_near_rounding(products, tol)
    plain = product_bytes(products, is_audited=False) + (k + _WORKING) * whole
    ending = product_bytes(products, is_audited=is_audited) + (k + _WORKING) * whole
    memory = max(growing, ending, 2 * k * whole)
    is_wide = memory <= available or not is_audited
    if not is_wide:
        memory = max(growing, plain, 2 * k * whole)
    reading = kept * part * item / _BANDWIDTH[storage]
    step = product_seconds(products, rate) + 4 * kept * part / rate + _STEP_SECONDS + reading
    fits = memory <= available and disk <= free
    return Route("lanczos", memory, matvecs * step, matvecs, fits, storage, capacity, disk, is_wide)


def _gram(
    products: Products, k: int, available: int, rate: float, eigenvectors: bool
) -> list[Route]:
    r = getattr(products.op, "gram_size", None)
    if r is None:
        return []
    vectors = 3 * k * products.size * products.dtype.itemsize if eigenvectors else 0
    factors = getattr(products.op, "gram_bytes", lambda: 0)()
    forming = factors + product_bytes(products, is_audited=False)
    memory = 5 * 8 * r**2 + max(forming, vectors + product_bytes(products))
    seconds = r * product_seconds(products, rate) + _EIGH * r**3 / rate
    return [Route("gram", memory, seconds, k if eigenvectors else 0, memory <= available)]


def _preference(route: Route) -> float:
    return 0.0 if route.method == "dense" and route.seconds < _EXACT_SECONDS else route.seconds


def _nothing_fits(
    products: Products, k: int, routes: list[Route], memory: float | None, available: int
) -> ArgumentError:
    listed = ", ".join(f"{route.name} {gigabytes(route.memory)}" for route in routes)
    item = products.dtype.itemsize
    room = max(available - product_bytes(products), 0)
    coordinates = room // (item * (2 * k + 2 + _WORKING))
    size = f"{products.size} × {products.size}"
    return ArgumentError(
        "op" if memory is None else "memory",
        size if memory is None else memory,
        f"no method for {k} eigenpairs of {size} fits in {gigabytes(available)} of free memory: "
        f"{listed}",
        f"About {coordinates} weights would fit: restrict the operator with params= or mask=, "
        "ask for fewer pairs, or free memory.",
    )


def _does_not_keep(memory: float, least: Route) -> ArgumentError:
    """Return the error of a plan whose cheapest route takes too much memory."""
    taken = f"{least.name} with a basis of {least.basis} vectors takes"
    fewer = "ask for fewer pairs, or restrict the operator with params= or mask=."
    if least.memory > memory:
        remedy = f"Give memory={least.memory} if there is as much, {fewer}"
        return ArgumentError("memory", memory, f"{taken} {gigabytes(least.memory)}", remedy)
    folder = tempfile.gettempdir()
    reason = f"{taken} {gigabytes(least.disk)} of disk, more than half of what is free in {folder}"
    remedy = f"Set TMPDIR to a folder with more space, give more memory, {fewer}"
    return ArgumentError("memory", memory, reason, remedy)
