"""Many states at once give what one after another gives; criticality and sweeps built on it."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.subnetworks import evaluate_states, metric_of, rank, sweep_selection


def _states(model, initial, fractions=(0.0, 0.3, 0.6, 1.0)):
    ranking = rank(model, initial, criterion="change")
    return [hr.reinitialize(model, initial, ranking.select(f)) for f in fractions]


@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_together_equals_one_by_one_equals_the_model_itself(case, measure):
    model, initial, data = case
    states = _states(model, initial)
    together = evaluate_states(model, states, data, measure=measure)
    alone = evaluate_states(model, states, data, measure=measure, together=1)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    for state, row in zip(states, alone, strict=True):
        twin = copy.deepcopy(model).eval()
        twin.load_state_dict(state)
        outputs = twin(data[0]).detach()
        expected = (
            (outputs.argmax(1) == data[1]).float()
            if measure == "accuracy"
            else torch.nn.functional.cross_entropy(outputs, data[1], reduction="none")
        )
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-5)
    assert model.training


def test_what_states_have_in_common_is_computed_once(mlp):
    model, _, (inputs, targets) = mlp
    data = inputs.repeat(16, 1), targets.repeat(16)
    final = model.state_dict()
    last = list(final)[-2]
    alike = [{**final, last: final[last] * scale} for scale in (1.0, 0.5, 2.0, -1.0)]
    apart = [{name: tensor.clone() for name, tensor in state.items()} for state in alike]
    counts, values = [], []
    for states in (alike, apart):
        with FlopCounterMode(display=False) as counter:
            values.append(evaluate_states(model, states, data))
        counts.append(counter.get_total_flops())
    torch.testing.assert_close(*values)
    layers = [tensor.numel() for tensor in final.values() if tensor.ndim == 2]
    assert counts[1] / counts[0] == pytest.approx(
        4 * sum(layers) / (sum(layers[:-1]) + 4 * layers[-1]), rel=0.01
    )


def test_own_measures_and_rows_beyond_one_block(mlp):
    model, initial, (inputs, targets) = mlp
    data = (inputs.repeat(40, 1), targets.repeat(40))
    values = evaluate_states(
        model, _states(model, initial), data, measure=lambda out, y: out.square().sum(1)
    )
    assert values.shape == (4, 2400)
    torch.testing.assert_close(values[:, :60], values[:, -60:])


def test_a_model_that_cannot_be_vectorised_says_so(mlp):
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 4)

        def forward(self, x):
            return self.layer(x) if self.layer.weight.sum() > 0 else -self.layer(x)

    model = Branching()
    states = [{k: v + i for k, v in model.state_dict().items()} for i in range(3)]
    with pytest.raises(ArgumentError, match="together=1"):
        evaluate_states(model, states, mlp[2], together=3)
    one_by_one = evaluate_states(model, states, mlp[2], together=1)
    assert torch.equal(evaluate_states(model, states, mlp[2]), one_by_one)
    with pytest.raises(ArgumentError, match="has shape"):
        evaluate_states(model, [mlp[1]], mlp[2])


def test_sweep_matches_the_operations_one_by_one(mlp):
    model, initial, data = mlp
    final = model.state_dict()
    fractions = [0.0, 0.25, 0.5, 0.9, 1.0]
    swept = sweep_selection(
        model, final, initial, data, operation="prune", criterion="magnitude", fractions=fractions
    )
    for fraction, value, stderr in zip(fractions, swept.values, swept.stderr, strict=True):
        state = hr.prune(final, hr.select(final, fraction=fraction))
        hits = evaluate_states(model, [state], data)[0].double()
        assert value == hits.mean()
        assert stderr == pytest.approx(float(hits.std() / 60**0.5))
    limits = sweep_selection(model, final, initial, data, thresholds=[0.0, 0.2, 99.0])
    assert limits.fractions[0] == 0
    assert limits.fractions[-1] == 1
    start = evaluate_states(
        model, [{**final, **{n: t for n, t in initial.items() if t.ndim > 1}}], data
    ).mean()
    assert limits.values[-1] == pytest.approx(float(start))
    with pytest.raises(ArgumentError, match="exactly one"):
        sweep_selection(model, final, initial, data)


@pytest.fixture(scope="module")
def readout():
    """A network whose second layer alone was trained: it is critical, the first is robust."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2000, 10, generator=generator)
    targets = (inputs @ torch.randn(10, generator=generator) > 0).long()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
        )
    initial = copy.deepcopy(model.state_dict())
    optimiser = torch.optim.Adam(model[2].parameters(), lr=0.02)
    for _ in range(200):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimiser.step()
    return model, initial, (inputs, targets)


def test_criticality_finds_the_layer_that_learned(readout):
    model, initial, data = readout
    result = hr.layer_criticality(model, initial, metric_of(model, data), draws=4)
    first, second = result.layers
    assert result.baseline > 0.9
    assert (first.verdict, second.verdict) == ("robust", "critical")
    assert first.drop == 0
    assert first.reinitialized == result.baseline
    assert first.rerandomized < 0.85  # a new draw breaks what the readout relies on
    assert second.drop_stderr == pytest.approx(0.01, abs=0.01)
    assert list(result.to_frame()["layer"]) == ["0", "2"]


def test_criticality_of_a_loss_of_blocks_and_its_uncertainty(readout):
    model, initial, data = readout
    loss = hr.layer_criticality(
        model, initial, metric_of(model, data, "loss"), higher_is_better=False, draws=1
    )
    assert loss.layers[1].drop > 0.1
    blocks = hr.layer_criticality(
        model,
        initial,
        metric_of(model, data),
        layers={"all": ["0.weight", "2.weight"], "biases": ["0.bias", "2.bias"]},
    )
    assert [layer.parameters for layer in blocks.layers] == [768, 66]
    close = blocks.layers[0].drop
    undecided = hr.layer_criticality(
        model,
        initial,
        metric_of(model, data),
        layers={"all": ["0.weight", "2.weight"]},
        tolerance=close + 1e-4,
    )
    assert undecided.layers[0].verdict == "undecided"
    single = hr.layer_criticality(model, initial, lambda state: float(state["2.weight"].norm()))
    assert single.layers[1].drop_stderr == 0


def test_criticality_on_every_kind_of_network(case):
    model, initial, data = case
    result = hr.layer_criticality(model, initial, metric_of(model, data), initializer=model)
    assert len(result.layers) == len({n.rpartition(".")[0] for n, _ in model.named_parameters()})


def test_what_cannot_be_judged_is_explained(mlp):
    model, initial, data = mlp
    metric = metric_of(model, data)
    with pytest.raises(ArgumentError, match="does not have this layer"):
        hr.layer_criticality(model, initial, metric, layers=["nine"])
    with pytest.raises(ArgumentError, match="initial state"):
        hr.layer_criticality(model, None, metric)
