"""Smaller networks have the outputs of the masked ones; what is not understood stays whole."""

import copy
import itertools
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.core.states import load_state, save_state
from hyperribbon.subnetworks import (
    PrunedAttention,
    find_units,
    gradient_saliency,
    rank_units,
)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride, pads=False):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.pad = (outputs - inputs) // 2 if pads and outputs > inputs else 0
        changes = (stride != 1 or inputs != outputs) and not pads
        self.shortcut = nn.Sequential()
        if changes:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.pad:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + self.shortcut(x))


class ResNet20(nn.Module):
    def __init__(self, pads=False):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        sizes = [16] * 4 + [32] * 3 + [64] * 3
        pairs = list(itertools.pairwise(sizes))
        self.layers = nn.Sequential(*(Residual(a, b, 1 + (a != b), pads) for a, b in pairs))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn(self.conv(x))))
        x = F.avg_pool2d(x, x.size()[3])
        return self.fc(x.view(x.size(0), -1))


class Gate(nn.Module):
    """Depthwise convolution, squeeze and excitation, concatenated branches."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.norm = nn.BatchNorm2d(12)
        self.down, self.up = nn.Conv2d(12, 6, 1), nn.Conv2d(6, 12, 1)
        self.left, self.right = nn.Conv2d(12, 5, 1), nn.Conv2d(12, 7, 3, padding=1)
        self.head = nn.Linear(12 * 4, 4)

    def forward(self, x):
        x = F.silu(self.norm(self.depthwise(self.stem(x))))
        x = x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))
        x = torch.cat([self.left(x), F.relu(self.right(x))], 1)
        return self.head(torch.flatten(F.adaptive_max_pool2d(x, 2), 1))


class Encoder(nn.Module):
    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.embed = nn.Embedding(30, width)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)).mean(1))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.size()
        q, k, v = self.mix(self.ln1(x)).split(c, dim=2)
        q = q.view(n, t, 4, c // 4).transpose(1, 2)
        k = k.view(n, t, 4, c // 4).transpose(1, 2)
        v = v.view(n, t, 4, c // 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.proj(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    """Tied embeddings, and a forward pass with a check that cannot be traced."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(30, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 30, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        if tokens.shape[1] > 64:
            raise ValueError("too long")
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class UNet(nn.Module):
    """Skip connections by concatenation, transposed convolutions, interpolation."""

    def __init__(self):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(12, 8, 2, 2), nn.Conv2d(16, 6, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(6, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        y = F.interpolate(F.relu(self.down(F.max_pool2d(x, 2))), scale_factor=1.0)
        return self.head(F.relu(self.last(torch.cat([self.up(y), x], dim=1))).amax((2, 3)))


def chain():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 10, 3),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(10 * 4 * 4, 20),
        nn.BatchNorm1d(20),
        nn.Dropout(0.5),
        nn.Linear(20, 4),
    )


IMAGES, TOKENS = (6, 3, 14, 14), (6, 9)
CASES = {
    "chain": (chain, IMAGES),
    "resnet": (ResNet20, (4, 3, 32, 32)),
    "resnet with padded shortcuts": (lambda: ResNet20(pads=True), (4, 3, 32, 32)),
    "gate": (Gate, IMAGES),
    "u-net": (UNet, IMAGES),
    "encoder": (Encoder, TOKENS),
    "gpt": (GPT, TOKENS),
}


def make(name):
    build, shape = CASES[name]
    torch.manual_seed(0)
    model = build()
    inputs = torch.randint(30, shape) if len(shape) == 2 else torch.randn(shape)
    if len(shape) == 4:
        for _ in range(3):
            model.train()(torch.randn(shape) + 0.5)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_()
    return model.eval(), inputs


