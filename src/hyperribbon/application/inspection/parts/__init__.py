"""What an inspection measures: one file for each part, which exports its `MEASUREMENTS`."""
