"""Train the same model, written otherwise, and record it: B. It has other names, and queries, keys and values in one weight.

python port.py --weights port.safetensors --out b.h5
torchrun --nproc-per-node 2 port.py --weights port.safetensors --out ranks.h5
"""

from __future__ import annotations

import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import DTYPES, HEADS, IGNORED, LAYERS, LENGTH, VOCABULARY, WIDTH, batch, parser, warmup
from safetensors.torch import load_file
from torch import Tensor, nn

import probe

FAULTS = {
    "data": "another batch",
    "weights": "a norm that was not loaded",
    "gelu": "GELU's tanh form in one layer",
    "loss": "the mean over all tokens, padding too",
    "backward": "a residual without its gradient",
    "decay": "weight decay of norms and biases",
    "warmup": "a warmup that begins one step late",
    "ranks": "gradients that are summed over ranks, not averaged",
    "eps": "an eps that bfloat16 nearly hides",
    "overflow": "rows of the mask that are -inf throughout",
}


class SelfAttention(nn.Module):
    fill = -1e9

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).masked_fill(~seen, self.fill)
        return self.proj((scores.float().softmax(-1).to(x.dtype) @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    approximate = "none"

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))


class Layer(nn.Module):
    cut = False

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.attention, self.feed_forward = SelfAttention(), FeedForward()

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x), seen)
        return (x.detach() if self.cut else x) + self.feed_forward(self.ln_2(x))


class Port(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.ln_f, self.output = nn.LayerNorm(WIDTH, 1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        seen = mask[:, None, None] & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if self.layers[1].attention.fill == -math.inf:
            seen = seen & mask[:, None, :, None]
        x = self.tokens(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x, seen)
        return self.output(self.ln_f(x))


def spoiled(model: Port, fault: str | None) -> Port:
    """Plant a fault of the model."""
    layer = model.layers[1]
    if fault == "weights":
        nn.init.ones_(layer.ln_1.weight)
    elif fault == "gelu":
        layer.feed_forward.approximate = "tanh"
    elif fault == "backward":
        layer.cut = True
    elif fault == "eps":
        layer.ln_1.eps = 1e-2
    elif fault == "overflow":
        layer.attention.fill = -math.inf
    return model


def make() -> Port:
    """Return the port with a fault, for `probe replay --model port:make`."""
    return spoiled(Port(), "gelu")


def main() -> None:
    options = parser("Train the port.")
    options.add_argument("--weights", help="what probe convert has written")
    options.add_argument("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    given = options.parse_args()
    fault = given.fault
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if world > 1:
        dist.init_process_group("gloo")

    torch.manual_seed(0)
    model = Port()
    if given.weights:
        model.load_state_dict(load_file(given.weights))
    spoiled(model, fault).to(DTYPES[given.dtype])
    decays = [p for p in model.parameters() if p.dim() > 1 or fault == "decay"]
    others = [p for p in model.parameters() if p.dim() == 1 and fault != "decay"]
    groups = [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup(step - 1 if fault == "warmup" else step)
    )

    probe.start(model, given.out, task=given.task, parallel={"dp": world} if world > 1 else None)
    for step in range(given.steps):
        now = batch(step + 100 if fault == "data" else step)
        ids, mask, labels = (part.chunk(world)[rank] for part in (now.ids, now.mask, now.labels))
        probe.log("labels", labels)
        logits = model(ids, mask).float()
        count = now.labels.numel() if fault == "loss" else int((now.labels != IGNORED).sum())
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        loss = loss / (count / world)
        loss.backward()
        if world > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= 1 if fault == "ranks" else world
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss, lr=schedule.get_last_lr()[0])
        schedule.step()
        if step < 2 and rank == 0:
            print(f"step {step}  loss {loss.item():.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
