import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.papers.training import DivergenceError, mlp, train
from hyperribbon.recording import evaluate
from hyperribbon.recording.measurements import random_state

SETTINGS = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
]


def reference_sgd(
    model, loss, data, *, batches, lr, momentum=0.0, nesterov=False, weight_decay=0.0
):
    """SGD written out: v ← μv + g + λw; w ← w − η(g + λw + μv) (Nesterov) or w − ηv."""
    inputs, targets = data
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    first = True
    for batch in batches:
        gradients = torch.autograd.grad(
            loss(model(inputs[batch]), targets[batch]), list(model.parameters())
        )
        with torch.no_grad():
            for p, g, v in zip(model.parameters(), gradients, velocity, strict=True):
                g = g + weight_decay * p
                v.copy_(g if first else momentum * v + g)
                p -= lr * (g + momentum * v if nesterov else v)
        first = False


@pytest.mark.parametrize("settings", SETTINGS)
def test_sgd_follows_its_definition(images, settings):
    from hyperribbon.papers.training.sampling import epoch_batches

    data = (images[0].double(), images[1])
    trained = mlp((64, 8, 3), "tanh", seed=1, dtype=torch.float64)
    expected = mlp((64, 8, 3), "tanh", seed=1, dtype=torch.float64)
    train(trained, nn.CrossEntropyLoss(), data, epochs=3, lr=0.1, batch_size=32, seed=5, **settings)
    batches = [
        batch
        for epoch in range(3)
        for batch in epoch_batches(90, 32, scheme="shuffle", seed=5, epoch=epoch)
    ]
    reference_sgd(expected, nn.CrossEntropyLoss(), data, batches=batches, lr=0.1, **settings)
    for p, q in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_adam_first_step_is_the_sign_of_the_gradient():
    model = mlp((5, 1), seed=0, dtype=torch.float64)
    x = torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = 3 + x.sum(1, keepdim=True)
    gradient = torch.autograd.grad(nn.MSELoss()(model(x), y), list(model.parameters()))
    start = [p.detach().clone() for p in model.parameters()]
    train(model, nn.MSELoss(), (x, y), epochs=1, lr=0.01, batch_size=None, optimizer="adam")
    for p, before, g in zip(model.parameters(), start, gradient, strict=True):
        torch.testing.assert_close(p.detach(), before - 0.01 * g.sign(), rtol=0, atol=1e-8)


def test_history_and_schedule(images):
    model = mlp((64, 8, 3), seed=0)
    result = train(
        model,
        nn.CrossEntropyLoss(),
        images,
        epochs=4,
        lr=0.4,
        schedule={1: 0.5, 3: 0.1},
        batch_size=30,
        test=images,
    )
    np.testing.assert_allclose(result.history["lr"], [0.4, 0.2, 0.2, 0.02])
    assert result.steps == 12
    assert list(result.to_frame().columns) == ["epoch", "loss", "lr", "test_loss", "test_accuracy"]
    final = evaluate(model, nn.CrossEntropyLoss(), images, batch_size=7)
    assert result.history["test_loss"][-1] == pytest.approx(final["loss"], rel=1e-6)
    assert result.history["test_accuracy"][-1] == final["accuracy"]
    assert any(not torch.equal(result.initial[k], result.final[k]) for k in result.final)


def test_model_and_global_random_state_are_left_alone(images):
    torch.manual_seed(3)
    before, python = random_state(), random.getstate()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    torch.set_rng_state(before["torch"])
    train(model, nn.CrossEntropyLoss(), images, epochs=1, lr=0.1)
    after = random_state()
    assert torch.equal(before["torch"], after["torch"])
    assert python == random.getstate()
    assert torch.equal(before["numpy"][1], after["numpy"][1])
    assert not model.training and all(p.grad is None for p in model.parameters())


