"""`load_data`: one call for every data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_choice,
    check_positive_int,
    validate,
)
from hyperribbon.core.data.sounds import list_recordings, spectrograms
from hyperribbon.core.data.sources import BUNDLED, SOURCES, default_folder, hold_out
from hyperribbon.core.data.synthetic import sloppy_inputs, teacher_student, wishart_inputs
from hyperribbon.core.data.text import embed_sequences, read_sequences
from hyperribbon.core.data.whitening import whiten as whiten_matrix
from hyperribbon.core.generators import numpy_generator

_SYNTHETIC = ("teacher_student", "sloppy", "wishart")
_FILES = ("sounds", "text")
DATASETS = (*SOURCES, *_FILES, *_SYNTHETIC)
_SYNTHETIC_SIZES = {"train": 1000, "test": 200, "all": 1200}


class LabelledData(NamedTuple):
    """Inputs and targets, accepted as data by operators and training.

    Attributes:
        inputs: (n, ...) float32.
        targets: (n,) int64 class labels, or (n, outputs) floating targets.
    """

    inputs: torch.Tensor
    targets: torch.Tensor

    @property
    def classes(self) -> int:
        """Number of classes of a loaded data set's labels; number of outputs otherwise."""
        if self.targets.is_floating_point():
            return self.targets.shape[1]
        return int(self.targets.max()) + 1

    def flat(self) -> LabelledData:
        """Return a loaded data set with each input as one row, (n, d)."""
        return LabelledData(self.inputs.flatten(1), self.targets)


@validate(
    folder=checks.path,
    slope=checks.zero_or_more,
    dimensions=checks.count,
    noise=checks.zero_or_more,
    seconds=checks.positive,
    tokens=checks.count,
)
def load_data(
    name: str = "mnist5k",
    split: str = "train",
    *,
    limit: int | None = None,
    proportions: Sequence[float] | None = None,
    whiten: bool = False,
    seed: int = 0,
    folder: str | Path | None = None,
    slope: float | None = None,
    dimensions: int | None = None,
    noise: float | None = None,
    spectrogram: str | None = None,
    seconds: float | None = None,
    tokens: int | None = None,
) -> LabelledData:
    """Load a data set by its name: inputs and targets of a split.

    "mnist5k" without the extra [demo] and "text" without [text] raise a MissingExtraError.

    Args:
        name: "mnist5k" (bundled with the extra [demo]) or "digits" (bundled with scikit-learn);
            "mnist", "fashion_mnist" or "cifar10" from `folder`, from the folder named by the
            environment variable HYPERRIBBON_DATA, or else from OpenML; "sounds" from a folder of
            WAV files with one folder per class, as spectrograms; "text" from a text file, as the
            last hidden layer of a transformer encoder (extra [text]); "teacher_student",
            "sloppy" (eigenvalues falling as exp(−c i)) or "wishart" (Gaussian), made on the spot.
        split: "train", "test" or "all". mnist5k, digits and sounds keep a fixed fifth of each class
            for "test" (whole recordings), text its last fifth. load_data("sounds", folder) and
            load_data("text", file) are short for split "all" of that folder.
        limit: Keep this many samples, drawn with `seed`; None keeps all, in their order.
        proportions: Share of each class among the `limit` samples, drawn with `seed`. Class c gets
            ⌊share·limit⌋ samples, and what rounding leaves over goes to class 0.
        whiten: Replace the inputs by white ones, (n, rank): see `core.data.whiten`.
        seed: Seed of the sub-sample, and of synthetic data.
        folder: Where to read data sets that are not bundled from: torchvision's layout for images,
            `sounds/` or one folder per class for sounds, a .txt file or `text/` for text.
        slope: Decay c of "sloppy" inputs; by default 0.2.
        dimensions: Input dimension of synthetic sets; by default 50.
        noise: Standard deviation of the label noise of synthetic sets; by default 0.1.
        spectrogram: Of sounds: "linear" (power, the default) or "log" (decibels).
        seconds: Duration of a segment of sound, each a sample; by default 1.
        tokens: Length of a sequence of text, each a sample; by default 16.

    Returns:
        Inputs and targets. Images are (n, channels, height, width) in [0, 1]. Sounds are
        (n, 1, frequencies, times); their classes are the folders in alphabetical order. Text is
        (n, tokens, width), and its targets are the tokens that follow.

    Raises:
        ArgumentError: Unknown name, missing or damaged files, impossible sizes or proportions.
    """
    check_choice("name", name, DATASETS)
    splits = ("train", "test", "all")
    if name in _FILES and folder is None and split not in splits:
        split, folder = "all", split
    check_choice("split", split, splits)
    if name != "sounds":
        for argument, value in (("spectrogram", spectrogram), ("seconds", seconds)):
            check_absent(argument, value, f'it is of "sounds", and name={name!r}')
    if name != "text":
        check_absent("tokens", tokens, f'it is of "text", and name={name!r}')
    if name != "sloppy":
        check_absent("slope", slope, f'it is of "sloppy" inputs, and name={name!r}')
    if name in _SYNTHETIC or name in BUNDLED:
        check_absent("folder", folder, f"{name!r} is not read from a folder")
    if name not in _SYNTHETIC:
        for argument, value in (("dimensions", dimensions), ("noise", noise)):
            check_absent(argument, value, f"{name!r} is a real data set")
    if name in _SYNTHETIC:
        if proportions is not None:
            raise ArgumentError(
                "proportions", proportions, f"{name!r} has no classes", "Omit proportions."
            )
        slope, noise = 0.2 if slope is None else slope, 0.1 if noise is None else noise
        dimensions = 50 if dimensions is None else dimensions
        inputs, targets = _synthetic(name, split, slope, dimensions, noise, seed)
    elif name in _FILES:
        place = default_folder(name, folder)
        if name == "sounds":
            form = check_choice("spectrogram", spectrogram or "linear", ("linear", "log"))
            files = list_recordings(place)
            kept = hold_out(np.array([label for _, label in files]), split)
            chosen_files = [files[index] for index in kept]
            power, labels = spectrograms(chosen_files, seconds=seconds or 1.0, log=form == "log")
            inputs, targets = torch.from_numpy(power), torch.from_numpy(labels)
        else:
            sequences, following = read_sequences(place, tokens or 16)
            last = len(following) - len(following) // 5
            window = {"train": slice(last), "test": slice(last, None)}.get(split, slice(None))
            inputs, targets = map(torch.from_numpy, (sequences[window], following[window]))
    else:
        images, labels = SOURCES[name](split, None if folder is None else Path(folder))
        inputs = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))
        targets = torch.from_numpy(labels.astype(np.int64))
    chosen = _subsample(targets, limit, proportions, seed)
    if chosen is not None:
        inputs, targets = inputs[chosen], targets[chosen]
    if name == "text":
        inputs = embed_sequences(inputs)
    if whiten:
        white = whiten_matrix(inputs.flatten(1).numpy().T)
        inputs = torch.from_numpy(np.ascontiguousarray(white.inputs.T)).float()
    return LabelledData(inputs, targets)


