"""Beside the Recorder: its writer in the background, disk space, projections, the run's status."""
