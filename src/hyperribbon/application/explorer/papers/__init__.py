"""Theory pages of the papers, with overlaid measurements."""
