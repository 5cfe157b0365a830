"""Data in the forms users have them: the same batches, every sample once, or a clear error."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from hyperribbon.core import ArgumentError
from hyperribbon.operators import Hessian, Jacobian
from hyperribbon.operators.risk.batches import batch_size, concatenate, cut, plain, split
from hyperribbon.operators.risk.data import Source

N = 11
X = torch.arange(4.0 * N).reshape(N, 4)
Y = torch.arange(N)
Pair = namedtuple("Pair", ["inputs", "targets"])


def source(data, memory=1e9, **options):
    options = {"dtype": torch.float32, "device": torch.device("cpu")} | options
    return Source(data, memory=memory, **options)


def inputs_of(found):
    """The inputs of all batches, one after the other."""
    return torch.cat([split(batch)[0] for batch in found.batches()])


class Rows(Dataset):
    """Samples by index; notes which ones were read."""

    def __init__(self, count=N):
        self.count, self.read = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.read.append(index)
        return X[index % N] + index // N * 1000, Y[index % N]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Again:
    """A loader of another library: iteration starts anew."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


BATCHES = [(X[:4], Y[:4]), (X[4:8], Y[4:8]), (X[8:], Y[8:])]
FORMS = {
    "pair": (lambda: (X, Y), True),
    "list that is a pair": (lambda: [X, Y], True),
    "arrays": (lambda: (X.numpy(), Y.numpy()), True),
    "array and list": (lambda: [X.double().numpy(), Y.numpy()], True),
    "named": (lambda: Pair(X, Y), True),
    "tensor data set": (lambda: TensorDataset(X, Y), True),
    "data set": (Rows, True),
    "subset": (lambda: Subset(Rows(40), range(N)), True),
    "things with an index": (lambda: Indexed(), True),
    "iterable data set": (Stream, True),
    "loader": (lambda: DataLoader(Rows(), batch_size=4), False),
    "loader of one batch": (lambda: DataLoader(Rows(), batch_size=50), True),
    "shuffling loader": (lambda: DataLoader(Rows(), batch_size=4, shuffle=True), False),
    "drop_last": (lambda: DataLoader(Rows(), batch_size=4, drop_last=True), False),
    "shuffling drop_last": (
        lambda: DataLoader(Rows(), batch_size=4, shuffle=True, drop_last=True),
        False,
    ),
    "drop_last of all": (lambda: DataLoader(Rows(), batch_size=50, drop_last=True), True),
    "iterable drop_last": (lambda: DataLoader(Stream(), batch_size=4, drop_last=True), False),
    "random subset": (
        lambda: DataLoader(Rows(40), batch_size=4, sampler=SubsetRandomSampler(range(N))),
        False,
    ),
    "list of tuples": (lambda: BATCHES, False),
    "list of lists": (lambda: [list(batch) for batch in BATCHES], False),
    "list of named": (lambda: [Pair(*batch) for batch in BATCHES], False),
    "list of one": (lambda: [(X, Y)], True),
    "generator": (lambda: (batch for batch in BATCHES), False),
    "iterator": (lambda: iter(BATCHES), False),
    "zip": (lambda: zip(X.split(3), Y.split(3), strict=True), False),
    "starting anew": (lambda: Again(BATCHES), False),
}


class Indexed:
    def __len__(self):
        return N

    def __getitem__(self, index):
        return X[index], Y[index]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_every_sample_once_in_order(form):
    make, is_one_batch = FORMS[form]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    found = source(make())
    assert torch.equal(torch.get_rng_state(), state)
    for _ in range(2):
        assert torch.equal(inputs_of(found), X)
        assert torch.equal(torch.cat([split(b)[1] for b in found.batches()]), Y)
    assert found.is_kept
    assert found.is_one_batch == is_one_batch
    starts = [start for start, _ in found.chunks(3)]
    assert starts == [0, 3, 6, 9]
    assert all(batch_size(batch) <= 3 for _, batch in found.chunks(3))