def masked(model, mask):
    other = copy.deepcopy(model)
    other.load_state_dict(hr.prune(model, mask))
    return other


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_masked_network(name, scope):
    model, inputs = make(name)
    before = copy.deepcopy(model.state_dict())
    mask = hr.select(model, fraction=0.5, granularity="channel", scope=scope)
    small = hr.shrink(model, mask, inputs=inputs)
    torch.testing.assert_close(small(inputs), masked(model, mask)(inputs), rtol=1e-5, atol=1e-5)
    assert count(small) < 0.8 * count(model)
    assert not torch.allclose(small(inputs), model(inputs), atol=1e-3)
    assert all(torch.equal(before[n], tensor) for n, tensor in model.state_dict().items())
    kept = {(u.name, u.axis): u.labels for u in find_units(small).axes}
    assert kept.keys() == {(u.name, u.axis) for u in find_units(model).axes}


@torch.no_grad()
@pytest.mark.parametrize("of", ["parameters", "file"])
@pytest.mark.parametrize("name", ["resnet", "encoder", "gpt"])
def test_half_of_the_parameters_or_of_the_file(name, of, tmp_path):
    """Of the channels, neurons and heads together; the embedding and the outputs stay."""
    model, inputs = make(name)
    mask = hr.select(model, fraction=0.5, granularity="unit", of=of)
    small = hr.shrink(model, mask, inputs=inputs)
    torch.testing.assert_close(small(inputs), masked(model, mask)(inputs), rtol=1e-5, atol=1e-5)
    sizes = []
    for network, file in ((model, "whole.safetensors"), (small, "small.safetensors")):
        save_state(tmp_path / file, network.state_dict())
        sizes.append((tmp_path / file).stat().st_size)
    if of == "parameters":
        assert 0.45 * count(model) < count(small) <= 0.5 * count(model)
        units = find_units(model)
        left = units.entries_left(dict(model.named_parameters()), units.dead(hr.prune(model, mask)))
        assert sum(left.values()) == count(small)
    else:
        assert 0.45 * sizes[0] < sizes[1] <= 0.5 * sizes[0]
    again = hr.shrink(make(name)[0], load_state(tmp_path / "small.safetensors"))
    torch.testing.assert_close(again.eval()(inputs), small(inputs))


def test_more_parameters_than_the_units_hold_are_refused():
    model, _ = make("encoder")
    with pytest.raises(ArgumentError, match=r"hold .*% of the parameters"):
        hr.select(model, fraction=0.99, granularity="unit", of="parameters")
    with pytest.raises(ArgumentError, match=r"hold .*% of the bytes"):
        hr.select(model, fraction=0.99, granularity="unit", of="file")
    with pytest.raises(ArgumentError, match="single weights"):
        hr.select(model, fraction=0.5, of="parameters")


@torch.no_grad()
def test_heads_are_removed_with_their_projections():
    model, inputs = make("encoder")
    assert len(find_units(model).heads) == 8
    mask = hr.select(model, fraction=0.5, granularity="head")
    small = hr.shrink(model, mask, inputs=inputs)
    attentions = [m for m in small.modules() if isinstance(m, PrunedAttention)]
    assert sum(4 - a.num_heads for a in attentions) == 4
    torch.testing.assert_close(small(inputs), masked(model, mask)(inputs), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [True, False])
def test_pruned_attention_takes_the_arguments_of_attention(batch_first):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    layer.in_proj_bias.normal_()
    model = nn.ModuleDict({"attention": layer})
    mask = hr.select(model, fraction=0.5, granularity="head")
    small = hr.shrink(model, mask)["attention"]
    whole = masked(model, mask)["attention"]
    x, y = torch.randn(5, 7, 16), torch.randn(5, 7, 16)
    padding = torch.zeros((5, 7) if batch_first else (7, 5), dtype=torch.bool)
    padding[:, -2:] = True
    causal = torch.triu(torch.ones(7, 7) if batch_first else torch.ones(5, 5), 1).bool()
    calls = (
        {"need_weights": False},
        {"key_padding_mask": padding, "need_weights": False},
        {"attn_mask": causal, "need_weights": False},
        {"attn_mask": causal.float(), "need_weights": False},
    )
    for options in calls:
        one, other = whole(x, y, y, **options)[0], small(x, y, y, **options)[0]
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
    alone = whole(x[0], y[0], y[0])[0]
    torch.testing.assert_close(small(x[0], y[0], y[0])[0], alone, rtol=1e-5, atol=1e-5)
    assert small(x, y, y)[1].shape == whole(x, y, y)[1].shape


