"""Train a small click model with tables of embeddings for two steps, and record it.

python train.py --out a.h5
python train.py --out b.h5 --fault pooling
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe

USERS, ITEMS, HISTORY, WIDTH = 50, 80, 6, 16
BATCH = {
    "user": f"int64[16] < {USERS}",
    "item": f"int64[16] < {ITEMS}",
    "history": f"int64[16,{HISTORY}] < {ITEMS}",
    "mask": f"int64[16,{HISTORY}] mask",
    "dense": "float32[16,4]",
    "clicked": "float32[16] uniform 0..1",
}
FAULTS = {
    "pooling": "the mean of the history, where A has the sum",
    "padding": "a row of the table for padding that learns",
    "hash": "ids that are hashed into fewer rows",
    "cross": "products of features, each with itself too",
    "weight": "positive samples that count twice",
    "lazy": "a sparse optimizer, which leaves rows alone that no sample has",
}


class ClickModel(nn.Module):
    def __init__(self, fault: str | None = None) -> None:
        super().__init__()
        is_sparse, padding = fault == "lazy", None if fault == "padding" else 0
        self.users = nn.Embedding(USERS, WIDTH, sparse=is_sparse)
        self.items = nn.Embedding(ITEMS, WIDTH, padding_idx=padding, sparse=is_sparse)
        self.bottom = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU())
        self.fault, self.pairs = fault, torch.tril_indices(4, 4, 0 if fault == "cross" else -1)
        self.top = nn.Sequential(nn.Linear(WIDTH + 10, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user: Tensor, item: Tensor, history: Tensor, dense: Tensor) -> Tensor:
        if self.fault == "hash":
            item = item % (ITEMS // 2)
        seen = self.items(history)
        pooled = seen.mean(1) if self.fault == "pooling" else seen.sum(1)
        features = torch.stack([self.bottom(dense), self.users(user), self.items(item), pooled], 1)
        products = (features @ features.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(F.pad(torch.cat([features[:, 0], products], -1), (0, 10 - products.shape[1]))).squeeze(-1)


def main() -> None:
    options = argparse.ArgumentParser(description="Train a click model.")
    options.add_argument("--out", required=True, help="the recording to write")
    options.add_argument("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    given = options.parse_args()
    fault = given.fault

    torch.manual_seed(7)
    model = ClickModel(fault)
    with torch.no_grad():
        model.items.weight[0] = 0
    tables = [*model.users.parameters(), *model.items.parameters()]
    others = [each for part in (model.bottom, model.top) for each in part.parameters()]
    of_tables = (torch.optim.SparseAdam if fault == "lazy" else torch.optim.Adam)(tables, 1e-2)
    of_others = torch.optim.Adam(others, 1e-3)
    probe.start(model, given.out, task="tensor")
    for step in range(2):
        batch = probe.make_inputs(BATCH, seed=step, to="torch")
        clicked = (batch["clicked"] > 0.7).float()
        probe.log("clicked", clicked)
        weight = torch.tensor(2.0) if fault == "weight" else None
        history = batch["history"] * batch["mask"]  # 0 is padding
        logits = model(batch["user"], batch["item"], history, batch["dense"])
        loss = F.binary_cross_entropy_with_logits(logits, clicked, pos_weight=weight)
        loss.backward()
        for optimizer in (of_tables, of_others):
            optimizer.step()
            optimizer.zero_grad()
        probe.step(loss=loss)
        print(f"step {step}  loss {loss.item():.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