@pytest.mark.parametrize("form", FORMS)
def test_too_little_memory(form):
    make, is_one_batch = FORMS[form]
    if form in ("generator", "iterator", "zip"):
        with pytest.raises(ArgumentError, match=r"read only once.*DataLoader.*memory="):
            source(make(), memory=100)
        return
    found = source(make(), memory=100)
    in_memory = {"list of tuples", "list of lists", "list of named", "list of one", "pair"}
    in_memory |= {"list that is a pair", "arrays", "array and list", "named", "tensor data set"}
    assert found.is_kept == (form in in_memory)
    assert torch.equal(inputs_of(found), X)
    assert torch.equal(inputs_of(found), X)
    if form not in ("data set", "subset", "things with an index", "iterable data set"):
        assert found.is_one_batch == is_one_batch


def test_dicts_and_other_mappings():
    class Encoding(UserDict):
        """As a tokenizer's: a mapping with attributes that is no dict."""

    batch = {"x": X, "y": Y}
    for mapping in (batch, OrderedDict(batch), Encoding(batch)):
        found = next(source(mapping).batches())
        assert torch.equal(found["x"], X) and torch.equal(found["y"], Y)
        assert isinstance(found, dict)
    parts = [Encoding({"x": x, "y": y}) for x, y in BATCHES]
    for data in (parts, iter(parts), Again(parts)):
        found = source(data)
        (kept,) = found.batches()
        assert torch.equal(kept["x"], X)
        assert torch.equal(kept.x, X)  # by attribute too
        assert torch.equal(cut(kept, 2, 5).y, Y[2:5])
        assert not found.is_one_batch
        with pytest.raises(AttributeError, match="only x, y"):
            _ = kept.z


def test_batches_of_a_tokenizer():
    encoding = pytest.importorskip("transformers").BatchEncoding
    parts = [encoding({"input_ids": Y[:4].reshape(2, 2), "labels": Y[:2]}) for _ in range(2)]
    (batch,) = source(parts).batches()
    assert batch.input_ids.shape == (4, 2)
    assert torch.equal(batch["labels"], torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    "batch",
    [
        ((X, X + 1), Y),
        (X, X + 1, Y),
        ({"a": X, "b": (X, [X, None])}, Y),
        {"a": {"b": X}, "labels": Y, "name": "train", "step": 3, "none": None},
        Pair({"a": X}, (Y, Y)),
        ((X, "text"), Y),
    ],
    ids=["two", "three", "nested", "carried", "named", "text"],
)
def test_trees_are_kept_and_cut_together(batch):
    found = source(batch)
    (whole,) = found.batches()
    assert concatenate([cut(whole, 0, 5), cut(whole, 5, N)])[0] is not None
    pieces = [piece for _, piece in found.chunks(4)]
    (again,) = concatenate(pieces)
    flat, theirs = (torch.utils._pytree.tree_flatten(tree) for tree in (again, plain(batch)))
    assert flat[1] == theirs[1]
    for ours, original in zip(flat[0], theirs[0], strict=True):
        same = torch.equal(ours, original) if torch.is_tensor(ours) else ours == original
        assert same


def test_batches_that_do_not_fit_together_stay_apart():
    ragged = [(torch.zeros(2, 3), Y[:2]), (torch.zeros(3, 5), Y[:3])]
    assert len(list(source(ragged).batches())) == 2
    notes = [{"x": X[:4], "epoch": 1}, {"x": X[4:], "epoch": 2}]
    assert [batch["epoch"] for batch in source(notes).batches()] == [1, 2]
    mixed = [(X[:4], Y[:4]), (X[4:], Y[4:].float())]
    assert len(list(source(mixed).batches())) == 2
    assert [start for start, _ in source(ragged).chunks(2)] == [0, 2, 4]


