"""The weights of a trajectory are the model's trainable parameters: tied once, without buffers."""

import json

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.parameters import ParameterSpace

LOSS = nn.CrossEntropyLoss()
X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randint(9, (30,), generator=torch.Generator().manual_seed(1))


class Mixed(nn.Module):
    """27 trainable weights under two names, 9 frozen ones, and the statistics of a batch norm."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(3, 3, bias=False).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3, affine=False)
        self.embed = nn.Linear(3, 9, bias=False)
        self.head = nn.Linear(3, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.body(x))) + self.embed(x)


def fit(folder, epochs=14, **options):
    model = Mixed()
    with hr.Recorder(folder, "1ep", **options) as recorder:
        hr.train(model, LOSS, (X, Y), epochs=epochs, lr=0.1, recorder=recorder)
    return model, hr.Trajectory.open(folder)


def forget(folder):
    """Take from a recording what older versions did not write."""
    header = json.loads((folder / "trajectory.json").read_text())
    del header["about"], header["checksum"]
    (folder / "trajectory.json").write_text(json.dumps(header))
    return hr.Trajectory.open(folder)


def test_trajectories_count_what_operators_count(tmp_path):
    model, trajectory = fit(tmp_path)
    space = ParameterSpace.of_model(model)
    assert space.dimension == 27
    torch.testing.assert_close(
        trajectory.weight_vector(-1), space.flatten(dict(model.named_parameters())).detach()
    )
    assert trajectory.weight_names() == list(space.names)
    covariance = hr.weight_covariance(trajectory)
    assert len(covariance.mean) == 27
    assert hr.variance_flatness(
        covariance, hr.GGN(model, LOSS, (X, Y)), warn=False, strict=False
    ).exponent


def test_other_entries_are_there_by_name(tmp_path):
    model, trajectory = fit(tmp_path)
    assert torch.equal(trajectory.weight_vector(0, ["body.weight"]), model.body.weight.reshape(-1))
    both = trajectory.weight_vector(0, ["embed.weight", "body.weight"])
    assert len(both) == 36
    assert trajectory.weight_names("embed.*") == ["embed.weight"]
    assert trajectory.weight_names(lambda name, tensor: tensor.numel() > 20) == ["embed.weight"]
    for params in ("body.*", "nothing"):
        with pytest.raises(ArgumentError, match="no recorded weight"):
            trajectory.weight_vector(0, params)


def test_recordings_that_do_not_say_leave_out_what_can_be_told(tmp_path):
    fit(tmp_path)
    trajectory = forget(tmp_path)
    with pytest.warns(UserWarning, match=r"norm\.running_mean.*head\.weight \(copy of embed"):
        names = trajectory.weight_names()
    assert names == ["body.weight", "embed.weight"]  # nothing tells that the body was frozen
    assert len(trajectory.weight_vector(-1)) == 36
    assert len(trajectory.weight_vector(-1, ["embed.weight"])) == 27


def test_equal_starts_are_no_copies(tmp_path):
    """Two layers of ones, and two that start from the same values and part, are four weights."""
    trajectory = hr.Trajectory.create(tmp_path)
    start = torch.randn(4)
    for step in range(3):
        first = start + step
        state = {"a": torch.ones(4), "b": torch.ones(4), "c": first, "d": start - step}
        trajectory.append(step, weights=state)
    assert trajectory.weight_names() == ["a", "b", "c", "d"]


def test_checkpoints_of_other_programs_are_told_alike(tmp_path):
    model = Mixed()
    for step in (1, 2):
        with torch.no_grad():
            model.embed.weight += step
        torch.save(model.state_dict(), tmp_path / f"step-{step}.pt")
    trajectory = hr.Trajectory.from_checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="head.weight"):
        assert len(trajectory.weight_vector(0)) == 36


@pytest.mark.parametrize("weights", ["embed", ["body.weight"], hr.recording.Projection(5)])
def test_chosen_weights_are_all_that_there_is(tmp_path, weights):
    _, trajectory = fit(tmp_path, epochs=1, weights=weights, resume=False)
    size = {"embed": 27, "['body.weight']": 9}.get(str(weights), 5)
    assert len(trajectory.weight_vector(-1)) == size


def test_mended_recordings_still_know_their_weights(tmp_path):
    from hyperribbon.core.store.check import repair_trajectory

    _, trajectory = fit(tmp_path, epochs=3)
    assert trajectory.weight_names() == ["embed.weight"]
    (weights,) = tmp_path.glob("weights/000000001.safetensors")
    weights.write_bytes(b"broken")
    repair_trajectory(tmp_path)
    assert hr.Trajectory.open(tmp_path).weight_names() == ["embed.weight"]


def test_a_strange_header_is_damage(tmp_path):
    fit(tmp_path, epochs=1)
    for about in (3, {"parameters": 4}, {"parameters": [1]}, {"omitted": []}):
        header = json.loads((tmp_path / "trajectory.json").read_text())
        (tmp_path / "trajectory.json").write_text(json.dumps({**header, "about": about}))
        with pytest.raises(ArgumentError, match="damaged"):
            hr.Trajectory.open(tmp_path)
