"""Hand-written ports of GPT-NeoX and OPT as a new user writes them, and transformers' own: other names, other nesting."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, OPTConfig, OPTForCausalLM

import probe

HIDDEN, HEADS, LAYERS, WORDS, INNER = 48, 4, 4, 101, 160
FAULTY = 2
"""layer in which a fault is planted"""


def neox(seed: int) -> nn.Module:
    """Return GPT-NeoX of transformers: q, k and v interleaved per head in one layer."""
    torch.manual_seed(seed)
    return GPTNeoXForCausalLM(GPTNeoXConfig(
        vocab_size=WORDS, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=INNER, max_position_embeddings=64, use_cache=False,
    ))  # fmt: skip


def opt(seed: int) -> nn.Module:
    """Return OPT of transformers: q, k and v in a layer each, the MLP in batches that are flattened."""
    torch.manual_seed(seed)
    return OPTForCausalLM(OPTConfig(
        vocab_size=WORDS, hidden_size=HIDDEN, word_embed_proj_dim=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, ffn_dim=INNER, max_position_embeddings=64, dropout=0.0, attention_dropout=0.0,
        use_cache=False, pad_token_id=None,
    ))  # fmt: skip


class Mixer(nn.Module):
    """NeoX's attention with the norm before it; q, k and v apart."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.pre = nn.LayerNorm(HIDDEN, eps=1e-3 if fault == "eps" else 1e-5)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        rotated = HIDDEN // HEADS // 4
        self.register_buffer("freq", 1 / 10000 ** (torch.arange(0, rotated, 2).float() / rotated), persistent=False)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(x.shape[2]).float()[:, None] * self.freq
        angle = torch.cat([angle, angle], -1)
        turned, rest = x[..., : angle.shape[-1]], x[..., angle.shape[-1] :]
        half = angle.shape[-1] // 2
        other = torch.cat([-turned[..., half:], turned[..., :half]], -1)
        return torch.cat([turned * angle.cos() + other * angle.sin(), rest], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        given = self.pre(x)
        q, k, v = (w(given).view(batch, length, HEADS, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        scores = self._turned(q) @ self._turned(k).transpose(-1, -2) / math.sqrt(HIDDEN // HEADS)
        if self.fault != "mask":
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, HIDDEN))


class Feed(nn.Module):
    """The MLP with the norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.LayerNorm(HIDDEN)
        self.net = nn.Sequential(nn.Linear(HIDDEN, INNER), nn.GELU(), nn.Linear(INNER, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.pre(x))


class Cell(nn.Module):
    """One layer: attention and MLP beside each other."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.mixer, self.feed = Mixer(fault), Feed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.mixer(x) + self.feed(x)
        return made if self.fault == "residual" else made + x


class NeoXPort(nn.Module):
    """GPT-NeoX under other names."""

    def __init__(self, source: nn.Module, fault: str = "") -> None:
        super().__init__()
        self.tok = nn.Embedding(WORDS, HIDDEN)
        self.cells = nn.ModuleList(Cell(fault if i == FAULTY else "") for i in range(LAYERS))
        self.tail = nn.ModuleDict({"norm": nn.LayerNorm(HIDDEN), "out": nn.Linear(HIDDEN, WORDS, bias=False)})
        weights = source.state_dict()
        _copy(self.tok, weights, "gpt_neox.embed_in")
        _copy(self.tail["norm"], weights, "gpt_neox.final_layer_norm")
        _copy(self.tail["out"], weights, "lm_head")
        for i, cell in enumerate(self.cells):
            base = f"gpt_neox.layers.{i}."
            for module, name in ((cell.mixer.pre, "input_layernorm"), (cell.feed.pre, "post_attention_layernorm"),
                                 (cell.mixer.wo, "attention.dense"), (cell.feed.net[0], "mlp.dense_h_to_4h"),
                                 (cell.feed.net[2], "mlp.dense_4h_to_h")):  # fmt: skip
                _copy(module, weights, base + name)
            for slot in ("weight", "bias"):
                whole = weights[f"{base}attention.query_key_value.{slot}"]
                apart = whole.view(HEADS, 3, -1, *whole.shape[1:])
                parts = [apart[:, n].reshape(HIDDEN, *whole.shape[1:]) for n in range(3)]
                if fault == "interleave" and i == FAULTY:
                    parts = whole.chunk(3)
                for module, part in zip((cell.mixer.wq, cell.mixer.wk, cell.mixer.wv), parts, strict=True):
                    getattr(module, slot).data.copy_(part)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids)
        for cell in self.cells:
            x = cell(x)
        return self.tail["out"](self.tail["norm"](x))


class Dense(nn.Module):
    """A linear layer whose weights have other names, and lie [in, out]."""

    def __init__(self, wide: int, high: int) -> None:
        super().__init__()
        self.kernel, self.offset = nn.Parameter(torch.zeros(wide, high)), nn.Parameter(torch.zeros(high))

    def fill(self, weights: list[torch.Tensor], biases: list[torch.Tensor], groups: int = 1) -> None:
        """Take over the weights of several linear layers, so many groups of them interleaved."""
        for mine, parts in ((self.kernel, weights), (self.offset, biases)):
            cut = [part.view(groups, -1, *part.shape[1:]) for part in parts]
            whole = torch.cat(cut, 1).reshape(-1, *parts[0].shape[1:])
            mine.data.copy_(whole.T if whole.dim() == 2 else whole)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.kernel + self.offset


class Part(nn.Module):
    """Attention or MLP, with its norm and residual."""

    def __init__(self, is_attention: bool, fault: str) -> None:
        super().__init__()
        self.is_attention, self.fault = is_attention, fault
        self.n = nn.LayerNorm(HIDDEN, eps=1e-3 if fault == "eps" else 1e-5)
        wide = 3 * HIDDEN if is_attention else INNER
        self.inp, self.outp = Dense(HIDDEN, wide), Dense(HIDDEN if is_attention else INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inp(self.n(x))
        if self.is_attention:
            batch, length, _ = x.shape
            q, k, v = h.view(batch, length, HEADS, 3, -1).permute(3, 0, 2, 1, 4)
            h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        else:
            h = F.gelu(h) if self.fault == "gelu" else h.relu()
        return x + self.outp(h)


class OPTPort(nn.Module):
    """OPT under other names: one list of attentions and MLPs, q, k and v interleaved in one layer, own linear layers."""

    def __init__(self, source: nn.Module, fault: str = "") -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, HIDDEN), nn.Embedding(66, HIDDEN)
        self.parts = nn.ModuleList(Part(not i % 2, fault if i == 2 * FAULTY + 1 else "") for i in range(2 * LAYERS))
        self.last = nn.LayerNorm(HIDDEN)
        weights, base = source.state_dict(), "model.decoder."
        _copy(self.words, weights, base + "embed_tokens")
        _copy(self.places, weights, base + "embed_positions")
        _copy(self.last, weights, base + "final_layer_norm")
        for i in range(LAYERS):
            attention, mlp = self.parts[2 * i], self.parts[2 * i + 1]
            layer = f"{base}layers.{i}."
            _copy(attention.n, weights, layer + "self_attn_layer_norm")
            _copy(mlp.n, weights, layer + "final_layer_norm")
            groups = 1 if fault == "interleave" and i == FAULTY else HEADS
            for dense, names, count in (
                (attention.inp, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), groups),
                (attention.outp, ("self_attn.out_proj",), 1), (mlp.inp, ("fc1",), 1), (mlp.outp, ("fc2",), 1),
            ):  # fmt: skip
                found = [[weights[f"{layer}{name}.{slot}"] for name in names] for slot in ("weight", "bias")]
                dense.fill(*found, count)
        if fault == "wider":
            self.parts[2 * FAULTY + 1].inp.kernel.data.mul_(1.1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]) + 2)
        for part in self.parts:
            x = part(x)
        return F.linear(self.last(x), self.words.weight)


