"""Only trained parameters are selected: no buffers, no frozen layers."""

import copy

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.subnetworks import eligible_names, layer_criticality, rank, sweep_selection


class Attention(nn.Module):
    """One head with the causal mask as a buffer, as in nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 6)
        self.mix = nn.Linear(6, 18)
        self.head = nn.Linear(6, 5)
        self.register_buffer("bias", torch.tril(torch.ones(4, 4)).view(1, 1, 4, 4))
        self.register_buffer("positions", torch.randn(4, 6))

    def forward(self, tokens):
        q, k, v = self.mix(self.embed(tokens) + self.positions).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(self.bias[0] == 0, float("-inf"))
        return self.head(scores.softmax(-1) @ v)[:, -1]


TRAINED = ["mix.weight", "head.weight"]


@pytest.fixture
def trained():
    """A model with frozen embeddings, its state, its start and data."""
    torch.manual_seed(0)
    model = Attention()
    model.embed.requires_grad_(False)
    initial = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape)
    data = torch.randint(0, 5, (20, 4)), torch.randint(0, 5, (20,))
    return model, copy.deepcopy(model.state_dict()), initial, data


@pytest.mark.parametrize("criterion", ["magnitude", "change", "random"])
def test_states_with_a_start_are_selected_as_the_model_is(trained, criterion):
    model, final, initial, _ = trained
    for mask in (
        hr.select(model, initial, fraction=0.5, criterion=criterion),
        hr.select(final, initial, fraction=0.5, criterion=criterion),
        hr.select(final, initial, fraction=0.5, criterion=criterion, model=model),
    ):
        assert sorted(mask) == sorted(TRAINED)
        assert mask.count == round(0.5 * sum(final[name].numel() for name in TRAINED))


def test_a_causal_mask_is_not_a_weight_even_without_a_start(trained):
    _, final, _, _ = trained
    assert "bias" not in hr.select(final, fraction=0.5)
    final["bias"] = torch.zeros(4, 4).masked_fill(final["bias"][0, 0] == 0, float("-inf"))
    assert "bias" not in hr.select(final, fraction=0.5)


def test_the_model_says_what_a_state_without_a_start_cannot(trained):
    model, final, _, _ = trained
    assert sorted(hr.select(final, fraction=0.5, model=model)) == sorted(TRAINED)
    with pytest.raises(ArgumentError, match="model"):
        hr.select(final, fraction=0.5, model="attention")


def test_states_that_keep_their_parameters_say_it_too(trained):
    model, _, _, _ = trained
    names = eligible_names(model.state_dict(keep_vars=True))
    assert sorted(names) == sorted(["embed.weight", *TRAINED])


def test_named_parameters_may_be_frozen_and_a_frozen_model_counts_whole(trained):
    model, final, initial, _ = trained
    assert list(hr.select(final, initial, fraction=0.5, params=["embed.weight"])) == [
        "embed.weight"
    ]
    model.requires_grad_(False)
    assert "embed.weight" in hr.select(model, fraction=0.5)


def test_a_state_that_never_moved_counts_whole(trained):
    _, _, initial, _ = trained
    assert "mix.weight" in rank(initial, initial, criterion="change").scores


def test_a_sweep_prunes_trained_parameters_only(trained):
    model, final, _, data = trained
    found = sweep_selection(
        model, final, None, data, operation="prune", criterion="magnitude", fractions=[1.0]
    )
    pruned = {name: torch.zeros_like(t) if name in TRAINED else t for name, t in final.items()}
    other = copy.deepcopy(model)
    other.load_state_dict(pruned)
    with torch.no_grad():
        accuracy = (other(data[0]).argmax(1) == data[1]).double().mean()
    assert float(found.values[0]) == pytest.approx(float(accuracy))


def test_a_ticket_leaves_buffers_and_frozen_layers_alone(trained):
    model, _, initial, _ = trained
    model.load_state_dict(initial)
    seen = []

    def train(network):
        kept = {n: b.clone() for n, b in network.named_buffers() if not n.endswith("_mask")}
        seen.append({**kept, "embed.weight": network.embed.weight.detach().clone()})
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if parameter.requires_grad:
                    parameter += 0.01 * torch.ones(parameter.shape) * len(name)

    ticket = hr.find_ticket(model, train, lambda state: 1.0, levels=2, fraction=0.5)
    assert sorted(ticket.pruned) == sorted(TRAINED)
    assert len(seen) == 7
    for state in seen:
        for name, tensor in state.items():
            assert torch.equal(tensor, initial[name]), name


def test_frozen_layers_have_a_criticality(trained):
    _, final, initial, _ = trained
    found = layer_criticality(final, initial, lambda state: float(state["embed.weight"].sum()))
    assert "embed" in {layer.layer for layer in found.layers}


def test_saved_states_have_tied_weights_once(tmp_path, transformer):
    """A file keeps no memory that two names share: equal values tell it."""
    from hyperribbon.core.states import load_state, save_state

    model, initial, _ = transformer
    save_state(tmp_path / "final.safetensors", model.state_dict())
    final = load_state(tmp_path / "final.safetensors")
    assert final["head.weight"].data_ptr() != final["embed.weight"].data_ptr()
    assert eligible_names(final, "all") == eligible_names(model, "all")
    mask = hr.select(final, fraction=0.5)
    assert mask == hr.select(model, fraction=0.5)
    for changed in (hr.prune(final, mask), hr.reinitialize(final, initial, mask)):
        assert torch.equal(changed["head.weight"], changed["embed.weight"])
        network = copy.deepcopy(model)
        network.load_state_dict(changed)
        assert torch.equal(network.embed.weight, changed["embed.weight"])
