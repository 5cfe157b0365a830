# %% [markdown]
# # A convolutional network: how sharp is it, and how large can the learning rate be?
#
# You have trained a small image classifier. Is its minimum sharp? Could the learning rate have been
# larger? Which layers matter, and how much of the network does it really use? This page answers these
# questions with one call and then explains the results. It takes about half a minute on a laptop.

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
# ## Train it and monitor the sharpness
#
# The *sharpness* is the largest eigenvalue λ₁ of the Hessian of the loss. Gradient descent with learning
# rate η is stable while λ₁ stays below 2/η. Your own training loop works as well; here we measure every
# two epochs. `hr.eigsh` returns eigenvalues with error bounds and leaves the model unchanged.

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
# Near the dashed line, steps overshoot along the sharpest direction, and training moves to flatter
# regions by itself. Far below it, a larger learning rate would have been stable.
#
# ## One call for the rest
#
# `hr.inspect` keeps within its time budget. The answers come first; click the sections below them to see
# how each number was computed.

# %%
found = hr.inspect(
    model, loss, training, initial=initial, optimizer=rate, batch_size=50, k=10, budget=15
)
found

# %% [markdown]
# ## The top of the spectrum
#
# A few directions contain most of the curvature, about one per class. The table bounds the error of each
# eigenvalue.

# %%
hr.eigsh(hr.Hessian(model, loss, (data.inputs[:300], data.targets[:300])), k=12)

# %% [markdown]
# ## Summary
#
# - Compare the sharpness with 2/η, not with that of another architecture.
# - *Sub-networks* above lists the weights that can be pruned without loss; use
#   `hr.select(model, initial, fraction=0.5)` and `hr.prune` to prune them.
# - To compare two training runs, use `hr.compare(a, b, loss, data)`: see
#   [Compare two networks](../howto/compare.md).
