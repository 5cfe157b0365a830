"""Uploaded data matrices: parsing, validation, and slope estimation."""

from __future__ import annotations

import base64
import binascii
import io

import numpy as np
from dash import dcc, html

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons import Slope, slope

MAX_BYTES = 20_000_000
MAX_ENTRIES = 2_500_000
_DATASETS = {"mnist5k": "MNIST, 5,000 digits", "digits": "8×8 digits"}


def upload_panel() -> html.Div:
    """Return the upload panel that places a data set on the ribbons' diagram by its slope."""
    return html.Div(
        [
            html.Span("Place data on the diagram:", className="panel-label"),
            dcc.Dropdown(
                id="ribbons-dataset",
                options=[{"label": v, "value": k} for k, v in _DATASETS.items()],
                placeholder="a data set",
                className="dataset",
                clearable=True,
                searchable=False,
            ),
            dcc.Upload(
                html.Button("Upload a matrix (.npy, .csv)", type="button"),
                id="ribbons-upload",
                max_size=-1,
            ),
            html.Div(id="ribbons-upload-message", role="status", className="message"),
        ],
        className="panel",
    )


def read_matrix(contents: str, name: str) -> np.ndarray:
    """Return an uploaded matrix (samples × features).

    Args:
        contents: The file as a data URI.
        name: File name; its extension sets the format.

    Raises:
        ArgumentError: It is too large, not a matrix of finite numbers, or of another format.
    """
    try:
        content = base64.b64decode(contents.partition(",")[2], validate=True)
    except binascii.Error:
        raise ArgumentError("file", name, "the upload is damaged", "Upload it again.") from None
    if len(content) > MAX_BYTES:
        reason = f"{len(content) / 1e6:.0f} MB exceeds the limit of {MAX_BYTES / 1e6:.0f} MB"
        raise ArgumentError("file", name, reason, "Upload fewer samples.")
    try:
        if name.endswith(".npy"):
            matrix = np.load(io.BytesIO(content), allow_pickle=False)
        elif name.endswith((".csv", ".txt")):
            matrix = np.loadtxt(io.StringIO(content.decode()), delimiter=",", ndmin=2)
        else:
            raise ArgumentError("file", name, "unknown file format", "Give a .npy or .csv file.")
    except ArgumentError:
        raise
    except (ValueError, UnicodeDecodeError, EOFError, OSError, MemoryError) as error:
        raise ArgumentError(
            "file", name, f"it is not a matrix of numbers ({str(error)[:100]})", "Check the file."
        ) from None
    if matrix.ndim != 2 or min(matrix.shape) < 3:
        remedy = "Give a matrix of at least 3 samples × 3 features."
        raise ArgumentError("file", name, f"its shape is {matrix.shape}", remedy)
    if matrix.size > MAX_ENTRIES:
        reason = f"{matrix.size:,} entries exceed the limit of {MAX_ENTRIES:,}"
        raise ArgumentError("file", name, reason, "Upload fewer samples.")
    if not np.issubdtype(matrix.dtype, np.number) or np.iscomplexobj(matrix):
        raise ArgumentError("file", name, f"it holds {matrix.dtype}", "Give real numbers.")
    if not np.isfinite(matrix).all():
        raise ArgumentError(
            "file", name, "some of its entries are NaN or infinite", "Remove those samples."
        )
    return matrix.astype(np.float64)


def matrix_slope(matrix: np.ndarray) -> Slope:
    """Return the slope c of an uploaded data matrix with its standard error."""
    if not (matrix != matrix[0]).any():
        raise ArgumentError("file", matrix, "all samples are identical", "Upload data that varies.")
    singular = np.linalg.svd(matrix - matrix.mean(axis=0), compute_uv=False)
    eigenvalues = singular**2 / len(matrix)
    return slope(eigenvalues[eigenvalues > 1e-12 * eigenvalues[0]])
