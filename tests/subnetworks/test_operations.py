"""New states: what changes, what stays, and that the user's model is left alone."""

import pytest
import torch
from torch.nn.utils import prune as torch_prune

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.subnetworks import from_torch_prune, redraw, state_of, to_torch_prune


def test_prune_and_reinitialize_touch_the_selected_entries_only(case):
    model, initial, (inputs, _) = case
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mask = hr.select(model, initial, fraction=0.4, criterion="change", include="all")
    pruned, back = hr.prune(model, mask), hr.reinitialize(model, initial, mask)
    for name, entry in mask.items():
        assert (pruned[name][entry] == 0).all()
        assert torch.equal(back[name][entry], initial[name][entry])
        for new in (pruned, back):
            assert torch.equal(new[name][~entry], before[name][~entry])
    for name, tensor in before.items():
        assert torch.equal(tensor, model.state_dict()[name])
        assert pruned[name].data_ptr() != model.state_dict()[name].data_ptr()
    model.load_state_dict(pruned)
    assert model.eval()(inputs).isfinite().all()


def test_tied_parameters_change_together(transformer):
    model, initial, _ = transformer
    mask = hr.select(model, initial, fraction=0.5, criterion="change", params=["embed.weight"])
    new = hr.reinitialize(model, initial, mask)
    assert torch.equal(new["embed.weight"], new["head.weight"])
    model.load_state_dict(new)
    assert torch.equal(model.embed.weight, new["embed.weight"])


def test_everything_and_nothing(mlp):
    model, initial, _ = mlp
    state = state_of("model", model)
    nothing = hr.select(model, fraction=0.0, include="all")
    for new in (hr.prune(state, nothing), hr.reinitialize(state, initial, nothing)):
        assert all(torch.equal(new[name], state[name]) for name in state)
    back = hr.reinitialize(state, initial, ~nothing)
    assert all(torch.equal(back[name], initial[name]) for name in initial)


@pytest.mark.parametrize("kind", ["module", "function", "state"])
def test_rerandomize_draws_anew_without_touching_the_global_generator(mlp, kind):
    model, initial, _ = mlp
    source = {
        "module": model,
        "function": lambda seed: torch.nn.Sequential(
            *(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 12)),
            *(torch.nn.ReLU(), torch.nn.Linear(12, 4)),
        ),
        "state": initial,
    }[kind]
    mask = hr.select(model, fraction=1.0, params="2.*")
    global_state = torch.random.get_rng_state()
    first = hr.rerandomize(model, mask, source, seed=1)
    again = hr.rerandomize(model, mask, source, seed=1)
    other = hr.rerandomize(model, mask, source, seed=2)
    assert torch.equal(torch.random.get_rng_state(), global_state)
    assert torch.equal(first["2.weight"], again["2.weight"])
    assert not torch.equal(first["2.weight"], other["2.weight"])
    assert not torch.equal(first["2.weight"], initial["2.weight"])
    assert torch.equal(first["0.weight"], state_of("model", model)["0.weight"])
    bound = 12**-0.5
    assert first["2.weight"].abs().max() <= bound
    assert first["2.weight"].var() == pytest.approx(bound**2 / 3, rel=0.25)


def test_attention_is_redrawn_as_torch_initialises_it(transformer):
    model, _, _ = transformer
    fresh = redraw(model, seed=4)
    attention = "layer.self_attn"
    assert (fresh[f"{attention}.out_proj.bias"] == 0).all()
    bound = (6 / (8 + 24)) ** 0.5
    assert 0.5 * bound < fresh[f"{attention}.in_proj_weight"].abs().max() <= bound


def test_a_layer_without_reset_parameters_is_named():
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2, 2))

    with pytest.raises(ArgumentError, match="no reset_parameters"):
        redraw(Own())


def test_masks_go_to_torch_pruning_and_back(case):
    model, initial, (inputs, _) = case
    model.eval()
    mask = hr.select(model, initial, fraction=0.6, criterion="change")
    pruned = hr.prune(model, mask)
    expected = torch.func.functional_call(
        model, {n: pruned[n] for n, _ in model.named_parameters()}, (inputs,)
    )
    if "head.weight" in pruned:  # torch's masks do not follow tied parameters
        mask = hr.Mask({n: e for n, e in mask.items() if n != "embed.weight"})
        pruned = hr.prune(model, mask)
        expected = torch.func.functional_call(
            model, {n: pruned[n] for n, _ in model.named_parameters()}, (inputs,)
        )
    to_torch_prune(model, mask)
    torch.testing.assert_close(model(inputs), expected)
    assert from_torch_prune(model) == mask
    state = state_of("model", model)
    assert all(torch.equal(state[name], pruned[name]) for name in pruned)


def test_torch_criteria_agree_with_ours(mlp):
    model, _, _ = mlp
    ours = hr.select(model, fraction=0.3, params="0.*")
    torch_prune.l1_unstructured(model[0], "weight", amount=0.3)
    assert from_torch_prune(model) == ours


def test_what_does_not_fit_is_explained(mlp, cnn):
    mask = hr.select(mlp[0], fraction=0.5)
    with pytest.raises(ArgumentError, match=r"shape|not have a parameter of that name"):
        hr.prune(cnn[0], mask)
    with pytest.raises(ArgumentError, match="same architecture"):
        hr.reinitialize(mlp[0], cnn[1], mask)
    with pytest.raises(ArgumentError, match="initial state"):
        hr.reinitialize(mlp[0], None, mask)
    with pytest.raises(ArgumentError, match="expected a Mask"):
        hr.prune(mlp[0], {"0.weight": torch.ones(12, 6)})
    with pytest.raises(ArgumentError, match="no masks"):
        from_torch_prune(mlp[0])
