"""Writing recordings: background thread, disk forecast, and status file."""
