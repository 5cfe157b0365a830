"""Measurements by name, for a Recorder: `measure="sharpness"`."""

from hyperribbon.inspection.watching.curvature import Curvature, watch

__all__ = ["Curvature", "watch"]
