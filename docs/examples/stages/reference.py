"""Train a small language model and record it: A, the side that is trusted.

python reference.py --out a.h5 --save weights.safetensors
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import DTYPES, HEADS, IGNORED, LAYERS, LENGTH, VOCABULARY, WIDTH, batch, parser, warmup
from safetensors.torch import save_file
from torch import Tensor, nn

import probe


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).masked_fill(~seen, -1e9)
        return self.o_proj((scores.float().softmax(-1).to(x.dtype) @ v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.act, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.attn, self.mlp = Attention(), MLP()

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), seen)
        return x + self.mlp(self.mlp_norm(x))


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH, 1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        seen = mask[:, None, None] & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        x = self.embed(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x, seen)
        return self.head(self.norm(x))


def main() -> None:
    options = parser("Train the reference.")
    options.add_argument("--save", help="write the initial weights here")
    options.add_argument("--noise", type=int, help="record a further run: weights moved by rounding, with this seed")
    given = options.parse_args()

    torch.manual_seed(7)
    model = Reference()
    with torch.no_grad():
        for parameter in model.parameters():  # fresh biases are all 0, norm weights all 1
            parameter += 0.1 * torch.randn_like(parameter)
    if given.save:
        save_file(model.state_dict(), given.save)
    model.to(DTYPES[given.dtype])
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], 1e-3
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)

    how = {} if given.noise is None else {"seed": given.noise}
    with (probe.capture if given.noise is None else probe.noise_run)(model, given.out, task=given.task, **how):
        for step in range(given.steps):
            now = batch(step)
            probe.log("labels", now.labels)
            logits = model(now.ids, now.mask).float()
            loss = F.cross_entropy(logits.flatten(0, 1), now.labels.flatten(), ignore_index=IGNORED)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss, lr=schedule.get_last_lr()[0])
            schedule.step()
            if step < 2:
                print(f"step {step}  loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