def test_lists_of_tensors_are_batches_of_inputs_without_targets():
    found = source([X[:5], X[5:]], has_targets=False)
    assert torch.equal(inputs_of(found), X) and not found.is_one_batch
    model = nn.Linear(4, 2)
    assert Jacobian(model, [X[:5], X[5:]]).shape == (2 * N, 10)
    with pytest.raises(ArgumentError, match=r"different kinds.*tuple, \(inputs, targets\)"):
        source([X, Y], has_targets=False)
    with pytest.raises(ArgumentError, match="different lengths"):
        source([X[:5], X[5:]])
    assert source([[X, X + 1], Y]).is_one_batch
    assert source([{"x": X}, Y]).is_one_batch


def test_precision():
    (inputs, targets), (more, _) = (
        next(source((X.double(), X[:, 0].double()), dtype=dtype).batches())
        for dtype in (torch.bfloat16, torch.float64)
    )
    assert (inputs.dtype, targets.dtype) == (torch.bfloat16, torch.float32)
    assert more.dtype == torch.float64
    (batch,) = source({"x": X, "labels": X, "mask": Y}, dtype=torch.float16).batches()
    assert [value.dtype for value in batch.values()] == [torch.float16, torch.float32, torch.int64]
    (batch,) = source((X, X), dtype=torch.float16, has_targets=False).batches()
    assert batch[1].dtype == torch.float16


