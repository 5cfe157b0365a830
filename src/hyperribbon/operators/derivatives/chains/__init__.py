"""Chains of linear layers and elementwise activations, differentiated by matrix products only."""
