import gzip

import numpy as np
import pytest
import torch

from hyperribbon.core import ArgumentError
from hyperribbon.core.data import load_data, sloppy_inputs, teacher_student, whiten, wishart_inputs
from hyperribbon.core.data.sources import read_cifar, read_idx


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist_folder(tmp_path):
    rng = np.random.default_rng(0)
    place = tmp_path / "MNIST" / "raw"
    place.mkdir(parents=True)
    for prefix, n in (("train", 30), ("t10k", 10)):
        images = idx_bytes(rng.integers(0, 256, (n, 28, 28)))
        labels = idx_bytes(np.arange(n) % 10)
        (place / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (place / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)
    return tmp_path


def test_bundled_sets_have_the_stated_sizes():
    train, test, everything = (load_data("mnist5k", s) for s in ("train", "test", "all"))
    assert train.inputs.shape == (4000, 1, 28, 28)
    assert test.inputs.shape == (1000, 1, 28, 28)
    assert len(everything.inputs) == 5000
    assert everything.classes == 10
    assert torch.equal(test.targets.bincount(), torch.full((10,), 100))
    assert everything.inputs.min() >= 0 and everything.inputs.max() == 1
    assert everything.flat().inputs.shape == (5000, 784)
    overlap = set(map(bytes, train.inputs.numpy())) & set(map(bytes, test.inputs.numpy()))
    assert len(overlap) == 0


def test_digits_come_with_scikit_learn():
    digits = load_data("digits", "all")
    assert digits.inputs.shape == (1797, 1, 8, 8)
    assert digits.inputs.max() == 1


def test_idx_files_are_read_plain_and_compressed(mnist_folder):
    train = load_data("mnist", folder=mnist_folder)
    assert train.inputs.shape == (30, 1, 28, 28)
    assert train.targets.tolist() == [i % 10 for i in range(30)]
    raw = read_idx(mnist_folder / "MNIST/raw/train-images-idx3-ubyte.gz")
    np.testing.assert_allclose(train.inputs[:, 0].numpy(), raw / 255.0, rtol=1e-6)
    assert len(load_data("mnist", "all", folder=mnist_folder).inputs) == 40


def test_the_folder_may_come_from_the_environment(mnist_folder, monkeypatch):
    monkeypatch.setenv("HYPERRIBBON_DATA", str(mnist_folder))
    assert len(load_data("mnist", "test").inputs) == 10


def test_cifar_records_are_planes_of_colour(tmp_path):
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    labels = np.array([3, 1, 0, 9], dtype=np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(4, -1)], axis=1).tobytes()
    (place / "data_batch_1.bin").write_bytes(records)
    (place / "test_batch.bin.gz").write_bytes(gzip.compress(records))
    data = load_data("cifar10", folder=tmp_path)
    np.testing.assert_allclose(data.inputs.numpy(), pixels / 255.0, rtol=1e-6)
    assert data.targets.tolist() == [3, 1, 0, 9]
    assert len(load_data("cifar10", "all", folder=tmp_path).inputs) == 8
    bad = bytearray(records)
    bad[0] = 10
    (place / "data_batch_1.bin").write_bytes(bytes(bad))
    with pytest.raises(ArgumentError, match="label 10"):
        load_data("cifar10", folder=tmp_path)
    (place / "data_batch_1.bin").write_bytes(records[:-5])
    with pytest.raises(ArgumentError, match="whole number"):
        read_cifar(place / "data_batch_1.bin")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b[:-10], "bytes where its header says"),
        (lambda b: b[:6], "header is cut off"),
        (lambda b: b"\1" + b[1:], "does not start with an IDX header"),
        (lambda b: b"", "does not start with an IDX header"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, damage, words):
    path = tmp_path / "images"
    path.write_bytes(damage(idx_bytes(np.zeros((5, 4, 4)))))
    with pytest.raises(ArgumentError, match=words) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_truncated_archive_is_named(mnist_folder):
    path = mnist_folder / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ArgumentError, match="cannot be decompressed"):
        load_data("mnist", folder=mnist_folder)


