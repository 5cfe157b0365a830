"""A function's fingerprint, and which code is the person's own."""

from hyperribbon.experiments.fingerprint.walk import fingerprint

__all__ = ["fingerprint"]
