"""The Hessian spectrum of linear networks."""
