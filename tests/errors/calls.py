"""A good call of every public function: what bad inputs are tried in the place of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import hyperribbon as hr
from errors.calling import Call
from errors.network_calls import network_calls
from errors.other_calls import other_calls
from errors.run_calls import run_calls
from hyperribbon import manifold, subnetworks
from hyperribbon.theory import fluctuations, gradient_flow, linear_networks, meanfield, ribbons

_rng = np.random.default_rng(0)
X, Y = _rng.standard_normal((3, 8)), _rng.standard_normal(8)
H = np.diag([3.0, 2.0, 1.0])
C = np.diag([1.0, 0.5, 0.2])
W1, W2 = _rng.standard_normal((3, 4)), _rng.standard_normal((2, 3))
WEIGHTS = [W1, W2]
INPUTS = linear_networks.whiten(_rng.standard_normal((4, 9))).inputs
LABELS = np.eye(3)[np.arange(9) % 3].T
MOMENTS = linear_networks.Moments.of(_rng.standard_normal((4, 9)), _rng.standard_normal((2, 9)))
MODES = fluctuations.decompose(W1, W2)
RIBBON = ribbons.Ribbon.exponential(6, 0.5, steps=5, alpha=0.5)
GRAM = np.eye(5)
EIGENVALUES = np.exp(-0.3 * np.arange(12))
PREDICTIONS = np.full((6, 4, 2), 0.5) + 0.05 * np.arange(6)[:, None, None] * np.array([1, -1])
STATE = {"a.weight": torch.randn(4, 3), "b.weight": torch.randn(2, 4)}
START = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
MASK = hr.select(STATE, fraction=0.5)
MODEL = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
MODEL_STATE = {name: tensor.clone() for name, tensor in MODEL.state_dict().items()}
DATA = (torch.randn(10, 3), torch.randint(0, 2, (10,)))


def _theory() -> Iterator[Call]:
    f, n, r, m, g = fluctuations, linear_networks, ribbons, meanfield, gradient_flow
    design = {"X": X, "Y": Y}
    pair = {"H": H, "C": C}
    layers = {"W1": W1, "W2": W2}
    noise = {"lr": 0.1, "batch_size": 4}
    kernels = {"grams": [GRAM], "y": np.ones(5), "sigma_w": 1.0, "alpha": 0.5, "steps": 4}
    mean = {"activation": "tanh", "weight_variance": 1.5, "bias_variance": 0.1}
    yield Call(f.hessian, {"X": X})
    for function in (f.minimum_norm_solution, f.residual_weights):
        yield Call(function, design)
    for function in (f.residuals, f.regression_loss):
        yield Call(function, {**design, "w": np.ones(3)})
    yield Call(f.noise_covariance, {**design, "batch_size": 2, "w": np.ones(3)})
    yield Call(f.minibatch_covariance, {"gradients": X.T, "batch_size": 2})
    yield Call(
        f.noise_covariance_limit,
        {"H": H, "batch_size": 2, "label_variance": 1.0, "deviation": np.ones(3)},
    )
    yield Call(f.projector_variance, {"inputs": 3, "samples": 8})
    yield Call(f.marchenko_pastur_edges, {"inputs": 3, "samples": 8, "variance": 1.0})
    yield Call(
        f.geometric_brownian_moments, {"t": [0.0, 1.0], "second_moment": 1.0, **noise, "start": 1.0}
    )
    moments = {"t": 1.0, "H": H, **noise, "start": np.ones(3)}
    yield Call(f.multiplicative_moments, moments)
    yield Call(f.noise_orders, {"H": H, "J": np.ones(3), "label_variance": 1.0, **noise})
    yield Call(f.sampler_covariance, {**pair, "lr": 0.1, "temperature": 1.0, "preconditioner": H})
    yield Call(f.sampling_preconditioner, {"C": C, "lr": 0.1, "temperature": 1.0})
    yield Call(
        f.mode_mean,
        {"t": [0.0, 1.0], "rates": [1.0, 2.0], "start": [1.0, 1.0], "solution": [0.0, 0.0]},
    )
    yield Call(f.mode_covariance, {"t": 1.0, "rates": [1.0, 2.0, 3.0], "noise": C, "lr": 0.1})
    yield Call(f.lyapunov_covariance, {**pair, "lr": 0.1, "time": "discrete"})
    rule = {"momentum": 0.5, "dampening": 0.1, "weight_decay": 0.1, "decoupled_decay": 0.1}
    yield Call(f.stationary_state, {**pair, "lr": 0.1, "batches": 4, "nesterov": False, **rule})
    yield Call(f.antisymmetric_part, pair)
    yield Call(f.probability_current, {"deviation": np.ones(3), **pair, "lr": 0.1})
    yield Call(f.detailed_balance_covariance, {**pair, "lr": 0.1})
    yield Call(f.isotropic_variance, {**noise, "label_variance": 1.0})
    yield Call(f.relaxation_steps, {"H": H, "lr": 0.1})
    yield Call(f.discrete_covariance, {**design, "lr": 0.05, "batch_size": 4, "rtol": 1e-9})
    yield Call(f.decompose, layers)
    yield Call(f.noise_strength, {**noise, "input_variance": 1.0, "target_variance": 1.0})
    yield Call(
        f.moment_covariances,
        {"Sxx": H, "Syx": np.ones((2, 3)), "target_variance": 1.0, "batch_size": 4},
    )
    yield Call(f.layer_noise_covariances, {**layers, "strength": 0.1, "samples": 9})
    yield Call(f.imbalance, layers)
    yield Call(f.balanced_products, {"w": W2 @ W1})
    samples = {"X": _rng.standard_normal((4, 9)), "Y": _rng.standard_normal((2, 9))}
    yield Call(f.sample_moment_covariances, {**samples, "batch_size": 2})
    yield Call(f.two_layer_noise, {**samples, **layers, "batch_size": 2})
    for function in (f.imbalance_drift, f.mean_drift):
        yield Call(function, {**samples, **layers, **noise})
    solved = {"X": samples["X"], "Y": W2 @ W1 @ samples["X"]}
    yield Call(
        f.two_layer_covariance,
        {**solved, **layers, "lr": 0.01, "batch_size": 4, "time": "discrete"},
    )
    gram = {"Sxx": np.eye(4), "Syx": W2 @ W1}
    yield Call(f.two_layer_hessian, {**layers, **gram})
    yield Call(f.gaussian_noise_covariances, {**layers, **gram, "Syy": np.eye(2), "batch_size": 2})
    yield Call(f.reduced_loss, {**layers, "dW1": W1, "dW2": W2, "Sxx": np.eye(4)})
    yield Call(
        f.second_layer_variances_limit, {"D1": [1.0], "D2": 1.0, **noise, "target_variance": 1.0}
    )
    for function in (f.drift_matrix, f.drift_eigenvalues):
        yield Call(function, {"modes": MODES})
    yield Call(f.layer_covariance, {"modes": MODES, **noise, "target_variance": 1.0, "samples": 9})
    M = f.layer_covariance(MODES, 0.1, 4, 1.0)
    for function in (f.first_layer_covariance, f.second_layer_covariance):
        yield Call(function, {"modes": MODES, "M": M})
    yield Call(
        f.second_layer_variances, {"D1": [1.0, 2.0], "D2": 1.0, **noise, "target_variance": 1.0}
    )
    yield Call(f.loss_along_second_layer_modes, {"D1": [1.0], "input_variance": 1.0, "theta": 0.1})
    yield Call(
        f.loss_along_first_layer_modes,
        {"D2": 1.0, "input_variance": 1.0, "theta": 0.1, "inputs": 3, "modes": 5},
    )
    yield Call(f.local_exponent, {"D1": [0.0, 1.0], "D2": 1.0})
    yield Call(f.fit_exponent, {"variances": [1.0, 4.0, 9.0], "curvatures": [1.0, 2.0, 3.0]})
    yield Call(f.mode_correlation, {"t": [0.0, 1.0], "rates": [1.0], "input_variance": 1.0})
    yield Call(
        f.mode_variance,
        {"t": [0.0, 1.0], "rates": [1.0], "input_variance": 1.0, "strength": 0.1, "initial": 0.0},
    )
    yield Call(f.drift_rates, {**noise, "input_variance": 1.0, "target_variance": 1.0, "inputs": 3})
    yield Call(f.stationarity_ratio, {**noise, "target_variance": 1.0, "inputs": 3, "D2": 1.0})
    yield Call(n.balance_layers, {"product": np.ones((2, 4)), "widths": (3, 2)})
    for function in (n.balance_defect, n.chain_products, n.end_to_end):
        yield Call(function, {"weights": WEIGHTS})
    yield Call(
        n.balanced_eigenvalues,
        {"singular_values": [2.0], "depth": 3, "d_in": 4, "d_out": 2, "sigma_x": 1.0},
    )
    balanced = n.sample_balanced_weights([4, 3, 2], [2.0, 1.0], np.random.default_rng(0))
    yield Call(n.balanced_eigenvectors, {"weights": balanced, "X": np.ones((4, 5))})
    yield Call(n.balanced_count, {"rank": 1, "depth": 3, "d_in": 4, "d_out": 2})
    yield Call(n.printed_count, {"widths": (4, 3, 2)})
    for function in (n.hessian, n.ggn):
        yield Call(function, {"weights": WEIGHTS, "moments": MOMENTS})
    yield Call(n.restrict_to_range, {"curvature": n.hessian(WEIGHTS, MOMENTS)})
    for function in (n.jacobian, n.ntk, n.sharpness_bound, n.trace):
        yield Call(function, {"weights": WEIGHTS, "X": np.ones((4, 5))})
    for function in (n.shallow_eigenvalues, n.shallow_sharpness, n.shallow_trace):
        yield Call(function, {**layers, "sigma_x": 1.0})
    yield Call(n.shallow_eigenvectors, {**layers, "X": INPUTS})
    yield Call(n.shallow_count, layers)
    yield Call(n.check_white, {"X": INPUTS, "width": 4})
    yield Call(
        n.solution_singular_values, {"X": INPUTS, "Y": LABELS, "depth": 2, "form": "general"}
    )
    yield Call(n.label_proportions, {"Y": LABELS})
    yield Call(n.label_sharpness, {"proportions": [0.5, 0.5], "depth": 2, "sigma_x": 1.0})
    yield Call(
        n.sample_balanced_weights,
        {"widths": (4, 3, 2), "singular_values": 0.5, "generator": np.random.default_rng(0)},
    )
    yield Call(n.whiten, {"inputs": X, "sigma_x": 1.0, "cutoff": 1e-10})
    yield Call(n.Moments.of, {"X": X, "Y": X})
    for function in (
        r.weyl_bound,
        r.mean_bound,
        r.weight_bound,
        r.target_decay_bound,
        r.target_norm_bound,
        r.spectrum_bound,
    ):
        yield Call(function, {"ribbon": RIBBON})
    yield Call(r.decay_base, {"eigenvalues": EIGENVALUES})
    yield Call(r.split_index, {"eigenvalues": EIGENVALUES, "alpha": 0.5, "steps": 9})
    yield Call(r.dimensions_of, {"eigenvalues": EIGENVALUES, "fraction": 0.9})
    yield Call(r.trajectory_covariance, {"runs": [np.eye(4), np.ones((3, 4))]})
    yield Call(r.lyapunov_form, {"ribbon": RIBBON})
    yield Call(r.target_norm, {"eigenvalues": EIGENVALUES, "sigma_star": 2.0})
    yield Call(r.taylor_ribbon, {"points": np.linspace(-1.0, 1.0, 5), "radius": 3.0, "terms": 3})
    yield Call(r.gaussian_kernel_eigenvalues, {"number": 4, "length": 0.5, "sigma": 1.0})
    yield Call(
        r.count_dimensions,
        {
            "diagonal": np.ones((1, 3)),
            "fraction": 0.9,
            "start": 2,
            "block": lambda rows, at: np.eye(at.shape[1])[None],
        },
    )
    yield Call(
        r.phase_diagram,
        {
            "n": 8,
            "steps": [1, 10],
            "slopes": [0.1, 0.5],
            "ratio": 2.0,
            "fraction": 0.9,
            "alpha": 1.0,
        },
    )
    own = {"data": GRAM, "targets": np.arange(1.0, 6.0), "samples": [3, 5], "alpha": 0.01}
    yield Call(r.phase_diagram, {**own, "ratio": [1.0, 2.0], "steps": [1, 10]}, "diagram of data")
    kernel = {"kernel": GRAM @ GRAM.T, "targets": np.arange(1.0, 6.0), "alpha": [0.001, 0.002]}
    yield Call(r.phase_diagram, {**kernel, "ratio": 2.0}, "diagram of a kernel")
    yield Call(r.phase_diagram, {"spectrum": [2.0, 1.0], "ratio": 2.0}, "diagram of a spectrum")
    yield Call(
        r.smallest_model, {"c": 0.5, "ratio": 2.0, "T": 20, "n": 10, "fraction": 0.9, "alpha": 1.0}
    )
    yield Call(r.slope, {"eigenvalues": EIGENVALUES, "first": 1, "last": 10, "floor": 1e-10})
    for function in (r.several_kernels, r.kernels_bound):
        yield Call(function, kernels)
    yield Call(
        r.sgd,
        {
            "X": X.T,
            "y": Y,
            "sigma_w": 1.0,
            "alpha": 0.1,
            "steps": 3,
            "batch_size": 4,
            "noise": "exact",
        },
    )
    yield Call(
        r.Ribbon,
        {
            "eigenvalues": [2.0, 1.0],
            "targets": [1.0, 1.0],
            "sigma_w": 1.0,
            "alpha": 0.5,
            "steps": 5,
            "weight_decay": 0.1,
            "batch_size": 4,
        },
    )
    yield Call(
        r.Ribbon.exponential,
        {"n": 5, "slope": 0.5, "sigma_star": 1.0, "sigma_w": 1.0, "alpha": 0.5, "steps": 5},
    )
    for function, matrix in ((r.Ribbon.from_data, "X"), (r.Ribbon.from_kernel, "gram")):
        yield Call(
            function, {matrix: GRAM, "y": np.ones(5), "sigma_w": 1.0, "alpha": 0.5, "steps": 5}
        )
    yield Call(m.activation_moments, {"activation": "tanh", "variance": 2.0, "covariance": 1.0})
    yield Call(m.order_parameters, {**mean, "layers": 3})
    yield Call(m.asymptotic_constants, {**mean, "ratios": [1.0, 1.0, 1.0]})
    yield Call(m.fisher_statistics, {**mean, "widths": (4, 3, 2), "samples": 9, "bias": True})
    for function in (g.effective_step, g.regularisation_coefficient):
        yield Call(function, {"step": 0.1, "momentum": 0.5})
    yield Call(
        g.modified_gradient,
        {"gradient": lambda w: w, "coefficient": 0.1, "hessian_product": lambda w, v: v},
    )
    yield Call(g.flow, {"gradient": lambda w: w, "start": np.ones(2), "time": 0.5})
    yield Call(g.inverse_temperature, {"step": 0.1, "batch": 4, "noise_variance": 1.0})
    yield Call(
        g.stationary_variance,
        {"curvature": 1.0, "step": 0.1, "batch": 4, "noise_variance": 1.0, "momentum": 0.5},
    )


def _rest() -> Iterator[Call]:
    ranked = {
        "final": STATE,
        "initial": START,
        "criterion": "change",
        "order": "largest",
        "scope": "layer",
        "include": "all",
        "params": "*",
        "frozen": False,
        "seed": 0,
    }
    yield Call(hr.select, {**ranked, "fraction": 0.5})
    thresholds = {"final": STATE, "between": (0.0, 0.5)}
    yield Call(hr.select, thresholds, "select by thresholds")
    yield Call(subnetworks.rank, ranked)
    yield Call(hr.prune, {"state": STATE, "mask": MASK})
    yield Call(hr.reinitialize, {"final": STATE, "initial": START, "mask": MASK})
    yield Call(hr.rerandomize, {"final": STATE, "mask": MASK, "initializer": START, "seed": 0})
    yield Call(hr.overlap_ratio, {"first": MASK, "second": MASK})
    yield Call(
        subnetworks.from_torch_prune,
        {"source": {"a_orig": torch.ones(2), "a_mask": torch.zeros(2)}},
    )
    yield Call(
        subnetworks.evaluate_states,
        {"model": MODEL, "states": [MODEL_STATE], "data": DATA, "measure": "loss", "together": 1},
    )
    yield Call(
        subnetworks.sweep_selection,
        {
            "model": MODEL,
            "final": MODEL_STATE,
            "initial": MODEL_STATE,
            "data": DATA,
            "operation": "prune",
            "fractions": [0.5],
        },
    )
    for function in (subnetworks.gradient_saliency, subnetworks.fisher_saliency):
        yield Call(function, {"model": MODEL, "loss": nn.CrossEntropyLoss(), "data": DATA})
    yield Call(
        hr.layer_criticality,
        {
            "final": STATE,
            "initial": START,
            "draws": 2,
            "seed": 0,
            "metric": lambda state: float(state["a.weight"].sum()),
            "layers": ["a"],
            "tolerance": 0.1,
        },
    )
    yield Call(
        hr.bhattacharyya,
        {
            "P": PREDICTIONS,
            "Q": PREDICTIONS,
            "floor": 1e-9,
            "subset": 3,
            "seed": 0,
            "precision": "double",
            "threads": 1,
        },
    )
    yield Call(
        _embed,
        {
            "X": PREDICTIONS,
            "n_components": 2,
            "landmarks": 4,
            "sample_weight": np.ones(6),
            "precision": "double",
            "floor": 1e-9,
            "metric": "bhattacharyya",
        },
    )
    yield Call(_flat, {"X": PREDICTIONS, "n_components": 2, "sample_weight": np.ones(6)})
    yield Call(
        manifold.explained_stress,
        {
            "distances": 1 - np.eye(4),
            "time_like": np.zeros(2, bool),
            "embedding": np.ones((4, 2)) * np.arange(4)[:, None],
        },
    )
    yield Call(hr.Mask, {"entries": {"a": torch.ones(2, dtype=torch.bool)}})


def _embed(X: Any, sample_weight: Any, **settings: Any) -> Any:
    return hr.InPCA(**settings).fit(X, sample_weight=sample_weight).embedding_


def _flat(X: Any, sample_weight: Any, **settings: Any) -> Any:
    return manifold.PCA(**settings).fit(X, sample_weight=sample_weight).embedding_


CALLS = {
    call.name: call
    for call in (*_theory(), *_rest(), *network_calls(), *run_calls(), *other_calls())
}
"""By name."""

BAD: dict[str, Any] = {
    "None": None,
    "text": "x",
    "empty text": "",
    "NaN": float("nan"),
    "inf": float("inf"),
    "minus inf": -float("inf"),
    "zero": 0,
    "negative": -1.5,
    "half": 0.5,
    "complex": 1j,
    "list": [],
    "dict": {"a": 1},
    "object": object(),
    "function": len,
    "bytes": b"\x00",
    "ragged": [[1, 2], [3]],
    "texts": ["a", "b"],
    "NaNs": np.full((3, 3), np.nan),
    "infinite row": np.array([1.0, np.inf, 2.0]),
    "no rows": np.zeros((0, 3)),
    "no columns": np.zeros((3, 0)),
    "cube": np.ones((2, 2, 2)),
    "long row": np.ones(17),
    "wide": np.ones((2, 5)),
    "tensor": torch.ones(2, 3),
    "negative row": -np.ones(3),
    "zeros": np.zeros((3, 3)),
    "objects": np.array([None, "a"], dtype=object),
    "true": True,
    "indefinite": np.diag([1.0, -1.0, 1.0]),
    "huge": 1e300,
    "tiny": 1e-300,
}
