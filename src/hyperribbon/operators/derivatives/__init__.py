"""How a batch is differentiated: routes to J v, Jᵀ u and ∇²ℓ v, and the checks of them."""
