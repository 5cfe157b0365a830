"""Watch the sharpness along the training: larger steps end in flatter places.

Gradient descent with step η is stable on a quadratic while its curvature is below 2/η. Three rates
from the same start, the leading Hessian eigenvalue tracked from its last eigenvector: few products
a record.

    python examples/step_and_sharpness.py [FOLDER]
"""

import sys
from pathlib import Path

import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.papers.training import mlp
from hyperribbon.recording import Measurement

RATES = (0.3, 0.6, 1.2)
STEPS, EVERY = 600, 30


def descend(folder: Path, rate: float, data: tuple[torch.Tensor, torch.Tensor]) -> hr.Trajectory:
    inputs, targets = data
    model, loss = mlp((64, 32, 10), "tanh", seed=0), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    sharpness = hr.Tracker(1, lambda model: hr.Hessian(model, loss, data), tol=1e-2)
    measure = [Measurement("hessian", sharpness)]
    recorder = hr.Recorder(folder, every=f"{EVERY}it", weights=False, measure=measure, resume=False)
    for _ in range(recorder.attach(model, optimizer), STEPS):
        value = loss(model(inputs), targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        recorder.step(value)
    recorder.close()
    return recorder.trajectory


def main(folder: str = "runs/step_and_sharpness") -> None:
    data = hr.load_data("digits", limit=300).flat()
    for rate in RATES:
        trajectory = descend(Path(folder) / f"rate-{rate}", rate, data)
        largest = trajectory.metric("hessian.eigenvalues")[:, 0]
        products = trajectory.metric("hessian.products")
        print(
            f"η = {rate}: sharpness {largest[0]:.2f} at the start, {largest[-5:].mean():.2f} "
            f"at the end; 2/η = {2 / rate:.2f}; {products.mean():.0f} products a record"
        )


if __name__ == "__main__":
    main(*sys.argv[1:2])
