"""Sec. 3.3 of [subnetworks] in a convolutional network on CIFAR-10, with controls that train."""

from __future__ import annotations

from dataclasses import replace

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import tickets

TITLE = "Lottery tickets in a convolutional network"

STATEMENTS = tickets.make_statements(
    "iterative pruning of an all-convolutional network of our own on 10,000 images of CIFAR-10; "
    "the thesis trains no ticket and no convolutional network",
    "images of CIFAR-10, and a share of the weights at which the controls train above chance",
)

Config, Result = tickets.Config, tickets.Result
PRESETS = kit.presets(
    Config(network="convolutional", epochs=5, lr=0.05, levels=3),
    smoke=Config(network="convolutional", limit=200, epochs=2, lr=0.05, levels=2, seeds=1),
    paper=Config(network="convolutional", epochs=30, lr=0.05, levels=10, fraction=0.4, seeds=5),
)
PRESETS_WITH_DATA = {
    name: config if name == "smoke" else replace(config, data="cifar10")
    for name, config in PRESETS.items()
}
compute, plot, measure = tickets.compute, tickets.plot, tickets.measure
