"""Loads rich, whose import draws from Python's global generator, and puts the generator back."""

import random

_state = random.getstate()

import rich.console  # noqa: E402 - styles with links take random numbers
import rich.progress  # noqa: E402, F401

random.setstate(_state)
