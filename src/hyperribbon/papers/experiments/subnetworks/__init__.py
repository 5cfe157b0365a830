"""Critical sub-networks and the anisotropy they cause.

- fig3_1: Re-randomising one layer destroys the network
- fig3_2: Re-initialising one layer: the first is critical, the last are robust
- fig3_3: Parameter-wise re-initialisation of one layer, by threshold
- fig3_4: Parameter-wise re-initialisation of the whole network, by threshold
- fig3_6: Pruning and re-initialising by magnitude, by change and at random
- fig3_7: Overlap of the selections by magnitude and by change
- fig4_1: Leading Fisher eigenvalues before and after training, and what N does to them
- fig4_2: Training and test loss
- fig4_3: t-SNE of the last hidden layer: ten clusters
- fig4_4: Gradient projections on the 1st, 10th, 100th and 500th eigenvector
- fig4_5: Anisotropy and norms of the Fisher matrix along re-initialisation
- fig4_6: Trace ratio and accuracy, smallest and largest changes first
- fig4_7: Effective rank of the top 100 eigenvectors during training
- fig4_8: Entries of the top eigenvectors along re-initialisation
- figA_1: Layer-wise re-initialisation from two kinds of start
- figA_2: Distribution of the weights of every layer before and after training
- gradient_regularisation: Gradient descent follows the loss plus a gradient penalty
- meanfield: Mean-field theory of the Fisher spectrum against random networks
- tableA_1: Means, standard deviations and correlations of the weights, layer by layer
- tableA_2: Shares of the weights by absolute change
- tickets: Lottery tickets by magnitude and by change
"""
