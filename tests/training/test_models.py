import pytest
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator
from hyperribbon.papers.training import ARCHITECTURES, initialize, make_architecture, mlp, train

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_follow_the_seed_and_spare_the_global_state(name):
    before = torch.get_rng_state()
    one, same, other = (make_architecture(name, (1, 28, 28), 10, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for p, q in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(p, q) and p.requires_grad and bool(p.isfinite().all())
    assert any(
        not torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("shape", SHAPES)
def test_architectures_take_images_and_treat_samples_apart(name, shape):
    model = make_architecture(name, shape, 10)
    inputs = torch.rand(5, *shape, generator=torch_generator(0))
    outputs = model(inputs)
    assert outputs.shape == (5, 10)
    torch.testing.assert_close(model(inputs[2:3]), outputs[2:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_learn(name, images):
    model = make_architecture(name, (1, 8, 8), 3, seed=0)
    result = train(
        model, nn.CrossEntropyLoss(), images, epochs=25, lr=0.01, batch_size=15, optimizer="adam"
    )
    assert result.history["loss"][-1] < 0.35 * result.history["loss"][0]


@pytest.mark.parametrize(
    ("init", "weight", "bias"),
    [
        ("torch", (3 * 400) ** -0.5, (3 * 400) ** -0.5),
        ("lecun", 400**-0.5, 0),
        ("kaiming", (2 / 400) ** 0.5, 0),
        ("glorot", (2 / 1000) ** 0.5, 0),
        (0.05, 0.05, 0),
        ((1.5, 0.3), 1.5 * 400**-0.5, 0.3),
    ],
)
def test_initial_standard_deviations(init, weight, bias):
    layer = mlp((400, 600), init=init).layer1
    # 240,000 weights: relative standard error of the deviation below 0.15%
    assert layer.weight.std().item() == pytest.approx(weight, rel=0.01)
    assert layer.bias.std().item() == pytest.approx(bias, rel=0.15)


def test_torch_start_has_the_range_of_torch_layers():
    ours, theirs = mlp((50, 4000)).layer1, nn.Linear(50, 4000)
    for name in ("weight", "bias"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.abs().max().item() == pytest.approx(other.abs().max().item(), rel=2e-3)


def test_initialize_resets_norms_and_refuses_unknown_parameters():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.LayerNorm(5))
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_mean):
            tensor.fill_(7)
    initialize(model, torch_generator(0))
    assert torch.equal(model[1].running_mean, torch.zeros(4))
    assert torch.equal(model[2].weight, torch.ones(5))
    with pytest.raises(ArgumentError, match="draw"):
        initialize(nn.Sequential(nn.PReLU()), torch_generator(0))


@pytest.mark.parametrize("init", ["he", (1.0,), -0.1])
def test_unknown_starts_are_refused(init):
    with pytest.raises(ArgumentError, match="init="):
        mlp((3, 2), init=init)


def test_mlp_arguments_are_checked():
    with pytest.raises(ArgumentError, match="widths"):
        mlp((3,))
    with pytest.raises(ArgumentError, match="activation"):
        mlp((3, 2), "wiggle")
    with pytest.raises(ArgumentError, match="patch"):
        from hyperribbon.papers.training import vision_transformer

        vision_transformer((1, 28, 28), 10, patch=5)


@pytest.mark.parametrize("name", ["conv_mixer", "vision_transformer"])
def test_a_residual_block_whose_layers_are_zero_changes_nothing(name):
    model, seen = make_architecture(name, (1, 8, 8), 3), []
    for block in model.modules():
        if type(block).__name__ == "_Residual":
            for parameter in block.parameters():
                nn.init.zeros_(parameter)
            block.register_forward_hook(lambda _, given, result: seen.append((given[0], result)))
    model(torch.rand(2, 1, 8, 8, generator=torch_generator(0)))
    assert seen
    assert all(torch.equal(given, result) for given, result in seen)
