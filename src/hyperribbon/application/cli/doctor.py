"""`hyperribbon doctor`: check the installation and every device."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_TRUTH = 6.0  # the largest eigenvalue of (2/3)·diag(1, 4, 9)
_ERROR = 1e-6  # relative; single precision rounds to 6e-8


def doctor() -> None:
    """Check the installation, and every device against a known eigenvalue.

    For f(x) = wᵀx and the squared error on the rows of diag(1, 2, 3), the Hessian is
    (2/3)·diag(1, 4, 9): its largest eigenvalue is 6.

    Each device computes it. Exit status 0 if all agree to a relative error of 1e-6, otherwise 1.
    """
    table = Table("what", "found", "", box=None, pad_edge=False)
    for name, found in (*_software(), *_machine()):
        table.add_row(escape(name), escape(found), "")
    failures = 0
    for device, found, is_right in _devices():
        failures += not is_right
        table.add_row(device, escape(found), "[green]right[/]" if is_right else "[red]wrong[/]")
    Console().print(table, soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _software() -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_version()} on {platform.platform(terse=True)}"
    yield "hyperribbon", _version_of("hyperribbon")
    for requirement in requires("hyperribbon") or []:
        if "extra ==" not in requirement:
            name = requirement.split(";")[0].split("[")[0].strip()
            name = name.translate(str.maketrans(dict.fromkeys("<>=!~,", " "))).split()[0]
            yield name, f"{_version_of(name)} (required: {requirement})"


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _machine() -> Iterator[tuple[str, str]]:
    import torch

    from hyperribbon.core.devices.memory import free_memory

    yield "threads", f"{torch.get_num_threads()} of torch"
    yield "free memory", f"{free_memory() / 1e9:.1f} GB"


def _devices() -> Iterator[tuple[str, str, bool]]:
    """Yield each device that the doctor tries, its result, and whether it is correct."""
    import torch

    names = ["cpu"]
    for kind in ("cuda", "xpu", "mps"):
        room = getattr(torch, kind, None)
        if room is not None and room.is_available():
            count = room.device_count() if hasattr(room, "device_count") else 1
            names += [f"{kind}:{index}" for index in range(count)]
    for name in names:
        try:
            value = _largest_eigenvalue(name)
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}".splitlines()[0], False
        else:
            found = f"largest eigenvalue {value:.7f}, true {_TRUTH:.7f}"
            yield name, found, abs(value - _TRUTH) <= _ERROR * _TRUTH


def _largest_eigenvalue(device: str) -> float:
    import torch

    from hyperribbon.operators import Hessian
    from hyperribbon.spectra import eigsh

    model = torch.nn.Linear(3, 1, bias=False, device=device)
    inputs = torch.diag(torch.tensor([1.0, 2.0, 3.0], device=device))
    targets = torch.zeros(3, 1, device=device)
    found = eigsh(Hessian(model, torch.nn.MSELoss(), (inputs, targets)), k=1)
    return float(found.eigenvalues[0])
