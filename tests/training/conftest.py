import pytest
import torch

from hyperribbon.core.generators import torch_generator


@pytest.fixture
def images():
    """A small classification task: (inputs (90, 1, 8, 8), labels in 0..2)."""
    generator = torch_generator(0, "images")
    labels = torch.randint(3, (90,), generator=generator)
    patterns = torch.rand(3, 1, 8, 8, generator=generator)
    return patterns[labels] + 0.3 * torch.randn(90, 1, 8, 8, generator=generator), labels