@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet", "encoder"])
def test_half_the_units_make_a_smaller_faster_network_that_loads_back(name, tmp_path, monkeypatch):
    model, inputs = make(name)
    mask = hr.select(model, fraction=0.5, granularity="channel", scope="layer")
    if name == "encoder":
        mask = mask | hr.select(model, fraction=0.5, granularity="head", scope="layer")
    small = hr.shrink(model, mask, inputs=inputs)
    work = []
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    for network in (model, small):
        with FlopCounterMode(display=False) as counter:
            network(inputs)
        work.append(counter.get_total_flops())
    assert work[0] > 1.5 * work[1]
    files = [tmp_path / "whole.safetensors", tmp_path / "small.safetensors"]
    for path, network in zip(files, (model, small), strict=True):
        save_state(path, network.state_dict())
    sizes = [path.stat().st_size for path in files]
    assert sizes[1] <= (0.5 if name == "resnet" else 0.6) * sizes[0]
    loaded = hr.shrink(make(name)[0], load_state(files[1]))
    assert torch.equal(loaded(inputs), small(inputs))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet", "encoder"])
def test_half_the_units_are_half_as_fast_again(name):
    torch.manual_seed(0)
    model = ResNet20().eval() if name == "resnet" else Encoder(256, 8, 4).eval()
    inputs = torch.randn(64, 3, 32, 32) if name == "resnet" else torch.randint(30, (16, 128))
    mask = hr.select(model, fraction=0.5, granularity="channel", scope="layer")
    if name == "encoder":
        mask = mask | hr.select(model, fraction=0.5, granularity="head", scope="layer")
    small = hr.shrink(model, mask, inputs=inputs)
    times = {0: [], 1: []}
    for _ in range(7):
        for place, network in enumerate((model, small)):
            start = time.process_time()
            network(inputs)
            times[place].append(time.process_time() - start)
    assert min(times[0]) > 1.5 * min(times[1])
    assert count(small) <= 0.51 * count(model)


def test_units_of_residual_streams_are_joined_and_padded_ones_stay():
    projected, padded = (find_units(make(name)[0]) for name in list(CASES)[1:3])
    assert len(projected.of_kind("channel")) == 16 + 32 + 64 + 3 * (16 + 32 + 64)
    assert len(padded.of_kind("channel")) == 3 * (16 + 32 + 64)
    assert any("pad" in why or "add" in why for why in padded.whole.values())
    assert "fc" in projected.whole and "outputs" in projected.whole["fc"]


def test_a_forward_pass_that_cannot_be_traced_leaves_only_its_own_layers_whole():
    units = find_units(make("gpt")[0])
    assert len(units.of_kind("channel")) == 2 * 128
    assert any("traced" in why for why in units.whole.values())
    assert not any(axis.labels.any() for axis in units.axes if axis.name == "embed.weight")


