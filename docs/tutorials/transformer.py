# %% [markdown]
# # A transformer: which of two training runs is flatter?
#
# Two training runs of the same small transformer end with nearly the same loss. Is one minimum flatter than
# the other? Which parameters contain the curvature? Flatness is easily confused with the scale of the
# weights, so this page uses a comparison that reports when it is inconclusive.

# %%
import torch
from torch import nn

import hyperribbon as hr


class Reader(nn.Module):
    """Reads twelve symbols and says which of eight occurs most often."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, width)
        self.place = nn.Parameter(torch.zeros(12, width))
        layer = nn.TransformerEncoderLayer(width, 4, 48, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 8)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(symbols) + self.place).mean(1))


draws = torch.Generator().manual_seed(0)
symbols = torch.randint(0, 8, (512, 12), generator=draws)
answers = torch.stack([(symbols == c).sum(1) for c in range(8)], 1).argmax(1)
loss = nn.CrossEntropyLoss()

# %% [markdown]
# ## Two training runs
#
# Both have the same initialisation and data; one uses small batches, the other large ones.

# %%
models = {}
for name, size, epochs in (("small batches", 16, 12), ("large batches", 128, 48)):
    torch.manual_seed(0)
    models[name] = Reader()
    result = hr.train(
        models[name],
        loss,
        (symbols, answers),
        epochs=epochs,
        lr=2e-3,
        batch_size=size,
        optimizer="adam",
        seed=1,
    )
    print(f"{name}: loss {result.history['loss'][-1]:.3f}")

# %% [markdown]
# ## Which one is flatter?
#
# The samples are split into groups, and everything is measured on each group for both networks. Two measures
# must agree: the sharpness itself, and a scale-invariant one. If they do not, neither network is called
# flatter.

# %%
compared = hr.compare(
    *models.values(),
    loss,
    (symbols, answers),
    names=tuple(models),
    samples=128,
    k=1,
    parts=("sharpness", "trace", "predictions"),
)
compared

# %% [markdown]
# ## Where is the curvature?
#
# The trace of the Gauss-Newton matrix is an exact sum over layers, without sampling.

# %%
import matplotlib.pyplot as plt

whole = hr.GGN(models["small batches"], loss, (symbols[:128], answers[:128]))
total = whole.trace()
shares = {name or "place": layer.trace() / total for name, layer in whole.layers().items()}
shares = dict(sorted(shares.items(), key=lambda item: item[1]))

figure, axis = plt.subplots(figsize=(6, 4))
axis.barh(list(shares), list(shares.values()))
axis.set(xlabel="share of the Gauss-Newton trace")
figure.tight_layout()
plt.show()

# %% [markdown]
# A long bar means that a small change of these weights changes the predictions most. To train with larger
# steps, give these parameters a smaller learning rate of their own.
#
# ## The shape of the whole spectrum
#
# Most eigenvalues are near zero; the tail on the right limits the learning rate. The shaded band is the error
# of the estimate.

# %%
hr.density(hr.Hessian(models["small batches"], loss, (symbols[:64], answers[:64])), probes=4)
