"""Sloppiness and the hyper-ribbon of linear models.

- fig1: inPCA of the training of many networks
- fig2: Real data are sloppy: spectra and slopes
- fig3: PCA eigenvalues of training trajectories and their two sources
- fig4: Contribution of the initial weights, closed form and bound (Eq. 9)
- fig5: Head and tail of the second moment of trajectories
- fig6: Lemma 3: bound and truth for several slopes
- fig7: Eigenvalues of P(N, T) by training time
- fig8: Phase diagram of the dimension of the training manifold
- kernels: Kernel machines: trajectories of several kernels together
- networks: The predicted manifold of networks, and the drift of their kernels with width
- sgd: Stochastic gradient descent: two models of its noise beside simulation
- thesis: Input correlations, Fisher information, tangent kernel and inPCA of one task
- weight_decay: Weight decay: the exact covariance and the printed replacement
"""