@pytest.mark.parametrize(
    "wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_weights_that_are_computed_from_others_stay(wrap):
    model = nn.Sequential(nn.Linear(4, 6), wrap(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 3))
    units = find_units(model)
    assert not units.families and "computed" in units.whole["1"]
    with pytest.raises(ArgumentError, match="computed from other parameters"):
        hr.select(model, fraction=0.5, granularity="channel")


def test_layers_that_stay_are_named_with_the_reason():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.mix = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.mix(self.rnn(x)[0]).view(x.size(0), x.size(1), 3, 2, 4).unbind(2)
            return F.scaled_dot_product_attention(q, k, v)

    whole = find_units(Heads()).whole
    assert "GRU layers are not supported" in whole["rnn"]
    assert "view, whose sizes are fixed in the forward pass" in whole["mix"]


def test_weights_that_the_forward_pass_reads_by_itself_stay():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.second(self.first(x)), self.first.weight.square().sum()

    with pytest.raises(ArgumentError, match="used elsewhere"):
        hr.select(Direct(), fraction=0.5, granularity="channel")


def test_single_weights_remove_units_only_when_nothing_reads_them():
    model, inputs = make("chain")
    mask = hr.select(model, fraction=0.5)
    with pytest.raises(ArgumentError, match="granularity"):
        hr.shrink(model, mask)
    entry = torch.zeros_like(model[10].weight, dtype=torch.bool)
    entry[:, :7] = True
    small = hr.shrink(model, hr.Mask({"10.weight": entry}), inputs=inputs)
    assert small[7].out_features == 13 and small[8].num_features == 13


def test_a_layer_that_lost_all_its_units_keeps_one():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    mask = hr.Mask({"2.weight": torch.ones(2, 4) > 0})
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    small = hr.shrink(model, mask, inputs=inputs)
    assert small[0].weight.shape == (1, 3) and small[2].weight.shape == (2, 1)
    assert torch.equal(small(inputs), model[2].bias.expand(5, 2))


def test_scores_choose_the_units():
    model, inputs = make("chain")
    with torch.no_grad():
        for layer, axis in ((0, 0), (4, 1)):
            model[layer].weight.movedim(axis, 0)[:3] *= 1e-3
        model[0].bias[:3] = 0
        model[1].weight[:3] = 0
        model[1].bias[:3] = 0
    mask = hr.select(model, fraction=3 / 38, granularity="channel")
    assert mask["0.weight"].flatten(1).all(1).nonzero().squeeze(1).tolist() == [0, 1, 2]
    targets = torch.randint(4, (6,))

    def saliency(network):
        return gradient_saliency(network, nn.CrossEntropyLoss(), (inputs, targets))

    for criterion in (saliency, saliency(model), "random"):
        ranking = rank_units(model, criterion=criterion)
        assert ranking.size == 38 and ranking.select(0.5).count > 0
    assert rank_units(model, params="7.*").size == 20
    everything = hr.shrink(model, rank_units(model).select(1.0), inputs=inputs)
    assert everything[0].out_channels == everything[7].out_features == 1


def test_prunable_counts_channels_and_gives_a_network_that_shrinks():
    model, inputs = make("chain")
    targets = model(inputs).argmax(1)
    found = hr.prunable(
        model, nn.CrossEntropyLoss(), (inputs, targets), tolerance=0.3, granularity="channel"
    )
    assert found.unit == "channels" and "channels" in found.summary()
    if found.mask.count:
        model.load_state_dict(found.state)
        hr.shrink(model, found.mask, inputs=inputs)


def test_outputs_that_differ_are_refused():
    """Two calls of one layer that a forward pass hides from the graph."""

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

        def forward(self, x):
            if x.sum() > 1e9:
                return x
            return self.inner(x) + self.inner[0](x).mean(1, keepdim=True)

    torch.manual_seed(0)
    model = Hidden()
    mask = hr.select(model, fraction=0.5, granularity="channel")
    with pytest.raises(ArgumentError, match="differ"):
        hr.shrink(model, mask, inputs=torch.randn(5, 4))


def test_a_frozen_layer_keeps_its_units():
    model, _ = make("chain")
    model[0].requires_grad_(False)
    assert not hr.select(model, fraction=1.0, granularity="channel")["4.weight"][:, :8].all(0).any()
    assert rank_units(model, frozen=True).size == 38


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_transformers_models_lose_hidden_units(name):
    """BERT's attention cannot be traced; the layer around it can."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "gpt2":
        sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends)).eval()
    else:
        sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2}
        more = {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8}
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **more)).eval()
    ids = {"input_ids": torch.randint(0, 11, (3, 6))}
    mask = hr.select(model, fraction=0.5, granularity="channel")
    small = hr.shrink(model, mask, inputs=ids)
    if name == "gpt2":
        assert small.transformer.h[0].mlp.c_fc.nf < 32
    else:
        assert small.bert.encoder.layer[0].output.dense.in_features < 32
    one, other = masked(model, mask)(**ids).logits, small(**ids).logits
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
