"""Lanczos: a basis that grows, restarts, and shows that nothing was missed."""
