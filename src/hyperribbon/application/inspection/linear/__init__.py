"""Linear-network theory beside the linear layers at the end of a model."""