def _synthetic(
    name: str, split: str, slope: float, dimensions: int, noise: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    samples = _SYNTHETIC_SIZES["all"]
    if name == "teacher_student":
        inputs, targets, _ = teacher_student(samples, dimensions, noise=noise, seed=seed)
    else:
        matrix = (
            sloppy_inputs(samples, dimensions, slope, seed)[0]
            if name == "sloppy"
            else wishart_inputs(samples, dimensions, seed=seed)
        )
        rng = numpy_generator(seed, name, "targets")
        teacher = rng.standard_normal((dimensions, 1)) / np.sqrt(dimensions)
        inputs = torch.from_numpy(matrix)
        targets = torch.from_numpy(matrix @ teacher + noise * rng.standard_normal((samples, 1)))
    train = _SYNTHETIC_SIZES["train"]
    window = {"train": slice(train), "test": slice(train, None), "all": slice(None)}[split]
    return inputs[window].float(), targets[window].float()


def _subsample(
    targets: torch.Tensor, limit: int | None, proportions: Sequence[float] | None, seed: int
) -> torch.Tensor | None:
    if limit is None and proportions is None:
        return None
    total = len(targets)
    limit = total if limit is None else check_positive_int("limit", limit, maximum=total)
    rng = numpy_generator(seed, "sub-sample")
    if proportions is None:
        return torch.from_numpy(np.sort(rng.permutation(total)[:limit]))
    shares = np.asarray(proportions, dtype=float)
    classes = int(targets.max()) + 1
    if shares.shape != (classes,) or (shares < 0).any() or abs(shares.sum() - 1) > 1e-6:
        reason = f"expected {classes} non-negative shares that sum to 1"
        remedy = "Give one share per class."
        raise ArgumentError("proportions", list(proportions), reason, remedy)
    counts = np.floor(shares * limit + 1e-9).astype(int)
    counts[0] += limit - counts.sum()
    chosen: list[np.ndarray] = []
    for label, wanted in enumerate(counts):
        members = np.flatnonzero(targets.numpy() == label)
        if wanted > len(members):
            reason = f"class {label} would need {wanted} samples and has {len(members)}"
            remedy = "Lower limit= or that class's share."
            raise ArgumentError("proportions", list(proportions), reason, remedy)
        chosen.append(rng.permutation(members)[:wanted])
    return torch.from_numpy(np.sort(np.concatenate(chosen)))
