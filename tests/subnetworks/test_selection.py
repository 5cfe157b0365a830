"""Exact counts, ties, nesting, scopes, thresholds and messages of the selection."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.subnetworks import fisher_saliency, gradient_saliency, rank, state_of

property_test = settings(max_examples=60, deadline=None)


def _states(seed: int, sizes=((7, 5), (4, 3))) -> tuple[dict, dict]:
    generator = torch.Generator().manual_seed(seed)
    names = [f"{i}.weight" for i in range(len(sizes))]
    final = {n: torch.randn(s, generator=generator) for n, s in zip(names, sizes, strict=True)}
    initial = {n: torch.randn(s, generator=generator) for n, s in zip(names, sizes, strict=True)}
    return final, initial


@given(
    seed=st.integers(0, 1000),
    fraction=st.floats(0, 1),
    criterion=st.sampled_from(["magnitude", "change", "random"]),
    order=st.sampled_from(["smallest", "largest"]),
)
@property_test
def test_a_fraction_is_exact_and_takes_the_extreme_scores(seed, fraction, criterion, order):
    final, initial = _states(seed)
    ranking = rank(final, initial, criterion=criterion, order=order, seed=seed)
    mask = ranking.select(fraction)
    size = 7 * 5 + 4 * 3
    assert mask.size == size
    assert mask.count == math.floor(fraction * size + 0.5)
    taken = torch.cat([ranking.scores[n][mask[n]] for n in final])
    left = torch.cat([ranking.scores[n][~mask[n]] for n in final])
    if len(taken) and len(left):
        if order == "smallest":
            assert taken.max() <= left.min()
        else:
            assert taken.min() >= left.max()


@given(seed=st.integers(0, 1000), low=st.floats(0, 1), high=st.floats(0, 1))
@property_test
def test_masks_of_growing_fraction_are_nested(seed, low, high):
    low, high = min(low, high), max(low, high)
    final, initial = _states(seed)
    ranking = rank(final, initial, criterion="change")
    assert (ranking.select(low) - ranking.select(high)).count == 0


def test_ties_are_taken_in_the_order_of_the_state():
    state = {"a.weight": torch.ones(2, 3), "b.weight": torch.ones(3, 2)}
    mask = hr.select(state, fraction=0.5 + 1 / 12)
    assert mask["a.weight"].all()
    assert mask["b.weight"].reshape(-1).tolist() == [True] + [False] * 5
    largest = hr.select(state, fraction=0.5, order="largest")
    assert largest["a.weight"].all()
    assert not largest["b.weight"].any()


def test_halves_round_up():
    state = {"weight": torch.arange(5.0).reshape(1, 5)}
    assert hr.select(state, fraction=0.5).count == 3
    assert hr.select(state, fraction=0.29999).count == 1


def test_scope_layer_takes_the_share_of_every_layer():
    final, _ = _states(0)
    final["1.weight"] *= 100
    mask = hr.select(final, fraction=0.5, scope="layer")
    assert [int(mask[n].sum()) for n in final] == [18, 6]
    together = hr.select(final, fraction=0.5)
    assert int(together["1.weight"].sum()) < 6


def test_thresholds_are_inclusive_as_in_algorithm_1():
    final = {"weight": torch.tensor([[0.0, 0.125, 0.25, -0.375, -0.5]])}
    initial = {"weight": torch.zeros(1, 5)}
    mask = hr.select(final, initial, criterion="change", between=(0.125, 0.375))
    assert mask["weight"].tolist() == [[False, True, True, True, False]]


def test_biases_and_normalisation_are_included_by_choice(cnn):
    model, initial, _ = cnn
    weights = hr.select(model, fraction=0.0)
    everything = hr.select(model, initial, fraction=0.0, criterion="change", include="all")
    assert list(weights) == ["0.weight", "3.weight", "6.weight"]
    assert everything.size == sum(p.numel() for p in model.parameters())
    assert list(hr.select(model.state_dict(), fraction=0.0, include="all")) == list(everything)


def test_params_restricts_by_pattern_list_and_predicate(mlp):
    model, _, _ = mlp
    assert list(hr.select(model, fraction=1.0, params="2.*")) == ["2.weight"]
    assert list(hr.select(model, fraction=1.0, params=["0.bias"])) == ["0.bias"]
    wide = hr.select(model, fraction=1.0, params=lambda name, tensor: tensor.shape[1] == 12)
    assert list(wide) == ["2.weight", "4.weight"]


def test_tied_parameters_count_once(transformer):
    model, _, _ = transformer
    from_model = hr.select(model, fraction=0.3)
    assert "head.weight" not in from_model
    assert from_model == hr.select(model.state_dict(), fraction=0.3)


def test_selection_works_on_every_kind_of_network(case):
    model, initial, data = case
    loss = torch.nn.functional.cross_entropy
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for criterion in (
        "magnitude",
        "change",
        "random",
        gradient_saliency(model, loss, data),
        fisher_saliency(model, loss, data),
    ):
        mask = hr.select(model, initial, fraction=0.25, criterion=criterion)
        assert mask.count == math.floor(0.25 * mask.size + 0.5)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_gradient_saliency_is_the_first_order_loss_change(mlp):
    model, _, data = mlp
    loss = torch.nn.functional.cross_entropy
    model = model.double()
    data = (data[0].double(), data[1])
    scores = gradient_saliency(model, loss, data)
    state = state_of("model", model)

    def value(name: str, scale: float) -> float:
        changed = {**state, name: state[name].clone()}
        changed[name].view(-1)[5] *= 1 - scale
        return float(loss(torch.func.functional_call(model, changed, (data[0],)), data[1]))

    for name in ("0.weight", "4.weight"):
        measured = abs(value(name, 1e-4) - value(name, -1e-4)) / 2e-4
        assert scores[name].view(-1)[5].item() == pytest.approx(measured, rel=1e-5)


def test_fisher_saliency_matches_a_loop_over_samples(mlp):
    model, _, (inputs, targets) = mlp
    scores = fisher_saliency(model, torch.nn.functional.cross_entropy, (inputs, targets))
    weight = model[2].weight
    square = torch.zeros_like(weight)
    for x, y in zip(inputs, targets, strict=True):
        loss = torch.nn.functional.cross_entropy(model(x[None]), y[None])
        square += torch.autograd.grad(loss, weight)[0] ** 2
    expected = 0.5 * weight.detach() ** 2 * square / len(targets)
    torch.testing.assert_close(scores["2.weight"], expected, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": 1.2}, "fraction=1.2"),
        ({"fraction": -0.1}, "fraction=-0.1"),
        ({}, "exactly one of fraction and between"),
        ({"fraction": 0.5, "between": (0, 1)}, "exactly one of fraction and between"),
        ({"between": (1.0, 0.0)}, "upper threshold is below"),
        ({"fraction": 0.5, "criterion": "change"}, "initial=None"),
        ({"fraction": 0.5, "criterion": "size"}, "criterion='size'"),
        ({"fraction": 0.5, "order": "up"}, "order='up'"),
        ({"fraction": 0.5, "scope": "block"}, "scope='block'"),
        (
            {"fraction": 0.5, "params": ["nine.weight"]},
            "not have a parameter or module of that name",
        ),
        ({"fraction": 0.5, "params": "nine.*"}, "chooses no parameter"),
        ({"fraction": 0.5, "criterion": {"0.weight": torch.ones(2)}}, "right shape"),
    ],
)
def test_what_cannot_be_selected_is_explained(mlp, arguments, message):
    model, _, _ = mlp
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(")):
        hr.select(model, **arguments)


def test_states_of_different_architectures_are_refused(mlp, cnn):
    with pytest.raises(ArgumentError, match="same architecture"):
        hr.select(mlp[0], cnn[1], fraction=0.5, criterion="change")
    broken = {name: tensor * float("nan") for name, tensor in mlp[1].items()}
    with pytest.raises(ArgumentError, match="NaN or infinite"):
        hr.select(broken, fraction=0.5)
    with pytest.raises(ArgumentError, match="expected a module or a state dict"):
        hr.select([1, 2], fraction=0.5)