def _copy(module: nn.Module, weights: dict[str, torch.Tensor], name: str) -> None:
    for slot, parameter in module.named_parameters():
        parameter.data.copy_(weights[f"{name}.{slot}"])


_LAYER = """
  parts.{attention}.n: model.decoder.layers.{i}.self_attn_layer_norm
  parts.{attention}.inp:
    to: [{p}.q_proj, {p}.k_proj, {p}.v_proj]
    split: {{groups: num_attention_heads}}
  parts.{attention}.outp: {p}.out_proj
  parts.{mlp}.n: model.decoder.layers.{i}.final_layer_norm
  parts.{mlp}.inp: model.decoder.layers.{i}.fc1
  parts.{mlp}.outp: model.decoder.layers.{i}.fc2
"""
_LAYERS_MAP = "".join(
    _LAYER.format(i=i, attention=2 * i, mlp=2 * i + 1, p=f"model.decoder.layers.{i}.self_attn") for i in range(LAYERS)
)
OPT_MAP = f"""
TopLayer:
  words: model.decoder.embed_tokens
  places: model.decoder.embed_positions
  last: model.decoder.final_layer_norm
{_LAYERS_MAP}
Dense:
  params:
    kernel: {{to: weight, transpose: true}}
    offset: bias
"""
"""what says all of it"""


def pair(folder: Path, kind: str, fault: str = "", seed: int = 0, task: str = "statistics", steps: int = 2,
         random_norms: bool = False) -> tuple[Path, Path]:  # fmt: skip
    """Record transformers' model and the port of it, with a fault in layer `FAULTY`; return the two files."""
    found = []
    for name in ("hf", "port"):
        source = (neox if kind == "neox" else opt)(seed)
        if random_norms:
            for module in source.modules():
                if isinstance(module, nn.LayerNorm):
                    nn.init.normal_(module.weight, 1.0, 0.1)
                    nn.init.normal_(module.bias, 0.0, 0.1)
        model = source if name == "hf" else (NeoXPort if kind == "neox" else OPTPort)(source, fault)
        found.append(folder / f"{kind}-{fault}-{seed}-{task}-{name}.h5")
        train(model, found[-1], seed, task, steps)
    return found[0], found[1]


def train(model: nn.Module, path: Path, seed: int, task: str, steps: int) -> None:
    """Record a few steps of training."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    probe.start(model, path, task=task)
    for step in range(steps):
        ids = torch.randint(0, WORDS, (2, 17), generator=torch.Generator().manual_seed(step + 100 * seed))
        made = model(ids[:, :-1])
        loss = F.cross_entropy(getattr(made, "logits", made).reshape(-1, WORDS), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
    probe.stop()
