import io
import types

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.func import functional_call, hessian, jacrev

# curvlinops and torch.func load parts of torch that still use torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


@pytest.fixture
def products(harness):
    import benchmarks.products

    return benchmarks.products


@pytest.fixture
def networks(products):
    import benchmarks.networks

    return benchmarks.networks


@pytest.fixture
def subject(products):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return products.Subject(model, torch.randn(6, 4), torch.randint(2, (6,)))


def dense(subject, matrix):
    """Return the Hessian or the Gauss-Newton matrix, written out in double precision."""
    model = subject.model.double()
    names = [name for name, _ in model.named_parameters()]
    sizes = [p.numel() for p in model.parameters()]
    shapes = [p.shape for p in model.parameters()]
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def outputs(flat):
        pieces = [p.reshape(s) for p, s in zip(flat.split(sizes), shapes, strict=True)]
        weights = dict(zip(names, pieces, strict=True))
        return functional_call(model, weights, (subject.inputs.double(),))

    def loss(z):
        return nn.functional.cross_entropy(z, subject.targets)

    if matrix == "hessian":
        return hessian(lambda flat: loss(outputs(flat)))(start)
    jacobian = jacrev(outputs)(start).flatten(0, 1)
    count = len(jacobian)
    return jacobian.T @ hessian(loss)(outputs(start)).reshape(count, count) @ jacobian


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
@pytest.mark.parametrize("columns", [None, 3])
def test_exact_products_are_those_of_the_dense_matrix(products, subject, matrix, columns):
    vectors = products.directions(subject, columns)
    found = products.exact_products(subject, vectors, "", torch.float64)[matrix]
    expected = dense(subject, matrix) @ vectors.double()
    assert found.shape == vectors.shape
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_every_way_gives_the_exact_product(products, subject):
    vectors = products.directions(subject)
    exact = products.exact_products(subject, vectors, "", torch.float64)
    for name in ("hessian", "ggn", "hessian, curvlinops", "ggn, curvlinops"):
        entry = products.Entry.start(name, subject, vectors, "")
        assert entry.multiply is not None, entry.error
        expected = exact[name.split(",")[0]].float()
        # A product adds at most a hundred numbers, each rounded to ε = 1.2e-7.
        scale = float(expected.abs().max())
        torch.testing.assert_close(entry.answer, expected, rtol=0, atol=100 * 1.2e-7 * scale)
        torch.testing.assert_close(entry(), entry.answer, rtol=0, atol=100 * 1.2e-7 * scale)


def flash_attention(products, monkeypatch):
    """A peer that runs in plain attention only."""
    inside = types.SimpleNamespace(helped=False)

    class Helped:
        def __enter__(self):
            inside.helped = True

        def __exit__(self, *_):
            inside.helped = False

    def build(subject):
        if not inside.helped:
            raise NotImplementedError("no derivative\nof attention")
        return lambda vectors: 2 * vectors if inside.helped else 1 / 0

    monkeypatch.setitem(products.HELPS, "aid", Helped)
    monkeypatch.setitem(products.WAYS, "hessian, frail", build)
    monkeypatch.setitem(products.WAYS, "hessian", build)


def test_a_peer_that_fails_gets_help_and_is_reported(products, subject, monkeypatch):
    flash_attention(products, monkeypatch)
    vectors = products.directions(subject)
    entry = products.Entry.start("hessian, frail", subject, vectors, "aid")
    assert entry.help == "aid"
    assert entry.error == "NotImplementedError: no derivative"
    assert torch.equal(entry(), 2 * vectors)


def test_ours_gets_no_help(products, subject, monkeypatch):
    flash_attention(products, monkeypatch)
    entry = products.Entry.start("hessian", subject, products.directions(subject), "aid")
    assert entry.multiply is None
    assert entry.error == "NotImplementedError: no derivative"


def test_everybody_runs_once_a_round(products):
    order = []
    entries = {name: lambda name=name: order.append(name) for name in "abc"}
    times = products.take_turns(entries, seconds=0.0, least=4)
    assert order == list("abc") * 4
    assert {name: len(found) for name, found in times.items()} == {"a": 4, "b": 4, "c": 4}


def test_networks_are_the_same_every_time_and_leave_the_random_state(products):
    state = torch.get_rng_state()
    first, again = (products.NETWORKS["vit"]() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.inputs, again.inputs)
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not first.model.training


