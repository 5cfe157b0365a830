"""Linear models trained for real, and the PCA matrix of their points [ribbons]."""
