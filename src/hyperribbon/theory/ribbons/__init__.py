"""The manifold that training linear models follows, in closed form [ribbons]."""

from hyperribbon.theory.ribbons.bounds import Bound, weight_bound
from hyperribbon.theory.ribbons.model import Part, Ribbon

__all__ = ["Bound", "Part", "Ribbon", "weight_bound"]
