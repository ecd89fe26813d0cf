"""`python -m benchmarks.kill --runs 500 --torch 30`: trainings that are killed while they are recorded.

Each is a forked process that gets SIGKILL at a random moment. What its file then says of the steps that stand in
``/steps`` has to be, bit for bit, what the same training wrote that was left alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

import probe
from probe.testing import sample
from tests.store.killing import STEPS, kill, train_numpy


def train_torch(path: Path, between: Callable[[int], None] = lambda step: None) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    probe.start(net, path, task="tensor")
    for step in range(STEPS):
        loss = net(torch.from_numpy(sample((8, 20, 32), step))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        between(step)
        optimizer.step()
        probe.step(loss=loss)


@click.command()
@click.option("--runs", default=500, show_default=True, help="Killed recordings of the numpy adapter.")
@click.option("--torch", "torch_runs", default=30, show_default=True, help="Killed recordings of PyTorch.")
@click.option("--seed", default=0, show_default=True)
def main(runs: int, torch_runs: int, seed: int) -> None:
    """Kill trainings, and check what they leave."""
    for name, train, count in (("numpy", train_numpy, runs), ("torch", train_torch, torch_runs)):
        if not count:
            continue
        if name == "torch":
            import torch  # noqa: F401  once, and not in every child
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {kill(train, count, Path(folder), seed)} ", flush=True)


if __name__ == "__main__":
    main()
