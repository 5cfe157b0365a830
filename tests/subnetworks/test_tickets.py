"""Iterative pruning with rewinding: masks nest, pruned weights stay zero, branches are controls."""

import copy
import math

import pytest
import torch

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.subnetworks import metric_of


def _trainer(data, steps=60, weight_decay=0.0):
    inputs, targets = data

    def train(network: torch.nn.Module) -> None:
        optimiser = torch.optim.SGD(
            network.parameters(), lr=0.2, momentum=0.9, weight_decay=weight_decay
        )
        for _ in range(steps):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs), targets).backward()
            optimiser.step()

    return train


def _task(seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(600, 20, generator=generator)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()  # two of twenty inputs matter
    return (inputs[:400], targets[:400]), (inputs[400:], targets[400:])


def _model():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


@pytest.mark.parametrize("criterion", ["magnitude", "change"])
def test_the_ticket_keeps_what_the_task_needs(criterion):
    train_data, test_data = _task()
    model = _model()
    before = copy.deepcopy(model.state_dict())
    ticket = hr.find_ticket(
        model,
        _trainer(train_data),
        metric_of(model, test_data),
        levels=4,
        fraction=0.5,
        criterion=criterion,
    )
    kept = [level.kept for level in ticket.levels]
    assert kept == pytest.approx([1, 0.5, 0.25, 0.125, 0.0625], abs=1e-3)
    last = ticket.levels[-1]
    assert last.ticket > 0.9
    assert last.ticket > last.branches["random"] + 0.1
    for name, entry in ticket.pruned.items():
        assert (ticket.final[name][entry] == 0).all()
        assert (ticket.start[name][entry] == 0).all()
        assert torch.equal(ticket.start[name][~entry], before[name][~entry])
    relevant = (~ticket.pruned["0.weight"]).float().mean(0)
    assert relevant[:2].mean() > 4 * relevant[2:].mean()
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert list(ticket.to_frame().columns) == ["kept", "ticket", "random", "reinitialized"]


@pytest.mark.parametrize("criterion", ["magnitude", "change"])
def test_tickets_of_every_kind_of_network_keep_their_zeros(case, criterion):
    model, initial, data = case
    before = copy.deepcopy(model.state_dict())
    counts = []

    def train(network: torch.nn.Module) -> None:
        _trainer(data, steps=3)(network.train())
        counts.append(
            sum(int((t == 0).sum()) for t in hr.subnetworks.state_of("", network).values())
        )

    ticket = hr.find_ticket(
        model, train, metric_of(model, data), initial=initial, levels=2, criterion=criterion
    )
    chosen = hr.select(model, fraction=0.0)
    assert set(ticket.pruned) == set(chosen)
    assert ticket.pruned.count == math.floor(0.36 * chosen.size + 0.5)
    tied = [name for name in ticket.final if name not in dict(model.named_parameters())]
    for name, entry in ticket.pruned.items():
        for state in (ticket.start, ticket.final):
            assert (state[name][entry] == 0).all()
        assert not torch.equal(ticket.final[name], ticket.start[name])
    for name in set(tied) & {"head.weight"}:
        assert torch.equal(ticket.final[name], ticket.final["embed.weight"])
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert min(counts[1:]) > counts[0]


def test_rewinding_goes_back_to_the_given_step():
    train_data, test_data = _task(1)
    model = _model()
    early = copy.deepcopy(model)
    _trainer(train_data, steps=5)(early)
    ticket = hr.find_ticket(
        model,
        _trainer(train_data, steps=20, weight_decay=1e-3),
        metric_of(model, test_data),
        rewind=early.state_dict(),
        levels=2,
        scope="layer",
        branches=(),
    )
    kept = ~ticket.pruned["0.weight"]
    assert torch.equal(ticket.start["0.weight"][kept], early.state_dict()["0.weight"][kept])
    shares = [float(entry.float().mean()) for entry in ticket.pruned.values()]
    assert shares == pytest.approx([0.36, 0.36], abs=0.005)
    assert ticket.levels[-1].branches == {}


def test_bad_requests_are_explained():
    model = _model()
    with pytest.raises(ArgumentError, match="criterion='random'"):
        hr.find_ticket(model, lambda m: None, lambda s: 0.0, criterion="random")
    with pytest.raises(ArgumentError, match=r"branches.*'other'"):
        hr.find_ticket(model, lambda m: None, lambda s: 0.0, branches=("other",))
    with pytest.raises(ArgumentError, match="same architecture"):
        hr.find_ticket(model, lambda m: None, lambda s: 0.0, rewind={"0.weight": torch.ones(1, 1)})
    with pytest.raises(ArgumentError, match="nan after training"):
        hr.find_ticket(model, lambda m: None, lambda s: float("nan"))


def test_masks_nest_where_scores_are_negative():
    model, kept = _model(), []
    for levels in (1, 2):
        ticket = hr.find_ticket(
            model,
            _trainer(_task()[0], steps=3),
            lambda state: 0.0,
            levels=levels,
            fraction=0.5,
            score=lambda net: {n: p.detach().abs() - 5 for n, p in net.named_parameters()},
            branches=(),
        )
        kept.append(ticket.pruned)
    assert all((kept[1][name] | ~entry).all() for name, entry in kept[0].items())


def test_layers_that_start_equal_are_not_tied():
    """torch copies the layers of a new encoder: equal weights, which train apart."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(20, 2, 8, 0.0, batch_first=True)
            self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = torch.nn.Linear(20, 2)

        def forward(self, x):
            return self.head(self.encoder(x[:, None]).mean(1))

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = Network()
    trained = []

    def train(network):
        _trainer(_task()[0], steps=2)(network)
        trained.append({n: t.clone() for n, t in network.state_dict().items()})

    seen = []
    hr.find_ticket(model, train, lambda s: float(seen.append(s) or 0), levels=1, branches=())
    assert all(torch.equal(seen[0][name], tensor) for name, tensor in trained[0].items())
    names = [f"encoder.layers.{number}.linear1.weight" for number in (0, 1)]
    assert not torch.equal(*(seen[0][name] for name in names))
    pruned = hr.prune(model, hr.Mask({names[0]: torch.ones(8, 20, dtype=torch.bool)}))
    assert not pruned[names[0]].any() and torch.equal(
        pruned[names[1]], model.state_dict()[names[1]]
    )
