import numpy as np
import pytest
import scipy.signal
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator
from hyperribbon.papers.simulation import Scattering, scattering_features
from hyperribbon.papers.simulation.subnetworks.scattering import filter_bank


def pictures(count, height, width, dtype=torch.float64):
    return torch.rand(count, 1, height, width, generator=torch_generator(0), dtype=dtype)


def average_spectrum(averages):
    """The two-dimensional low-pass filter on the frequency grid."""
    height, width = (torch.fft.fft(average).real for average in averages)
    return torch.outer(height, width)


def test_filters_are_those_of_kymatio():
    """Entries printed by kymatio 0.3.0's filter_bank(16, 16, 2, 4), which takes π as 3.1415."""
    wavelets, averages = filter_bank((16, 16), 2, 4)
    places = [(0, 3), (2, 2), (5, 14)]
    first = [0.27306079864501953, 0.49422967433929443, 0.10990718007087708]
    sixth = [-5.248339984831318e-09, 0.33783161640167236, 0.20560644567012787]
    for (j, angle), expected in [((0, 0), first), ((1, 1), sixth)]:
        found = [wavelets[j, angle][place].item() for place in places]
        np.testing.assert_allclose(found, np.array(expected) * 3.1415 / np.pi, rtol=1e-6, atol=1e-8)
    assert average_spectrum(averages)[1, 2].item() == pytest.approx(
        0.37271878 * 3.1415 / np.pi, rel=1e-5
    )


def test_filters_form_a_contraction():
    """Littlewood-Paley: |φ̂|² + ½Σ(|ψ̂(ω)|² + |ψ̂(−ω)|²) ≤ 1, zero mean of ψ, unit mean of φ.

    With three octaves these constants exceed 1 by up to 2% between the octaves.
    """
    for scales, angles, bound in [(2, 4, 1), (2, 8, 1), (3, 8, 1.02)]:
        wavelets, averages = filter_bank((32, 40), scales, angles)
        average = average_spectrum(averages)
        energy = wavelets.square().sum((0, 1))
        mirrored = torch.roll(energy.flip(0, 1), (1, 1), (0, 1))
        total = average**2 + (energy + mirrored) / 2
        assert total.max().item() < bound + 1e-9
        assert wavelets[..., 0, 0].abs().max().item() < 1e-12
        assert average[0, 0].item() == pytest.approx(1)


def test_constants_have_no_first_and_second_order():
    coefficients = Scattering((28, 28))(torch.full((1, 1, 28, 28), 0.7))
    torch.testing.assert_close(coefficients[0, 0, 0], torch.full((7, 7), 0.7))
    assert coefficients[0, 0, 1:].abs().max().item() < 1e-6


def test_energy_is_not_increased():
    """With periodic images the coefficients, 2^2J pixels each, hold at most the image's energy."""
    images = pictures(3, 32, 32)
    images = images - images.mean((2, 3), keepdim=True)
    transform = Scattering((32, 32), padding="circular").double()
    for layers in (1, 2):
        transform.layers = layers
        energy = 16 * transform(images).square().sum((1, 2, 3, 4))
        assert bool((energy < images.square().sum((1, 2, 3))).all())


def test_distance_is_not_increased():
    images = pictures(6, 32, 32)
    features = Scattering((32, 32), padding="circular").double()(images).flatten(1)
    apart = 4 * torch.cdist(features, features)
    assert bool((apart <= torch.cdist(images.flatten(1), images.flatten(1)) + 1e-9).all())


def test_translation_moves_cells_and_leaves_means():
    images = pictures(2, 32, 32)
    transform = Scattering((32, 32), padding="circular").double()
    original = transform(images)
    by_a_cell = transform(images.roll((4, -8), (2, 3)))
    torch.testing.assert_close(by_a_cell, original.roll((1, -2), (3, 4)), rtol=1e-5, atol=1e-7)
    by_a_pixel = transform(images.roll((1, 0), (2, 3)))
    change = (by_a_pixel - original).norm() / original.norm()
    raw = (images.roll((1, 0), (2, 3)) - images).norm() / images.norm()
    assert change < 0.2 * raw


def test_against_convolution_in_space():
    """The whole transform again with scipy's direct circular convolution."""
    image = pictures(1, 16, 16)[0, 0].numpy()
    wavelets, averages = filter_bank((16, 16), 2, 4)
    average = average_spectrum(averages)

    def convolve(signal, spectrum):
        kernel = np.fft.ifft2(spectrum.numpy())
        whole = scipy.signal.convolve(np.tile(signal, (2, 2)), kernel, method="direct")
        return whole[16:32, 16:32]

    transform = Scattering((16, 16), angles=4, padding="circular").double()
    found = transform(torch.from_numpy(image)[None, None])[0, 0].numpy()
    assert len(transform.paths) == len(found) == 1 + 8 + 16
    for path, coefficients in zip(transform.paths, found, strict=True):
        signal = image
        for j, angle in path:
            signal = np.abs(convolve(signal, wavelets[j, angle]))
        expected = convolve(signal, average).real[::4, ::4]
        np.testing.assert_allclose(coefficients, expected, atol=2e-7)


@pytest.mark.parametrize("shape", [(28, 28), (30, 27), (8, 8)])
def test_reflected_borders_keep_cells_on_the_image(shape):
    image = pictures(1, *shape, dtype=torch.float32)
    coefficients = Scattering(shape, layers=1)(image)
    assert coefficients.shape == (1, 1, 17, -(-shape[0] // 4), -(-shape[1] // 4))
    padded = np.pad(image[0, 0].numpy(), 6, mode="reflect")
    rows = np.arange(-6, 7)
    weights = np.exp(-(rows[:, None] ** 2 + rows**2) / (2 * 1.6**2))
    centre = (weights / weights.sum() * padded[:13, :13]).sum()
    assert coefficients[0, 0, 0, 0, 0].item() == pytest.approx(centre, abs=2e-3)


def test_features_are_flat_and_batched():
    images = pictures(5, 8, 8, dtype=torch.float32)
    features = scattering_features(images, layers=1, batch_size=2)
    torch.testing.assert_close(features, Scattering((8, 8), layers=1)(images).flatten(1))
    assert features.shape == (5, 17 * 4)


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match="scales"):
        Scattering((4, 28), scales=3)
    with pytest.raises(ArgumentError, match="layers"):
        Scattering((28, 28), layers=3)
    with pytest.raises(ArgumentError, match="shape"):
        Scattering((30, 28), padding="circular")
    with pytest.raises(ArgumentError, match="images"):
        Scattering((28, 28))(torch.zeros(1, 1, 8, 8))
