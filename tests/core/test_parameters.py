import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hyperribbon.core import ArgumentError, Mask, ParameterSpace
from hyperribbon.core.parameters import copies_of


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.hidden = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 5, bias=False)
        self.decoder.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)


@pytest.fixture
def model():
    return Tied()


def test_tied_weights_count_once_and_frozen_ones_not(model):
    space = ParameterSpace.of_model(model)
    assert space.names == ("embedding.weight", "hidden.weight", "hidden.bias")
    assert space.dimension == 15 + 9 + 3


def test_filters(model):
    assert ParameterSpace.of_model(model, "hidden.*").dimension == 12
    assert ParameterSpace.of_model(model, lambda name, t: t.ndim == 1).names == ("hidden.bias",)
    named = ParameterSpace.of_model(model, ["hidden.bias", "frozen"])
    assert named.names == ("frozen", "hidden.bias")


@settings(max_examples=30, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=3), min_size=1, max_size=4),
    columns=st.integers(0, 3),
    data=st.data(),
)
def test_unflatten_undoes_flatten(shapes, columns, data):
    model = nn.Module()
    for i, shape in enumerate(shapes):
        model.register_parameter(f"p{i}", nn.Parameter(torch.zeros(shape)))
    mask = Mask(
        {
            name: torch.tensor(
                data.draw(st.lists(st.booleans(), min_size=p.numel(), max_size=p.numel()))
            ).reshape(p.shape)
            for name, p in model.named_parameters()
        }
    )
    if mask.count == 0:
        with pytest.raises(ArgumentError, match="selects no parameter"):
            ParameterSpace.of_model(model, mask=mask)
        return
    space = ParameterSpace.of_model(model, mask=mask)
    assert space.dimension == mask.count
    shape = (space.dimension, columns) if columns else (space.dimension,)
    vector = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    tensors = space.unflatten(vector)
    assert torch.equal(space.flatten(tensors, batched=bool(columns)), vector)
    for name, tensor in tensors.items():
        assert (tensor[..., ~mask[name]] == 0).all()


def test_layers_partition_the_coordinates(model):
    layers = ParameterSpace.of_model(model).layers()
    assert list(layers) == ["embedding", "hidden"]
    assert [space.dimension for space in layers.values()] == [15, 12]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"params": "nothing.*"}, "selects no parameter"),
        ({"params": ["hidden.wight"]}, "not have a parameter or module of that name"),
        ({"mask": Mask({"nope": torch.tensor([True])})}, "not have a parameter of that name"),
        ({"mask": Mask({"hidden.bias": torch.tensor([True])})}, "has shape"),
        ({"mask": {"hidden.bias": torch.tensor([True])}}, "expected a Mask"),
    ],
)
def test_bad_filters_say_what_is_there(model, arguments, words):
    with pytest.raises(ArgumentError, match=words):
        ParameterSpace.of_model(model, **arguments)


def test_a_frozen_model_says_so():
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ArgumentError, match="frozen"):
        ParameterSpace.of_model(model)


def test_a_vector_of_the_wrong_length_is_refused(model):
    space = ParameterSpace.of_model(model)
    with pytest.raises(ArgumentError, match="27 coordinates"):
        space.unflatten(torch.zeros(3))


@pytest.mark.parametrize("params", ["0", ["0"], "0.*", ["0.weight", "0.bias"], ("0", "0.weight")])
def test_a_module_stands_for_its_parameters(params):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    assert ParameterSpace.of_model(model, params).names == ("0.weight", "0.bias")


def test_the_name_of_a_module_is_not_a_beginning_of_it():
    """ "1" is the name of a module, not of all whose names begin with it."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(12)])
    assert ParameterSpace.of_model(model, "1").names == ("1.weight", "1.bias")


def test_frozen_parameters_of_a_module_are_named_one_by_one():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    model[0].bias.requires_grad_(False)
    assert ParameterSpace.of_model(model, ["0"]).names == ("0.weight",)
    assert ParameterSpace.of_model(model, ["0", "0.bias"]).names == ("0.weight", "0.bias")


def test_equal_tensors_are_copies_unless_they_are_constant():
    """New biases and scales are equal without being tied."""
    state = {"a": torch.ones(3), "b": torch.ones(3), "c": torch.arange(3.0)}
    state["d"], state["e"] = state["c"].clone(), state["a"]
    groups = copies_of(state)
    assert groups["a"] == groups["e"] == ["a", "e"]
    assert groups["b"] == ["b"]
    assert groups["c"] == groups["d"] == ["c", "d"]
