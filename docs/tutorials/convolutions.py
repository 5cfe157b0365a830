# %% [markdown]
# # A convolutional network: how sharp is it, and how far may a step go?
#
# You have trained a small image classifier. Is the place it found sharp? Could the learning rate have
# been larger? Which layers had to move, and how much of the network does it really use? This page
# answers these with one call and then looks behind it. It takes about half a minute on a laptop.

# %%
import torch
from torch import nn

import hyperribbon as hr

data = hr.load_data("digits", limit=1000)  # 8×8 images that come with scikit-learn
loss = nn.CrossEntropyLoss()

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 4 * 4, 10),
)
initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}

# %% [markdown]
# ## Train it, and keep an eye on the sharpness
#
# The *sharpness* is the largest eigenvalue λ₁ of the Hessian of the loss. Gradient descent with a rate
# η is stable while λ₁ stays below 2/η. Your own training loop would do as well; here we stop every two
# epochs to look. `hr.eigsh` returns eigenvalues with a bound on their error, and does not touch the
# model.

# %%
steps, sharpness = [], []


def look(epoch: int, model: nn.Module) -> None:
    if epoch % 2 == 0:
        probe = (data.inputs[:300], data.targets[:300])
        steps.append(epoch)
        sharpness.append(float(hr.eigsh(hr.Hessian(model, loss, probe), k=1).eigenvalues[0]))


rate = 0.1
training = (data.inputs, data.targets)
result = hr.train(model, loss, training, epochs=12, lr=rate, batch_size=50, on_epoch=look)

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(6, 3))
axis.plot(steps, sharpness, "o-", label="sharpness λ₁")
axis.axhline(2 / rate, color="tab:red", linestyle="--", label="limit 2/η")
axis.set(xlabel="epoch", ylabel="largest eigenvalue", ylim=(0, None))
axis.legend()
plt.show()

# %% [markdown]
# Where the curve comes near the dashed line, steps overshoot along the sharpest direction and the
# network moves on to flatter places by itself; far below it, a larger rate would have been stable.
#
# ## One call for the rest
#
# `hr.inspect` keeps to the seconds it is given. It begins with answers; the parts below them open on a
# click and show how each number was found.

# %%
found = hr.inspect(
    model, loss, training, initial=initial, optimizer=rate, batch_size=50, k=10, budget=15
)
found

# %% [markdown]
# ## The top of the spectrum
#
# A handful of directions carry most of the curvature, about one for each class. The table says how far
# each eigenvalue may be from the true one.

# %%
hr.eigsh(hr.Hessian(model, loss, (data.inputs[:300], data.targets[:300])), k=12)

# %% [markdown]
# ## What to take from it
#
# - Compare the sharpness with 2/η, not with that of another architecture.
# - Weights that can be pruned without loss are listed under *Sub-networks* above; try
#   `hr.select(model, initial, fraction=0.5)` and `hr.prune` to do it.
# - To compare two trainings, use `hr.compare(a, b, loss, data)`: see
#   [Compare two networks](../howto/compare.md).
