"""Records small models of transformers and torch, with and without a planted fault; tests/view/test_view.py runs it.

python -m tests.view.small_models FOLDER {"model": ["module", "attribute", factor], …}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import probe

IDS = torch.arange(24).reshape(2, 12)
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(x + y)


class ResNet(nn.Module):
    """Some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(8) for _ in range(4)))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def qwen2() -> nn.Module:
    """Return a decoder with RMS norms."""
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL, num_key_value_heads=2))


def gpt2() -> nn.Module:
    """Return a decoder with layer norms and learned positions."""
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=4, n_head=4, n_positions=32,
                                     bos_token_id=0, eos_token_id=0)  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    """Return an encoder."""
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, max_position_embeddings=32))


def t5() -> nn.Module:
    """Return an encoder with a decoder."""
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4,
                                   decoder_start_token_id=0)  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "qwen2": qwen2, "gpt2": gpt2, "bert": bert, "t5": t5, "resnet": ResNet,
}  # fmt: skip


def loss_of(name: str, model: nn.Module) -> Any:
    """Return the loss of one batch."""
    if name == "resnet":
        images = torch.randn((4, 3, 8, 8), generator=torch.Generator().manual_seed(1))
        return nn.functional.cross_entropy(model(images), torch.arange(4))
    return model(input_ids=IDS, labels=IDS).loss


def record(name: str, path: Path, fault: tuple[str, str, float] | None = None) -> None:
    """Record one step of training of a model; the fault multiplies an attribute of one of its modules."""
    torch.manual_seed(0)
    model = MODELS[name]()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if fault is not None:
        where, attribute, factor = fault
        part = model.get_submodule(where)
        with torch.no_grad():
            value = getattr(part, attribute)
            setattr(
                part, attribute, nn.Parameter(value * factor) if isinstance(value, nn.Parameter) else value * factor
            )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path):
        loss = loss_of(name, model)
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)


def main(folder: Path, faults: Mapping[str, tuple[str, str, float]]) -> None:
    """Record both runs of each."""
    torch.set_num_threads(1)
    for name, fault in faults.items():
        record(name, folder / f"{name}-a.h5")
        record(name, folder / f"{name}-b.h5", fault)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
