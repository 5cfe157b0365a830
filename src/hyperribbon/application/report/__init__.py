"""Stored results to HTML: one file, no network."""

from hyperribbon.application.report.writing import write_report

__all__ = ["write_report"]
