"""Gradient descent of deep linear networks [linear_networks]."""
