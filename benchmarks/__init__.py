"""Our routes beside those of other libraries, on the same work, answers checked first."""
