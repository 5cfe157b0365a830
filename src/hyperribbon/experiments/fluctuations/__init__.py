"""Weight fluctuations under SGD."""
