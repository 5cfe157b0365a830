"""A user's script under a type checker: no result of the public API is Any."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from torch import nn
import hyperribbon as hr

model, loss = nn.Linear(4, 3), nn.CrossEntropyLoss()
data = (torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
H = hr.Hessian(model, loss, data)
top = hr.eigsh(H, 2)
found = hr.inspect(model, loss, data)
mask = hr.select(model, fraction=0.5)
run = hr.Trajectory.open("run")
"""
CALLS = """
H @ torch.ones(15); top; top.eigenvalues; top.plot(); top.to_frame(); hr.trace(H); hr.density(H)
hr.diagonal(H); hr.frobenius(H); hr.plan(H, 2); hr.summarize(top); hr.alignment(top, top); found
found.table(); found["hessian.largest"]; found.plot(); found.answers(); mask; run; run.metrics()
run.plot(); hr.compare(model, model, loss, data); hr.compare(model, model).flatter
hr.load_data("digits"); hr.load_data("digits").inputs; hr.train(model, loss, data, epochs=1, lr=0.1)
hr.InPCA(2).fit([]); hr.InPCA(2).plot(); hr.prune(model, mask); hr.overlap_ratio(mask, mask)
hr.variance_flatness([], H); hr.weight_covariance([]); hr.stationary_covariance(H, H, 0.1)
hr.predict_manifold(model, loss, data, steps=3, lr=0.1); hr.Risk(model, loss, data)
hr.Fisher(model, data[0]); hr.NTK(model, data[0]); hr.layer_criticality(model, model, lambda s: 1.0)
hr.find_ticket(model, lambda m: None, lambda s: 1.0); hr.batch_sharpness(model, loss, data)
hr.GGN(model, loss, data); hr.GradientCovariance(model, loss, data); hr.Jacobian(model, data[0])
H.to_dense(); H.layers(); H.trace(); H.diagonal(); H.shape; H.cost(); hr.layer_curvature(H)
hr.predict_sharpness(model, loss, data, optimizer=0.1); hr.compare_with_theory(model, loss, data)
hr.sweep(lambda p: 1, {"a": [1]}); hr.prunable(model, loss, data).fraction; hr.shrink(model, mask)
hr.bhattacharyya(data[0]); hr.bhattacharyya(data[0], report=True); hr.Trajectories([run])
hr.explore("runs"); hr.experiments.run("ribbons/fig4"); found.report("a"); found.statistics
top.bounds; top.residuals; top.converged; top.eigenvectors; hr.trace(H).value; hr.density(H).values
run.weights(0); run.metric("loss"); run.seconds; hr.Recorder("a").attach(model)
hr.Recorder("a").trajectory; hr.InPCA(2).embedding_; hr.InPCA(2).eigenvalues_
hr.InPCA(2).fit_transform([]); hr.training.mlp((2, 3))
"""


@pytest.mark.slow
def test_no_public_result_is_any(tmp_path):
    calls = [call.strip() for line in CALLS.split("\n") for call in line.split(";") if call.strip()]
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT + "\n".join(f"reveal_type({call})" for call in calls) + "\nhr.nosuch\n"
    )
    checker = shutil.which("pyright") or f"{sys.prefix}/bin/pyright"
    command = [checker, "--pythonpath", sys.executable, str(script)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
    kinds = re.findall(r'information: Type of ".*" is "(.*)"', text)
    assert len(kinds) == len(calls), text
    kinds = [re.sub(r"ndarray\[.*?\]\]", "ndarray", kind) for kind in kinds]  # of any shape
    assert not [kind for kind in kinds if re.search(r"\b(Any|Unknown)\b", kind)]
    (error,) = re.findall(r"error: .*", text)
    assert "nosuch" in error
