"""The memory of products is forecast, and what checks them takes no more."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import hyperribbon as hr
from hyperribbon.operators.risk.memory import Footprint, Layout, Meter, measure


def convolutional():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.GELU(), nn.Conv2d(6, 6, 3), nn.GELU(), nn.Flatten(), nn.Linear(96, 3)
    )
    return model, (torch.randn(64, 1, 8, 8), torch.randint(3, (64,)))


def chain():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, (torch.randn(512, 6), torch.randint(3, (512,)))


def peak_of(work, data):
    with Meter(data) as meter:
        work()
    return meter.peak


def test_views_of_what_is_there_are_not_counted():
    present = torch.zeros(100)
    with Meter([present]) as meter:
        present.view(10, 10).t()
        made = torch.ones(50)
    assert meter.peak == made.nbytes
    with Meter([present]) as count:
        present.view(10, 10).t()
        made = torch.ones(50)
        made.add_(1.0)
        torch.split(made * 2, 10)
    assert count.made == 2 * made.nbytes


@pytest.mark.parametrize("samples", [4, 400])
def test_every_stage_has_its_own_share(samples):
    """One stage takes 1000 + 4 per sample, the other 10 per sample: the first rules."""

    def product(count, meter):
        torch.empty(1000 + 4 * count, dtype=torch.uint8)
        meter.end_stage()
        torch.empty(10 * count, dtype=torch.uint8)

    footprint = measure(product, 4, 2, [])
    true = max(1000 + 4 * samples, 10 * samples)
    each = footprint.kept + footprint.working
    assert true <= footprint.fixed + samples * each <= 1.25 * (true + 1000 + 2 * samples)


@pytest.mark.parametrize("build", [convolutional, chain])
@pytest.mark.parametrize("kind", [hr.Hessian, hr.GGN])
def test_a_forecast_is_what_a_product_takes(build, kind):
    model, data = build()
    operator = kind(model, nn.CrossEntropyLoss(), data)
    vector = torch.randn(operator.shape[0])
    peak = peak_of(lambda: operator @ vector, data)
    assert peak / 1.5 <= operator.cost().bytes <= 1.5 * 1.25 * peak


@pytest.mark.parametrize("build", [convolutional, chain])
@pytest.mark.parametrize("kind", [hr.Hessian, hr.GGN])
def test_a_product_in_double_precision_takes_no_more_than_the_first(build, kind):
    model, data = build()
    operator = kind(model, nn.CrossEntropyLoss(), data)
    vector = torch.randn(operator.shape[0])
    own = peak_of(lambda: operator @ vector, data)
    twin = operator.in_precision(torch.float64)
    found = []
    beside = peak_of(lambda: found.append(twin @ vector.double()), data)
    assert beside <= own
    assert beside <= 1.5 * operator.cost().beside
    torch.testing.assert_close(found[0].float(), operator @ vector, rtol=1e-4, atol=1e-5)


def test_graphs_stay_when_the_memory_is_measured_later():
    model, data = convolutional()
    evaluated = []

    def forward(model, batch):
        evaluated.append(len(batch[0]))
        return model(batch[0])

    operator = hr.Hessian(model, nn.CrossEntropyLoss(), data, forward=forward)
    vector = torch.randn(operator.shape[0])
    operator @ vector
    operator.cost()
    evaluated.clear()
    operator @ vector
    assert not evaluated


def test_a_layout_never_says_less_than_its_parts():
    footprint = Footprint(kept=10.0, working=5.0, fixed=100.0)
    layout = Layout.within(1e6, 50, footprint)
    assert layout.total >= 50 * 10 + layout.chunk * 5 + 100


def test_operations_are_counted_as_torch_counts_them():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    for model, inputs in ((layer, torch.randn(6, 7, 8)), (convolution, torch.randn(6, 3, 8, 8))):
        risk = hr.Risk(model, lambda output, _: output.square().sum(), (inputs, torch.zeros(6)))
        with FlopCounterMode(display=False) as counter:
            model.eval()(inputs.requires_grad_())
        assert risk.forward_flops() == pytest.approx(counter.get_total_flops())


@pytest.mark.parametrize("samples", [40, 100, 1000])
def test_a_layout_of_more_samples_than_fit_stays_below_the_memory(samples):
    layout = Layout.within(600, samples, Footprint(kept=10.0, working=5.0))
    assert 0 < layout.kept <= samples
    assert layout.total <= 600


def test_the_sharpness_of_a_large_model_takes_few_vectors():
    """Beside three vectors of Lanczos there is one product, and parts of it twice."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 512), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(512, 512), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(512, 1))
    data = torch.randn(4, 8), torch.randn(4, 1)
    hessian = hr.Hessian(model, nn.MSELoss(), data)
    vector, present = 4 * hessian.shape[0], [*hessian.risk.function.state.values(), *data]
    plan = hr.plan(hessian, 1, memory=6.5 * vector).best
    assert (plan.method, plan.storage) == ("lanczos", "memory")
    found = []
    limits = {"memory": 6.5 * vector, "max_matvecs": 6}  # after three it restarts
    peak = peak_of(lambda: found.append(hr.eigsh(hessian, 1, **limits)), present)
    assert peak <= 6.5 * vector and peak / 1.3 <= plan.memory <= 1.3 * peak
    assert found[0].matvecs >= 6