@pytest.mark.parametrize(
    ("name", "weights", "outputs"),
    [
        ("nanogpt", 929_536, (16, 1000, 64)),
        ("vit", 459_370, (64, 10)),
        ("lstm", 25_738, (256, 10)),
        ("gelu mlp", 370_698, (4000, 10)),
    ],
)
def test_networks_have_the_size_they_are_known_by(products, name, weights, outputs):
    model, inputs, _ = products.NETWORKS[name]()
    assert sum(p.numel() for p in model.parameters()) == weights
    with torch.no_grad():
        assert model(inputs).shape == outputs


def small_row(products, networks, subject, monkeypatch):
    monkeypatch.setitem(products.NETWORKS, "small", lambda: subject)
    monkeypatch.setattr(networks, "peak_memory", lambda *_: 2e6)
    monkeypatch.setattr(
        networks,
        "take_turns",
        lambda timed, seconds, least: {name: [3.0 if "," in name else 1.0] for name in timed},
    )
    return {limit.name: limit for limit in networks.measure(networks.Network("small"))}


def test_a_row_has_times_ratios_differences_and_memory(products, networks, subject, monkeypatch):
    limits = small_row(products, networks, subject, monkeypatch)
    assert limits["hessian"].value == limits["ggn"].value == 1.0
    assert limits["hessian"].verdict == limits["ggn"].verdict == "met"
    assert limits["hessian, curvlinops: times ours"].value == 3.0
    assert limits["ggn: difference"].verdict == "met"
    assert limits["ggn: peak memory"].value == 2.0
    assert limits["hessian: forecast over peak"].value > 0


def test_a_wrong_product_is_not_timed(products, networks, subject, monkeypatch):
    right = products.WAYS["ggn"]
    monkeypatch.setitem(
        products.WAYS, "ggn", lambda s: lambda v: right(s)(v) + 0.01 * v.norm() / len(v) ** 0.5
    )
    limits = small_row(products, networks, subject, monkeypatch)
    assert limits["ggn"].verdict == "disagrees"
    assert limits["ggn"].value is None
    assert "ggn, curvlinops: times ours" not in limits


def test_a_peer_that_is_wrong_is_told_and_is_no_failure_of_ours(
    products, networks, subject, monkeypatch
):
    monkeypatch.setitem(products.WAYS, "ggn, curvlinops", lambda s: lambda v: v)
    limits = small_row(products, networks, subject, monkeypatch)
    peer = limits["ggn, curvlinops"]
    assert peer.value == 3.0
    assert peer.verdict == ""
    assert peer.note.startswith("wrong by")
    assert limits["ggn"].verdict == "met"


def test_summary_names_the_limits_that_are_missed(networks, harness):
    limits = [
        harness.Limit("gradient", 12.5, unit="ms"),
        harness.Limit("hessian", 2.75, high=2.3, unit="gradients"),
        harness.Limit("ggn", 1.25, high=1.6, unit="gradients"),
        harness.Limit("hessian, curvlinops", None, note="fails: RuntimeError"),
    ]
    row = {"row": "small", "lines": [harness.limit_line(limit) for limit in limits]}
    console = Console(file=io.StringIO(), width=200)
    console.print(networks.summary([row]))
    (line,) = [text for text in console.file.getvalue().splitlines() if "small" in text]
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    assert cells[:4] == ["small", "12.50", "2.75 ≤2.3", "1.25 ≤1.6"]
    assert "fails" in cells
    assert cells[-1] == "hessian"


def test_profile_lists_the_operations_of_all_three(harness, subject, monkeypatch):
    import benchmarks.profiling

    monkeypatch.setitem(benchmarks.profiling.NETWORKS, "small", lambda: subject)
    table = benchmarks.profiling.operations("small", top=100)
    assert [column.header for column in table.columns] == [
        "operation",
        "gradient",
        "hessian",
        "ggn",
    ]
    assert "aten::addmm" in list(table.columns[0].cells)
    *shares, total = table.columns[1].cells
    shares = [float(cell.split(" %")[0]) for cell in shares if cell]
    assert total == "100 %"
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))  # each is rounded to 0.1


def test_profile_of_an_unknown_network_names_those_there_are(harness):
    import benchmarks.profiling

    with pytest.raises(ValueError, match="unknown network 'nothing'; known: resnet20"):
        benchmarks.profiling.operations("nothing")
