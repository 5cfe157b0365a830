"""Eigenpairs, traces, densities and summaries of any operator with `.shape` and `@`."""

from hyperribbon.spectra.eigensolvers import eigsh
from hyperribbon.spectra.planning import Plan, Route, plan

__all__ = ["Plan", "Route", "eigsh", "plan"]
