"""Pages of stored runs: the list, single runs, and live recordings."""