REFUSED = {
    "number": (3, "no tensors"),
    "text": ("train", "no tensors"),
    "nothing": (None, "no tensors"),
    "no tensors": (("a", "b"), "no tensors"),
    "empty tuple": ((), "no tensors"),
    "empty list": ([], "no samples"),
    "empty batch": ((X[:0], Y[:0]), "no samples"),
    "empty batches": ([(X[:0], Y[:0])], "no samples"),
    "empty iterator": (iter([]), "no samples"),
    "empty loader": (DataLoader(Rows(0), batch_size=2), "no batch"),
    "lengths": ((X, Y[:3]), "different lengths"),
    "no axes": ((X, torch.tensor(1.0)), r"no axes.*DataLoader\(data, batch_size"),
    "single samples": ([(X[0], Y[0]), (X[1], Y[1])], r"no axes.*DataLoader\(data, batch_size"),
    "samples of numbers": ([(X[0], Y[:1])], r"different lengths.*DataLoader\(data, batch_size"),
    "loader without batches": (DataLoader(Rows(), batch_size=None), "no axes"),
    "packed": ((pack_sequence([X]), Y), "packed.*forward="),
    "sparse": ((X.to_sparse(), Y), r"sparse.*to_dense\(\)"),
    "nested": ((torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged), Y[:2]), "nested"),
    "meta": ((X.to("meta"), Y), "on meta"),
    "meta in a list": ([(X.to("meta"), Y)], "meta device has no values"),
    "shapes": ([torch.zeros(2), torch.zeros(3)] * 2, "different lengths"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_data_is_refused_with_a_way_out(name):
    data, reason = REFUSED[name]
    with pytest.raises(ArgumentError, match=reason):
        list(source(data).batches())


def test_samples_of_different_shapes_need_a_collate_function():
    class Ragged(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index >= 4:
                raise IndexError
            return torch.ones(index + 1), index

    with pytest.raises(ArgumentError, match=r"different shapes.*collate_fn.*batch_size=1"):
        list(source(Ragged()).batches())
    ragged = source(DataLoader(Ragged(), batch_size=1))
    assert [batch_size(batch) for batch in ragged.batches()] == [1] * 4

    def padded(samples):
        xs, ys = zip(*samples, strict=True)
        return nn.utils.rnn.pad_sequence(list(xs), batch_first=True), torch.tensor(ys)

    loader = DataLoader(Ragged(), batch_size=4, collate_fn=padded, shuffle=True)
    (batch,) = source(loader).batches()
    assert batch[0].shape == (4, 4)


def test_another_rank_may_have_all_the_samples():
    for data in ((X[:0], Y[:0]), [], iter([]), DataLoader(Rows(0), batch_size=2)):
        found = source(data, may_be_empty=True)
        assert sum(batch_size(batch) for batch in found.batches()) == 0
        assert found.some(3) is None or batch_size(found.some(3)) == 0


class Drifting(IterableDataset):
    """The same first batches every time, then others."""

    def __init__(self, at):
        self.at, self.passes = at, 0

    def __iter__(self):
        self.passes += 1
        for place in range(6):
            drift = self.passes * (place >= self.at)
            yield torch.full((4,), float(place + drift)), place


@pytest.mark.parametrize("at", [0, 1, 5])
def test_streams_that_change_between_passes_are_refused(at):
    loader = DataLoader(Drifting(at), batch_size=2)
    with pytest.raises(ArgumentError, match="augmentation"):
        found = source(loader, memory=50)
        for _ in range(2):
            list(found.batches())


def test_streams_of_changing_length_are_refused():
    class Shrinking:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(BATCHES if self.passes < 5 else BATCHES[:2])

    found = source(Shrinking(), memory=50)
    list(found.batches())
    with pytest.raises(ArgumentError, match="augmentation"):
        list(found.batches())


def test_random_transforms_are_seen_in_data_sets_of_any_size():
    class Noisy(Rows):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.randn(4) * (index == self.count - 1), y

    for count in (1, 2, 3, 7):
        with pytest.raises(ArgumentError, match="augmentation"):
            source(Noisy(count))


def test_a_loader_that_draws_its_samples_is_read_once_as_it_comes():
    sampler = WeightedRandomSampler(torch.ones(N).tolist(), 20)
    found = source(DataLoader(Rows(), batch_size=4, sampler=sampler))
    assert len(inputs_of(found)) == 20
    assert torch.equal(inputs_of(found), inputs_of(found))


def test_the_generator_of_a_loader_is_left_as_it_was():
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    sampler = WeightedRandomSampler(torch.ones(N).tolist(), 20, generator=generator)
    loader = DataLoader(Rows(), batch_size=4, sampler=sampler, generator=generator)
    found = source(loader, memory=50)
    next(iter(found.batches()))
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_read_the_same(workers):
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=workers, drop_last=True)
    assert torch.equal(inputs_of(source(loader)), X)


@pytest.mark.parametrize("memory", [1e9, 50])
@pytest.mark.parametrize("count", [1, 4, 7, N, 50])
def test_some_samples_are_real_and_spread(memory, count):
    taken = min(count, N)
    for data in (Rows(), DataLoader(Rows(), batch_size=3, shuffle=True), (X, Y), list(BATCHES)):
        found = source(data, memory=memory)
        inputs, targets = found.some(count)
        assert torch.equal(inputs, X[targets]) and len(targets.unique()) == taken
        parts = torch.arange(taken + 1) * N // taken
        assert bool(((targets >= parts[:-1]) & (targets < parts[1:])).all())
        assert torch.equal(found.some(count)[0], inputs)
    seeds = {tuple(found.some(4, seed)[1].tolist()) for seed in range(20)}
    assert len(seeds) > 5


def test_some_samples_are_read_by_index_alone():
    rows = Rows(10_000)
    found = source(rows, memory=50)
    rows.read.clear()
    found.some(5)
    assert len(rows.read) == 5
    assert min(rows.read) < 2000 and max(rows.read) >= 8000


def test_some_samples_of_a_stream_are_the_first():
    found = source(DataLoader(Stream(), batch_size=4), memory=50)
    assert torch.equal(found.some(6)[0], X[:6])


def test_some_samples_of_ragged_batches_are_of_one_shape():
    ragged = [(torch.zeros(2, 3), Y[:2]), (torch.zeros(9, 5), Y[:9])]
    inputs, targets = source(ragged).some(6)
    assert inputs.shape[1] == 5 and len(inputs) == len(targets) >= 4


def test_all_forms_give_the_same_hessian(close):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, N))
    expected = None
    for form in ("pair", "list of tuples", "generator", "shuffling drop_last", "starting anew"):
        found = Hessian(model, nn.CrossEntropyLoss(), FORMS[form][0]())
        found = found @ torch.ones(found.shape[0])
        expected = found if expected is None else expected
        close(found, expected, 1e-5)
