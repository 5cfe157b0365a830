"""`hyperribbon plan`: estimate the cost of a measurement."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from hyperribbon.core.checks import ArgumentError, check_choice

__all__ = ["plan_model"]

_OPERATORS = ("hessian", "ggn", "fisher")


def plan_model(
    factory: Annotated[
        str,
        typer.Argument(
            help="module:function or file.py:function that returns (model, loss, data); the loss "
            "None for the model's own."
        ),
    ],
    operator: Annotated[str, typer.Option(help="hessian, ggn or fisher.")] = "hessian",
    k: Annotated[int, typer.Option(help="Number of leading eigenpairs.")] = 10,
    memory: Annotated[
        float | None, typer.Option(help="Available memory in GB (default: free memory).")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="eval or train: whether batch norm normalises by the batch.")
    ] = "eval",
    data: Annotated[
        str | None, typer.Option(help="A data set such as mnist5k, instead of the factory's.")
    ] = None,
) -> None:
    """Estimate time and memory for the top-k eigenpairs.

    Example: `hyperribbon plan mymodel:make --operator ggn --k 50`
    """
    from hyperribbon.inspection.loading import load_factory, make_case
    from hyperribbon.operators import GGN, Fisher, Hessian
    from hyperribbon.spectra import plan

    check_choice("--operator", operator, _OPERATORS)
    if memory is not None and memory <= 0:
        raise ArgumentError("--memory", memory, "expected a positive number", "Give it in GB.")
    model, loss, samples = make_case(load_factory(factory), data)
    if operator == "fisher":
        measured = Fisher(model, samples, mode=mode)
    else:
        measured = (Hessian if operator == "hessian" else GGN)(model, loss, samples, mode=mode)
    costs = plan(measured, k, memory=None if memory is None else memory * 1e9)
    Console().print(f"{operator}, {measured.shape[0]:,} weights, k = {k}\n{costs}", markup=False)
