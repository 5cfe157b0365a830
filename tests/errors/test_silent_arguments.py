"""Arguments that once gave a raw exception or a wrong number without a word."""

import inspect
import json

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon import inspection, noise, recording, subnetworks
from hyperribbon.core.checks import ArgumentError, check_array
from hyperribbon.core.states import load_state
from hyperribbon.theory import fluctuations, linear_networks, ribbons

X, LABELS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 2
LOSS = nn.CrossEntropyLoss()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_a_ribbon_takes_a_seed_or_a_generator():
    seeded = ribbons.Ribbon.exponential(6, 0.5, steps=5, alpha=0.5, rng=0)
    drawn = ribbons.Ribbon.exponential(6, 0.5, steps=5, alpha=0.5, rng=np.random.default_rng(0))
    assert np.array_equal(seeded.targets, drawn.targets)
    with pytest.raises(ArgumentError, match="rng"):
        ribbons.Ribbon.exponential(6, 0.5, steps=5, alpha=0.5, rng="x")


@pytest.mark.parametrize("saliency", [subnetworks.fisher_saliency, subnetworks.gradient_saliency])
def test_labels_are_integers(saliency):
    with pytest.raises(ArgumentError, match="integer labels"):
        saliency(network(), LOSS, (X, LABELS.float()))


def test_predictions_of_a_module_without_parameters():
    expected = torch.log_softmax(X.relu(), dim=1)
    assert torch.equal(recording.predict(nn.ReLU(), X), expected)


class TestTensorsInTheory:
    grams = torch.randn(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def test_that_require_gradients(self):
        plain = fluctuations.hessian(self.grams.numpy())
        needed = self.grams.clone().requires_grad_()
        assert np.array_equal(fluctuations.hessian(needed), plain)
        assert np.array_equal(fluctuations.hessian(list(needed)), plain)
        rows = [[entry for entry in row] for row in needed]  # noqa: C416 - tensors in lists
        assert np.array_equal(fluctuations.hessian(rows), plain)
        layers = [torch.randn(3, 4, requires_grad=True), torch.randn(2, 3, requires_grad=True)]
        assert linear_networks.trace(layers, np.ones((4, 5))) > 0

    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (lambda t: t.to("meta"), "meta"),
            (lambda t: t.to_sparse(), "to_dense"),
            (lambda t: t.to_mkldnn() if t.dtype == torch.float32 else t.to_sparse(), "to_dense"),
        ],
    )
    def test_without_numbers_to_read(self, make, reason):
        with pytest.raises(ArgumentError, match=rf"X=.*{reason}"):
            fluctuations.hessian(make(self.grams))
        with pytest.raises(ArgumentError, match=reason):
            linear_networks.trace([make(self.grams)], np.ones((8, 5)))
        with pytest.raises(ArgumentError, match=reason):
            hr.bhattacharyya(make(torch.full((3, 4, 2), 0.5)))
        with pytest.raises(ArgumentError, match=reason):
            hr.summarize(make(torch.ones(3)))


class TestMaskedArrays:
    hidden = np.ma.masked_array(np.ones((3, 8)), mask=np.eye(3, 8, dtype=bool))

    def test_lose_no_mask(self):
        with pytest.raises(ArgumentError, match=r"X=.*3 of its entries are masked"):
            fluctuations.hessian(self.hidden)
        with pytest.raises(ArgumentError, match="masked"):
            check_array("rows", list(self.hidden))
        with pytest.raises(ArgumentError, match="masked"):
            hr.bhattacharyya(np.ma.masked_array(np.full((3, 4, 2), 0.5), mask=True))
        with pytest.raises(ArgumentError, match="masked"):
            hr.weight_covariance(np.ma.masked_less(np.random.default_rng(0).random((60, 3)), 0.5))

    def test_without_masked_entries_are_arrays(self):
        whole = np.ma.masked_array(np.ones((3, 8)), mask=False)
        assert np.array_equal(fluctuations.hessian(whole), fluctuations.hessian(np.ones((3, 8))))


@pytest.mark.parametrize("names", [["a"], ["b", "a"]])
def test_an_index_file_names_no_index(tmp_path, names):
    files = [f"{name}.safetensors.index.json" for name in names]
    for file, following in zip(files, [*files[1:], files[0]], strict=True):
        (tmp_path / file).write_text(json.dumps({"weight_map": {"weight": following}}))
    with pytest.raises(ArgumentError, match="refers to another index"):
        load_state(tmp_path / files[0])


