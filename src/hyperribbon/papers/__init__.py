"""The four papers: simulations, reference training, one experiment per figure."""
