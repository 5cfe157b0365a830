"""Weight fluctuations under SGD.

- appendix_a: A nonlinear network and its linearisation
- bias: Measured exponent against number of samples
- discrete: Continuum and discrete time
- fig2a: Variance of the projector on the data
- fig2b: Weights of the samples in the gradient noise
- fig3a: Spectrum of the gradient noise
- fig3b: Gradient noise against the Hessian
- fig3c: Gradient noise in the Hessian's basis
- fig4: Relaxation of weight modes
- fig5a: Weight variance through the interpolation threshold
- fig5b: Spectrum of the weight covariance
- fig5c: Detailed balance against the exact covariance
- fig6a: Loss along the modes of a one-layer network
- fig6b: Loss along the modes for correlated inputs
- fig8a: Covariance of a two-layer network
- fig8b: Fluctuations from a small start
- fig8c: Fluctuations from a standard start
- fig9a: Loss along the modes of the second layer
- fig9b: Loss along the modes of the first layer
- networks: Variance and flatness in three networks
- nonlinear: Variance and flatness beyond linear networks
- optimisers: Theory of the optimiser in use
- relaxation: Relaxation of two-layer modes
- sampling: Three ways to draw minibatches
- table1: Stationary properties of linear regression
"""

__all__ = ["GOOD", "ROUGH"]

GOOD = 0.1
"""How "agrees", "good agreement" and "well described" are read: within a tenth."""

ROUGH = 0.25
"""How "reasonable", "applicable" and "essentially" are read: within a quarter."""
