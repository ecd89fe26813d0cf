"""The training that is recorded: a Qwen2 with random weights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import probe
from probe.config import TaskName

HIDDEN, VOCABULARY = 1024, 32_000


@dataclass
class Training:
    """A model, its optimizer and a batch that is used again and again."""

    model: Any
    optimizer: Any
    batch: Any

    def step(self) -> Any:
        """Do one step; return the loss, where it was computed."""
        loss = self.model(input_ids=self.batch, labels=self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def training(
    device: str, layers: int = 12, tokens: int = 512, sequences: int = 4, dtype: torch.dtype = torch.float32,
    hidden: int = HIDDEN,
) -> Training:  # fmt: skip
    """Return a training that is the same each time."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 256), max_position_embeddings=2048,
        tie_word_embeddings=False, use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    with torch.device(
        device if hidden >= HIDDEN else "cpu"
    ):  # the same weights on both; large ones are made where they are
        model = Qwen2ForCausalLM(config).to(dtype)
    batch = torch.randint(VOCABULARY, (sequences, tokens), generator=torch.Generator().manual_seed(1))
    model = model.to(device)
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True), batch.to(device))


def timed(train: Training, steps: int, path: Path | None, task: TaskName = "statistics") -> list[float]:
    """Return the seconds of each step, the end of the device's work included."""
    times = []
    with contextlib.nullcontext() if path is None else probe.capture(train.model, path, task=task):
        for _ in range(steps):
            torch.cuda.synchronize()
            began = time.perf_counter()
            loss = train.step()
            if path is not None:
                probe.step(loss=loss)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    return times


def result_of(train: Training, steps: int, around: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Train inside of a recording, or of none; return the losses and the weights."""
    with around(train.model) as recording:
        losses = []
        for _ in range(steps):
            losses.append(train.step())
            if recording is not None:
                probe.step(loss=losses[-1])
    return [*losses, *(parameter.detach() for parameter in train.model.parameters())]
