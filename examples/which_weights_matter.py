"""Find out which weights carry the result: layers put back, weights pruned, weights put back.

python examples/which_weights_matter.py
"""

from torch import nn

import hyperribbon as hr
from hyperribbon.papers.training import mlp
from hyperribbon.subnetworks import metric_of, rank


def main() -> None:
    data, test = hr.load_data("mnist5k", limit=2000), hr.load_data("mnist5k", "test")
    model = mlp((784, 64, 64, 10), seed=0)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hr.train(model, nn.CrossEntropyLoss(), data, epochs=5, lr=0.1, momentum=0.9, batch_size=50)
    final = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    metric = metric_of(model, test)

    # Layer by layer: what happens when one layer alone returns to its start?
    print(hr.layer_criticality(final, initial, metric).to_frame().to_string(index=False))

    # Weight by weight: prune the smallest, or put the least changed back to their start.
    smallest = rank(final, initial, criterion="magnitude")
    calmest = rank(final, initial, criterion="change")
    print("\nshare   pruned   put back")
    for share in (0.0, 0.5, 0.8, 0.9, 0.95):
        pruned = metric(hr.prune(final, smallest.select(share))).mean()
        returned = metric(hr.reinitialize(final, initial, calmest.select(share))).mean()
        print(f"{share:5.0%}   {float(pruned):.3f}    {float(returned):.3f}")

    # Are the largest weights those that moved most?
    tenth = {"fraction": 0.1, "order": "largest"}
    large = hr.select(final, initial, criterion="magnitude", **tenth)
    moved = hr.select(final, initial, criterion="change", **tenth)
    overlap = hr.overlap_ratio(large, moved)
    print(f"\noverlap of the two tenths {overlap.ratio:.2f}, by chance {overlap.expected:.2f}")


if __name__ == "__main__":
    main()