class TestPositivity:
    rates = (1.0, 2.0, 3.0)

    @pytest.mark.parametrize("noise", [-np.eye(3), np.triu(np.ones((3, 3))), np.ones((2, 3))])
    def test_noise_is_a_covariance(self, noise):
        with pytest.raises(ArgumentError, match="noise="):
            fluctuations.mode_covariance(1.0, self.rates, noise, 0.1)

    @pytest.mark.parametrize(
        "function",
        [
            fluctuations.antisymmetric_part,
            lambda H, C: fluctuations.detailed_balance_covariance(H, C, 0.1),
            lambda H, C: fluctuations.lyapunov_covariance(H, C, 0.1),
            lambda H, C: fluctuations.stationary_state(H, C, 0.1),
            lambda H, C: fluctuations.probability_current(np.ones(2), H, C, 0.1),
            noise.detailed_balance_defect,
            noise.proportionality,
        ],
    )
    @pytest.mark.parametrize("C", [-np.eye(2), np.array([[1.0, 1.0], [0.0, 1.0]])])
    def test_of_gradient_noise(self, function, C):
        with pytest.raises(ArgumentError, match="C="):
            function(np.diag([2.0, 1.0]), C)

    def test_of_times(self):
        with pytest.raises(ArgumentError, match="t="):
            fluctuations.mode_variance([-1.0, 1.0], [1.0], 1.0, 0.1)
        with pytest.raises(ArgumentError, match="t="):
            fluctuations.mode_correlation([-1.0, 1.0], [1.0], 1.0)
        with pytest.raises(ArgumentError, match="t="):
            fluctuations.mode_mean([-1.0], [1.0], [1.0], [0.0])
        with pytest.raises(ArgumentError, match="t="):
            fluctuations.geometric_brownian_moments([-1.0], 1.0, 0.1, 4)

    def test_of_rates_and_variances(self):
        with pytest.raises(ArgumentError, match="rates="):
            fluctuations.mode_variance([1.0], [-1.0], 1.0, 0.1)
        with pytest.raises(ArgumentError, match="rates="):
            fluctuations.mode_covariance(1.0, [-1.0, 0.5, 1.0], np.eye(3), 0.1)
        with pytest.raises(ArgumentError, match="initial="):
            fluctuations.mode_variance([1.0], [1.0], 1.0, 0.1, -1.0)
        with pytest.raises(ArgumentError, match="D1="):
            fluctuations.second_layer_variances([-1.0], 2.0, 0.1, 4, 1.0)

    def test_of_the_noise_of_one_sample(self):
        for sample in range(10):
            one = X[sample : sample + 1], LABELS[sample : sample + 1]
            same = (one[0].expand(7, 3), one[1].expand(7))
            for data in (one, same):
                C = hr.GradientCovariance(network(), LOSS, data)
                assert C.trace() >= 0
                assert bool((C.diagonal() >= 0).all())
                assert noise.noise_scale(C) >= 0
        found = noise.measure_noise(network(), LOSS, one, k=2)
        assert found.total == found.scale == found.proportionality_defect == 0


@pytest.mark.parametrize("mask", ["junk", [0, 1], {"weight": torch.ones(2)}, hr.Mask({})])
def test_a_mask_is_one(mask):
    with pytest.raises(ArgumentError, match="mask"):
        inspection.anisotropy_by_layer(network(), X, mask=mask)
    with pytest.raises(ArgumentError, match="mask"):
        inspection.measure_anisotropy(network(), X, mask=mask)


def test_weights_from_nan():
    good = {"a.weight": torch.ones(2, 2)}
    bad = {"a.weight": torch.tensor([[1.0, float("nan")], [1.0, 1.0]])}
    mask = hr.Mask({"a.weight": torch.tensor([[True, True], [False, False]])})
    with pytest.raises(ArgumentError, match=r"initial.*1 of its entries are NaN"):
        hr.reinitialize(good, bad, mask)
    with pytest.raises(ArgumentError, match=r"initializer.*NaN"):
        hr.rerandomize(good, mask, lambda seed: bad)
    with pytest.raises(ArgumentError, match=r"final.*NaN"):
        hr.reinitialize(bad, good, mask)
    with pytest.raises(ArgumentError, match=r"state.*NaN"):
        hr.prune(bad, mask)


def test_higher_is_better_is_a_flag():
    state = {"a.weight": torch.ones(2, 2)}
    with pytest.raises(ArgumentError, match="higher_is_better='no': expected True or False"):
        hr.layer_criticality(
            state, state, lambda s: float(s["a.weight"].sum()), higher_is_better="no"
        )


def test_equal_curvatures_have_no_exponent():
    series = np.random.default_rng(0).standard_normal((200, 3)) * [3.0, 2.0, 1.0]
    with pytest.raises(ArgumentError, match=r"curvature.*equal"):
        hr.variance_flatness(series, np.eye(3))
    with pytest.raises(ArgumentError, match=r"curvatures.*equal"):
        fluctuations.fit_exponent([1.0, 2.0, 3.0], [1.0, 1.0 + 1e-15, 1.0])


def rooms(room, where):
    """Yield the public functions of a room and of those inside it."""
    for name in room.__all__:
        entry = getattr(room, name)
        if inspect.ismodule(entry) and entry.__name__.startswith("hyperribbon."):
            yield from rooms(entry, f"{where}.{name}")
        elif inspect.isfunction(entry):
            yield f"{where}.{name}", entry


UNGUARDED = {"derive_seed", "numpy_generator"}
"""Public functions that check their seed themselves."""


def is_guarded(call):
    while call is not None:
        if getattr(call, "__code__", None) is not None and call.__code__.co_name == "guarded":
            return True
        call = getattr(call, "__wrapped__", None)
    return False


def has_flags(call):
    parameters = inspect.signature(call).parameters.values()
    return any(p.annotation == "bool" or p.name in ("seed", "mask") for p in parameters)


def test_every_public_function_checks_flags_seeds_and_masks():
    functions = dict(rooms(hr, "hr"))
    assert len(functions) > 150
    bare = {name.rsplit(".", 1)[1] for name, call in functions.items() if not is_guarded(call)}
    named = {name.rsplit(".", 1)[1]: call for name, call in functions.items()}
    assert {name for name in bare if has_flags(named[name])} == UNGUARDED