def test_dropout_follows_the_seed_whatever_the_global_state(images):
    finals = []
    for outside in (1, 2):
        torch.manual_seed(outside)
        random.seed(outside)
        model = nn.Sequential(mlp((64, 16), seed=0), nn.Dropout(0.5), mlp((16, 3), seed=1))
        finals.append(train(model, nn.CrossEntropyLoss(), images, epochs=2, lr=0.1, seed=7).final)
    assert all(torch.equal(finals[0][k], finals[1][k]) for k in finals[0])


def test_callbacks_see_every_moment_and_can_stop(images):
    steps, epochs = [], []
    result = train(
        mlp((64, 3)),
        nn.CrossEntropyLoss(),
        images,
        epochs=10,
        lr=0.1,
        batch_size=30,
        on_step=lambda step, model: steps.append(step),
        on_epoch=lambda epoch, model: epochs.append(epoch) or epoch == 2,
    )
    assert steps == [1, 2, 3, 4, 5, 6]
    assert epochs == [1, 2]
    assert result.steps == 6
    stopped = train(
        mlp((64, 3)),
        nn.CrossEntropyLoss(),
        images,
        epochs=10,
        lr=0.1,
        batch_size=30,
        on_step=lambda step, model: step == 4,
    )
    assert stopped.steps == 4 and len(stopped.history["loss"]) == 2


def test_augmentation_gets_its_own_generator(images):
    def noise(inputs, generator):
        return inputs + torch.randn(inputs.shape, generator=generator)

    runs = [
        train(
            mlp((64, 3)), nn.CrossEntropyLoss(), images, epochs=2, lr=0.1, augment=a, seed=1
        ).final
        for a in (noise, noise, None)
    ]
    assert torch.equal(runs[0]["layer1.weight"], runs[1]["layer1.weight"])
    assert not torch.equal(runs[0]["layer1.weight"], runs[2]["layer1.weight"])


def test_divergence_is_reported_and_the_last_weights_are_kept(images):
    model = mlp((64, 8, 3), seed=0)
    with pytest.raises(DivergenceError, match="Lower lr") as caught:
        train(model, nn.MSELoss(), (images[0], images[0].flatten(1)[:, :3]), epochs=50, lr=1e4)
    assert caught.value.step > 0
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": -1}, "lr=-1"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"optimizer": "lion"}, "optimizer='lion'"),
        ({"sampling": "magic"}, "sampling='magic'"),
        ({"nesterov": True}, "nesterov=True"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum=0.9"),
        ({"data": (torch.zeros(3, 64), torch.zeros(2))}, "different lengths"),
        ({"data": 3}, "data=3: it holds no tensors"),
    ],
)
def test_bad_arguments_are_named(images, changes, message):
    arguments = {"data": images, "epochs": 1, "lr": 0.1} | changes
    data = arguments.pop("data")
    with pytest.raises(ArgumentError, match=message):
        train(mlp((64, 3)), nn.CrossEntropyLoss(), data, **arguments)


def test_datasets_are_accepted(images):
    dataset = torch.utils.data.TensorDataset(*images)
    results = [
        train(mlp((64, 3)), nn.CrossEntropyLoss(), data, epochs=1, lr=0.1).final
        for data in (images, dataset)
    ]
    assert torch.equal(results[0]["layer1.weight"], results[1]["layer1.weight"])


def test_the_gradient_penalty_descends_on_the_penalised_loss():
    """One step equals θ − η(∇L + (γ/2)H∇L), with H and ∇L of a quadratic known exactly."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(7, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    start = model.weight.detach().clone().flatten()
    hessian = 2 * inputs.T @ inputs / 7
    gradient = hessian @ start - 2 * inputs.T @ targets.flatten() / 7
    plain = nn.functional.mse_loss(model(inputs), targets).item()
    how = {"epochs": 1, "lr": 0.1, "batch_size": None}
    done = train(model, nn.MSELoss(), (inputs, targets), gradient_penalty=0.6, **how)
    expected = start - 0.1 * (gradient + 0.3 * hessian @ gradient)
    torch.testing.assert_close(model.weight.detach().flatten(), expected)
    assert done.history["loss"][0] == pytest.approx(plain)  # without the penalty
