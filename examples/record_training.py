"""Record a training loop of your own, with the leading Hessian eigenvalues tracked along the way.

Run it, press Ctrl-C or kill it, run it again: it goes on from its last record.

    python examples/record_training.py [FOLDER]
"""

import sys

import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.papers.training import epoch_batches, mlp
from hyperribbon.recording import Measurement

EPOCHS, BATCH = 3, 100


def main(folder: str = "runs/record_training") -> None:
    data = hr.load_data("mnist5k", limit=1000).flat()
    model = mlp((784, 32, 10), "tanh", seed=0)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    sample = (data.inputs[:200], data.targets[:200])
    tracker = hr.Tracker(3, lambda model: hr.Hessian(model, loss, sample), tol=1e-2)
    recorder = hr.Recorder(
        folder,
        every="0.5ep",
        probe=data.inputs[:200],
        measure=[Measurement("hessian", tracker)],
    )
    start = recorder.attach(model, optimizer)
    steps_an_epoch = len(data.inputs) // BATCH
    for step in range(start, EPOCHS * steps_an_epoch):
        epoch, position = divmod(step, steps_an_epoch)
        order = epoch_batches(len(data.inputs), BATCH, scheme="shuffle", seed=0, epoch=epoch)
        batch = order[position]
        value = loss(model(data.inputs[batch]), data.targets[batch])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        recorder.step(value, epoch=(step + 1) / steps_an_epoch)
    recorder.close()

    print(recorder.trajectory.metrics().to_string(index=False))
    print(recorder.overhead)


if __name__ == "__main__":
    main(*sys.argv[1:2])
