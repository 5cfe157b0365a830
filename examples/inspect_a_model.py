"""Inspect a network of your own: train it, measure its geometry, write a page to show.

python examples/inspect_a_model.py [FOLDER]
"""

import sys
from pathlib import Path

import torch
from torch import nn

import hyperribbon as hr


def main(folder: str = "runs/inspect_a_model") -> None:
    data = hr.load_data("mnist5k", limit=1000)
    loss = nn.CrossEntropyLoss()

    # 1. Any module will do. Keep the weights it starts from: they tell which layers had to move.
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 13 * 13, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    # 2. Your own training loop. Keep the optimiser: its rate says how sharp a minimum may be.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(data.inputs, data.targets), batch_size=50, shuffle=True
    )
    for _ in range(4):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()

    # 3. One call. It says first what it will do, and keeps to the seconds it is given.
    found = hr.inspect(model, loss, loader, initial=initial, optimizer=optimizer, k=10, budget=15)
    print(found.summary())

    # 4. Every number by its key, with its error and how it was obtained; and the page.
    sharpness = found["hessian.largest"]
    print(f"\nsharpness {sharpness.text()}: {sharpness.method}, {sharpness.certainty}")
    print("report:", found.report(Path(folder) / "report.html"))


if __name__ == "__main__":
    main(*sys.argv[1:2])
