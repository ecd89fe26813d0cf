"""What both programs are given, and how they are told what to do."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

import probe

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, IGNORED = 96, 16, 32, 4, 3, -100
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BATCH = {"ids": f"int64[4,{LENGTH}] < {VOCABULARY}", "mask": f"bool[4,{LENGTH}] mask"}


@dataclass(frozen=True)
class Batch:
    ids: Tensor
    mask: Tensor
    labels: Tensor
    """the ids that follow; IGNORED at padding and at the end"""


def batch(step: int) -> Batch:
    """Return the batch of a step, the same in every program."""
    made = probe.make_inputs(BATCH, seed=step, to="torch")
    ids, mask = made["ids"], made["mask"]
    labels = torch.full_like(ids, IGNORED)
    labels[:, :-1] = torch.where(mask[:, 1:], ids[:, 1:], IGNORED)
    return Batch(ids, mask, labels)


def warmup(step: int, *, steps: int = 10) -> float:
    """Return by what the learning rate is multiplied at a step."""
    return min(1.0, (step + 1) / steps)


def parser(description: str) -> argparse.ArgumentParser:
    """Return the options that both programs have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--out", required=True, help="the recording to write")
    made.add_argument("--steps", type=int, default=2)
    made.add_argument("--task", default="tensor", choices=("statistics", "tensor", "norms", "structure"))
    made.add_argument("--dtype", default="float32", choices=DTYPES)
    return made
