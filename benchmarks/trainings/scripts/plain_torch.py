"""A training loop as many are written: accumulation, clipping, a schedule, evaluation between steps; under torchrun it spreads over ranks."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, WORDS, LENGTH = 16, 32, 8


class Rows(Dataset):
    def __init__(self, count, first=0):
        self.count, self.first = count, first

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        words = torch.randint(0, WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(self.first + index))
        return words[:-1], words[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=1e-5)
        self.up, self.act, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, *, scale):
        return x + scale * self.down(self.act(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words, *, scale=0.5):
        x = self.embed(words)
        for block in self.blocks:
            x = block(x, scale=scale)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = wrapped = Model()
    if ranks > 1:
        wrapped = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.steps)
    loader = DataLoader(Rows(4 * args.steps * args.accumulate, 1000 * rank), batch_size=4)
    held_out = DataLoader(Rows(4, 10**6), batch_size=4)

    losses = []
    for index, (words, labels) in enumerate(loader):
        loss = criterion(wrapped(words, scale=torch.tensor(0.5)).flatten(0, 1), labels.flatten())
        (loss / args.accumulate).backward()
        losses.append(loss.item())
        if (index + 1) % args.accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                for words, labels in held_out:
                    criterion(model(words).flatten(0, 1), labels.flatten())
            model.train()
    np.savez(
        args.out.replace("RANK", str(rank)), losses=losses, **{k: v.numpy() for k, v in model.state_dict().items()}
    )
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
