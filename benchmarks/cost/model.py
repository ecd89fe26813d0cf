"""The training that is recorded: a Qwen2 of transformers with random weights, AdamW, one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

SEED = 7


@dataclass(frozen=True)
class Size:
    """A model and its batch."""

    hidden: int
    intermediate: int
    vocabulary: int
    layers: int
    sequence: int
    batch: int
    heads: int = 8
    kv_heads: int = 4
    dtype: str = "float32"


SIZES = {
    # the only round numbers at which mindstudio-probe 26.2.0 writes the 1,167 MiB and 999 files a step of the design
    "512": Size(hidden=512, intermediate=1376, vocabulary=8000, layers=12, sequence=256, batch=2),
    "128": Size(hidden=128, intermediate=344, vocabulary=8000, layers=12, sequence=64, batch=1),
    "tiny": Size(hidden=32, intermediate=48, vocabulary=64, layers=2, sequence=8, batch=1),
}


class Trainee:
    """A model with its optimizer; two of the same size stay equal bit for bit, step by step."""

    def __init__(self, size: Size) -> None:
        config = Qwen2Config(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.intermediate,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        torch.manual_seed(SEED)
        self.model = Qwen2ForCausalLM(config).train().to(getattr(torch, size.dtype))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(size.vocabulary, (size.batch, size.sequence))

    def step(self) -> torch.Tensor:
        """Forward, backward, optimizer step; return the loss."""
        loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()
