"""Products repeat, at the same time too, and leave each other alone."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from hyperribbon.operators import GGN, Hessian
from hyperribbon.operators.derivatives import linearisation


@pytest.mark.parametrize("kind", [Hessian, GGN])
@pytest.mark.parametrize("between", [nn.ReLU(), nn.Tanh()])
def test_products_do_not_touch_each_other(kind, between):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), between, nn.Linear(30, 30), between, nn.Linear(30, 3))
    data = torch.randn(200, 20), torch.randint(3, (200,))
    operator = kind(model, nn.CrossEntropyLoss(), data)
    blocks = torch.randn(8, operator.shape[0], 5)
    expected = [kind(model, nn.CrossEntropyLoss(), data) @ block for block in blocks]
    for block, right in zip(blocks, expected, strict=True):
        torch.testing.assert_close(operator @ block, right, rtol=1e-5, atol=1e-6)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            found = list(pool.map(operator.__matmul__, blocks))
            for ours, right in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)
    other = operator.at({name: 2 * p for name, p in model.named_parameters()})
    before = operator @ blocks[0]
    held = before.clone()
    assert not torch.equal(other @ blocks[1], operator @ blocks[1])
    assert torch.equal(before, held)


@pytest.mark.parametrize("kind", [Hessian, GGN])
def test_products_in_inference_mode_leave_the_operator_usable(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    operator = kind(model, nn.CrossEntropyLoss(), (torch.randn(50, 20), torch.randint(3, (50,))))
    block = torch.randn(operator.shape[0], 4)
    with torch.inference_mode():
        inside = operator @ block
    assert torch.equal(operator @ block, inside)


CHOSEN = {
    "all": None,
    "ends": ["0.weight", "8.bias"],
    "first": ["0.weight", "0.bias"],
    "middle": ["4.weight"],
    "biases": ["0.bias", "2.bias", "8.bias"],
}


@pytest.mark.parametrize("last", [nn.Identity(), nn.Sigmoid()])
@pytest.mark.parametrize("chosen", CHOSEN)
def test_what_flows_back_over_used_memory_is_right_with_frozen_layers(chosen, last):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 5),
        nn.Tanh(),
        nn.Linear(5, 7),
        nn.Softplus(),
        nn.Linear(7, 5),
        nn.ReLU(),
        nn.Linear(5, 5),
        nn.Tanh(),
        nn.Linear(5, 3),
        last,
    ).double()
    inputs, targets = torch.randn(40, 6).double(), torch.rand(40, 3).double()
    operator = GGN(model, nn.MSELoss(reduction="sum"), (inputs, targets), params=CHOSEN[chosen])

    def outputs(vector):
        weights = operator.space.unflatten(vector)
        return torch.func.functional_call(model, weights, (inputs,)).flatten()

    at = operator.space.flatten(dict(model.named_parameters()))
    jacobian = torch.autograd.functional.jacobian(outputs, at.detach())
    block = torch.randn(len(at), 4).double()
    expected = 2 * jacobian.T @ (jacobian @ block)
    for _ in range(2):
        torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-9)


class Waiting(nn.Sequential):
    """A network whose backward passes wait, as on a busy machine."""

    pause = 0.0

    def forward(self, inputs):
        hidden = self[0](inputs)
        if hidden.requires_grad:
            hidden.register_hook(lambda slope: time.sleep(self.pause))
        return self[2](self[1](hidden))


def test_products_of_a_block_round_alike_however_long_they_take():
    torch.manual_seed(0)
    model = Waiting(nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, 3))
    data = torch.randn(37, 50), torch.randint(3, (37,))
    products = []
    for model.pause in (0.0, 0.02):
        operator = Hessian(model, nn.CrossEntropyLoss(), data)
        products.append(operator @ torch.eye(operator.shape[0])[:, ::500])
    assert torch.equal(*products)


def test_a_first_block_whose_rows_go_one_by_one_takes_no_row_twice(monkeypatch):
    monkeypatch.setattr(linearisation, "_ARITHMETIC", -1.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = torch.randn(6, 3).double(), torch.tensor([0, 1, 0, 1, 1, 0])
    op = Hessian(model, nn.CrossEntropyLoss(), data)
    block = torch.randn(op.shape[0], 5).double()
    singles = torch.stack([op @ block[:, i] for i in range(5)], 1)
    torch.testing.assert_close(op @ block, singles)  # its memory is measured once
    op.risk._routes.batched.clear()
    calls = []
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: (calls.append(0), grad(*a, **k))[1])
    torch.testing.assert_close(op @ block, singles)
    assert len(calls) == 5