def test_images_and_labels_must_belong_together(mnist_folder):
    (mnist_folder / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(29)))
    with pytest.raises(ArgumentError, match="must match"):
        load_data("mnist", folder=mnist_folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "mnits"}, "name='mnits'"),
        ({"split": "validation"}, "split='validation'"),
        ({"name": "mnist", "folder": "/nowhere"}, "folder does not exist"),
        ({"limit": 0}, "limit=0"),
        ({"limit": 10**6}, "at most 4000"),
        ({"proportions": [0.5, 0.5]}, "10 non-negative shares"),
        ({"proportions": [0.5] * 10}, "sum to 1"),
        ({"proportions": [1.0] + [0.0] * 9}, "class 0 would need 4000"),
        ({"name": "sloppy", "proportions": [1.0]}, "no classes"),
    ],
)
def test_bad_arguments_are_explained(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        load_data(**arguments)


def test_an_empty_folder_says_what_belongs_there(tmp_path):
    with pytest.raises(ArgumentError, match="torchvision's layout"):
        load_data("fashion_mnist", folder=tmp_path)


def test_proportions_follow_the_stated_rule():
    alpha = 0.37
    shares = [alpha] + [(1 - alpha) / 9] * 9
    data = load_data("mnist5k", "all", limit=900, proportions=shares)
    others = int((1 - alpha) * 900 / 9)
    assert data.targets.bincount().tolist() == [900 - 9 * others] + [others] * 9


def test_sub_samples_repeat_with_the_seed():
    first, again = (load_data("digits", limit=50, seed=4).targets for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, load_data("digits", limit=50, seed=5).targets)


def test_whitening_finds_the_rank_of_the_digits():
    images = load_data("mnist5k", "all").flat().inputs.numpy()
    white = whiten(images.T)
    assert (white.rank, white.dropped) == (653, 131)
    covariance = white.inputs @ white.inputs.T / 5000
    np.testing.assert_allclose(covariance, np.eye(653), atol=1e-12)
    projected = white.directions.T @ images.T.astype(float) / white.scales[:, None]
    np.testing.assert_allclose(projected, white.inputs, atol=1e-6)
    assert load_data("mnist5k", "all", whiten=True).inputs.shape == (5000, 653)


@pytest.mark.parametrize("bad", [np.zeros((3, 4)), np.full((2, 2), np.nan), np.zeros(3)])
def test_inputs_that_cannot_be_whitened_are_refused(bad):
    with pytest.raises(ArgumentError, match="inputs"):
        whiten(bad)


def test_sloppy_inputs_have_the_eigenvalues_asked_for():
    inputs, eigenvalues = sloppy_inputs(40, 20, 0.3, seed=1)
    found = np.sort(np.linalg.eigvalsh(inputs.T @ inputs / 40))[::-1]
    np.testing.assert_allclose(found, eigenvalues, rtol=1e-10)
    np.testing.assert_allclose(eigenvalues, np.exp(-0.3 * np.arange(20)))


def test_wishart_inputs_have_the_covariance_asked_for():
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    inputs = wishart_inputs(200_000, 2, covariance)
    # Four standard errors of a sample covariance: √((σii σjj + σij²)/n).
    error = 4 * np.sqrt((np.outer([2, 1], [2, 1]) + covariance**2) / 200_000)
    assert (np.abs(inputs.T @ inputs / 200_000 - covariance) < error).all()
    with pytest.raises(ArgumentError, match="negative eigenvalue"):
        wishart_inputs(10, 2, np.array([[1.0, 2.0], [2.0, 1.0]]))


def test_a_teacher_without_noise_is_recovered():
    inputs, targets, teacher = teacher_student(50, 8, outputs=2, noise=0.0)
    solved = torch.linalg.lstsq(inputs, targets).solution.T
    torch.testing.assert_close(solved, teacher, rtol=1e-10, atol=1e-10)
