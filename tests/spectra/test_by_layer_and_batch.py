"""Sharpness by mini-batch, eigenvalues and trace by layer, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hyperribbon as hr


def _case(norm: bool = False):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(5)] if norm else []
    model = nn.Sequential(nn.Linear(4, 5), *middle, nn.Tanh(), nn.Linear(5, 3)).double()
    inputs = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    return model, nn.CrossEntropyLoss(), (inputs, torch.randint(0, 3, (40,), generator=generator))


def _dense(model, loss, inputs, targets):
    """Return the Hessian by torch.func, in the mode that the model is in."""
    names = dict(model.named_parameters())
    sizes = [p.numel() for p in names.values()]

    def risk(vector):
        pieces = zip(names.items(), vector.split(sizes), strict=True)
        weights = {name: piece.view_as(p) for (name, p), piece in pieces}
        return loss(torch.func.functional_call(model, weights, inputs), targets)

    vector = torch.cat([p.detach().reshape(-1) for p in names.values()])
    return torch.autograd.functional.hessian(risk, vector)


@pytest.mark.parametrize("norm", [False, True])
def test_the_sharpness_of_batches_is_that_of_dense_hessians(norm):
    model, loss, data = _case(norm)
    mode = "train" if norm else "eval"
    found = hr.batch_sharpness(model, loss, data, batch_size=8, mode=mode, tol=1e-8, seed=3)
    order = hr.core.numpy_generator(3, "batches").permutation(40).reshape(5, 8)
    twin, _, _ = _case(norm)
    twin.train(norm)
    for layer in twin.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
            layer.num_batches_tracked = None
    dense = [_dense(twin, loss, data[0][np.sort(rows)], data[1][np.sort(rows)]) for rows in order]
    expected = [float(torch.linalg.eigvalsh(H)[-1]) for H in dense]
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)
    whole = float(torch.linalg.eigvalsh(torch.stack(dense).mean(0))[-1])
    assert found.pooled == pytest.approx(whole, rel=1e-6)
    assert found.mean >= found.pooled
    assert found.batch_size == 8 and len(found.values) == 5


def test_a_loader_gives_its_batch_size():
    model, loss, data = _case()
    loader = DataLoader(TensorDataset(*data), batch_size=10)
    found = hr.batch_sharpness(model, loss, loader, batches=3)
    assert found.batch_size == 10 and len(found.values) == 3
    with pytest.raises(hr.ArgumentError, match="do not come in batches"):
        hr.batch_sharpness(model, loss, data)
    with pytest.raises(hr.ArgumentError, match="two mini-batches"):
        hr.batch_sharpness(model, loss, data, batch_size=40)


def test_layers_have_the_eigenvalues_and_traces_of_their_blocks():
    model, loss, data = _case()
    H = hr.Hessian(model, loss, data)
    found = hr.layer_curvature(H, 3, tol=1e-8)
    dense = _dense(model, loss, *data)
    for place, part in enumerate((slice(0, 25), slice(25, 43))):
        block = dense[part, part]
        top = torch.linalg.eigvalsh(block).flip(0)[:3]
        np.testing.assert_allclose(found.eigenvalues[place], top, rtol=1e-6)
        assert found.traces[place] == pytest.approx(float(block.trace()), rel=1e-6)
    assert list(found.to_frame()["layer"]) == ["0", "2"]
    assert list(found.to_frame()["parameters"]) == [25, 18]
    with pytest.raises(hr.ArgumentError, match="operator of a model"):
        hr.layer_curvature(torch.eye(3))
