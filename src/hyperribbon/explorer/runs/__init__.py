"""Pages of stored runs: the list, one run opened, one run followed while it is recorded."""
