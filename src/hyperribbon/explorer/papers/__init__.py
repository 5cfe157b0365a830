"""Pages of the papers: theory with controls, and measurements laid over it."""
