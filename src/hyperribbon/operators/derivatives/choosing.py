"""Several ways to one result: tried once each, the fastest remembered; the first when in doubt."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, TypeVar

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.gpus import wait_for_gpus

__all__ = ["Choices"]

T = TypeVar("T")

_GAIN = 0.75  # what a way must take of the time of an earlier one to be preferred


class Choices:
    """Remembers for each question which way answered it fastest; ways that fail drop out."""

    def __init__(self) -> None:
        self._best: dict[Any, str] = {}
        self._excluded: set[tuple[Any, str]] = set()

    def chosen(self, question: Any) -> str | None:
        """Return the way that was found fastest, or None before it was tried."""
        return self._best.get(question)

    def settle(self, question: Any, way: str) -> None:
        """Take a way from now on: it works, and is preferred to others."""
        self._best[question] = way

    def exclude(self, question: Any, way: str) -> None:
        """Never take a way: it is not right here."""
        self._excluded.add((question, way))
        if self._best.get(question) == way:
            del self._best[question]

    def allows(self, question: Any, way: str) -> bool:
        """Whether a way has not dropped out."""
        return (question, way) not in self._excluded

    def run(
        self,
        question: Any,
        ways: Mapping[str, Callable[[], T]],
        agree: Callable[[T, T], bool] = lambda first, second: True,
    ) -> T:
        """Return the result of the fastest way; the first time all are run, compared and timed.

        Args:
            question: What is asked for; one answer is remembered for each.
            ways: Functions that return equal results, the most trusted one first. What they prepare
                for later calls should be prepared before, so that it is not timed.
            agree: Whether two results are equal up to rounding; ways that differ from the first one
                drop out.

        Raises:
            Exception: Every way failed; the last one's error.
        """  # noqa: DOC501 - the last way's own error is raised
        best = self._best.get(question)
        if best is not None and best in ways:
            return ways[best]()
        left = {name: way for name, way in ways.items() if self.allows(question, name)}
        times: dict[str, float] = {}
        answers: dict[str, T] = {}
        failure: Exception | None = None
        for name, way in left.items():
            start = perf_counter()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    warnings.filterwarnings("error", message=".*performance drop.*")
                    answers[name] = way()
            except ArgumentError:
                raise
            except Exception as error:
                failure = error
                self.exclude(question, name)
                continue
            wait_for_gpus()
            times[name] = perf_counter() - start
            first = next(iter(answers))  # the measure of the others, though it be no number
            if name != first and not agree(answers[first], answers[name]):
                del times[name], answers[name]
                self.exclude(question, name)
        if not times:
            raise failure or RuntimeError(f"no way is left to {question}")
        best = next(iter(times))
        for name, seconds in times.items():
            if seconds < _GAIN * times[best]:
                best = name
        self._best[question] = best
        return answers[best]
