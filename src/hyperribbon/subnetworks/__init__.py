"""Sub-networks: select, prune, re-initialise, re-randomise, and rewind weights."""

from hyperribbon.core.mask import Mask
from hyperribbon.subnetworks.criticality import Criticality, LayerCriticality, layer_criticality
from hyperribbon.subnetworks.evaluation import StateMetric, evaluate_states, metric_of
from hyperribbon.subnetworks.operations import prune, redraw, reinitialize, rerandomize
from hyperribbon.subnetworks.overlap import Overlap, overlap_ratio
from hyperribbon.subnetworks.pruning import LayerSensitivity, Prunable, find_prunable, prunable
from hyperribbon.subnetworks.saliency import fisher_saliency, gradient_saliency, hessian_saliency
from hyperribbon.subnetworks.selection import Ranking, rank, rank_units, select
from hyperribbon.subnetworks.shrinking import PrunedAttention, UnitRanking, shrink
from hyperribbon.subnetworks.states import eligible_names, layer_of, state_of
from hyperribbon.subnetworks.statistics import Statistics
from hyperribbon.subnetworks.sweeps import Sweep, sweep_selection
from hyperribbon.subnetworks.tickets import Ticket, TicketLevel, find_ticket
from hyperribbon.subnetworks.torch_pruning import from_torch_prune, to_torch_prune
from hyperribbon.subnetworks.units import Units, find_units

__all__ = [
    "Criticality",
    "LayerCriticality",
    "LayerSensitivity",
    "Mask",
    "Overlap",
    "Prunable",
    "PrunedAttention",
    "Ranking",
    "StateMetric",
    "Statistics",
    "Sweep",
    "Ticket",
    "TicketLevel",
    "UnitRanking",
    "Units",
    "eligible_names",
    "evaluate_states",
    "find_prunable",
    "find_ticket",
    "find_units",
    "fisher_saliency",
    "from_torch_prune",
    "gradient_saliency",
    "hessian_saliency",
    "layer_criticality",
    "layer_of",
    "metric_of",
    "overlap_ratio",
    "prunable",
    "prune",
    "rank",
    "rank_units",
    "redraw",
    "reinitialize",
    "rerandomize",
    "select",
    "shrink",
    "state_of",
    "sweep_selection",
    "to_torch_prune",
]
