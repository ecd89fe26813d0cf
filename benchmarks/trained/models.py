"""Small language models that are changed until they have what trained ones have, or that are trained."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import probe

VOCABULARY, WIDTH, LAYERS, LENGTH, FIRST = 512, 128, 8, 24, 1
"""the last is the token that each sequence begins with"""
_CHANNELS = 2
Change = Callable[[nn.Module, torch.Generator], None]


def _llama(kind: type[nn.Module], config: type, attention: str, layers: int) -> nn.Module:
    return kind(config(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation=attention,
    ))  # fmt: skip


def _gpt2(attention: str, layers: int) -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=layers, n_head=4, n_positions=64, attn_implementation=attention,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    ))  # fmt: skip


MAKE: dict[str, Callable[[str, int], nn.Module]] = {
    "llama": lambda attention, layers: _llama(LlamaForCausalLM, LlamaConfig, attention, layers),
    "qwen2": lambda attention, layers: _llama(Qwen2ForCausalLM, Qwen2Config, attention, layers),
    "gpt2": _gpt2,
}


def blocks(net: nn.Module) -> nn.ModuleList:
    """Return the layers of a model."""
    return net.transformer.h if hasattr(net, "transformer") else net.model.layers


def _attention(block: nn.Module) -> nn.Module:
    return block.attn if hasattr(block, "attn") else block.self_attn


def _normal(like: Tensor, chance: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=chance)


def matrices(net: nn.Module, chance: torch.Generator) -> None:
    """Make all matrices but the embeddings three to five times as large as they are drawn."""
    for name, weight in net.named_parameters():
        if weight.dim() == 2 and not any(part in name for part in ("emb", "wte", "wpe")):
            weight.mul_(3 + 2 * torch.rand(1, generator=chance).item())


def norms(net: nn.Module, chance: torch.Generator) -> None:
    """Give the weights of norms a spread, and make two of each ten times as large."""
    for name, weight in net.named_parameters():
        if weight.dim() == 1 and name.endswith("weight"):
            weight.copy_(torch.exp(0.7 * _normal(weight, chance)))
            weight[torch.randint(len(weight), (_CHANNELS,), generator=chance)] *= 10


def massive(net: nn.Module, chance: torch.Generator) -> None:
    """Let the third layer make two channels enormous, and the embedding of the first token large."""
    mlp = blocks(net)[2].mlp
    rows = mlp.c_proj.weight.T if hasattr(mlp, "c_proj") else mlp.down_proj.weight
    rows[torch.randint(WIDTH, (_CHANNELS,), generator=chance)] *= 300
    net.get_input_embeddings().weight[FIRST] *= 20


def outliers(net: nn.Module, chance: torch.Generator) -> None:
    """Make a few channels of all embeddings large."""
    net.get_input_embeddings().weight[:, torch.randint(WIDTH, (_CHANNELS,), generator=chance)] *= 60


def sharp(net: nn.Module, chance: torch.Generator) -> None:
    """Make queries and keys larger, and so attention sharper."""
    for block in blocks(net):
        attention = _attention(block)
        if hasattr(attention, "c_attn"):
            attention.c_attn.weight[:, : 2 * WIDTH] *= 2.5
        else:
            attention.q_proj.weight.mul_(3)
            attention.k_proj.weight.mul_(2)


def biases(net: nn.Module, chance: torch.Generator) -> None:
    """Give queries and keys the large biases that Qwen2 has; nothing for models without."""
    for block in blocks(net):
        attention = _attention(block)
        if hasattr(attention, "c_attn"):
            attention.c_attn.bias[: 2 * WIDTH] = 8 * torch.randn(2 * WIDTH, generator=chance)
        elif attention.q_proj.bias is not None:
            attention.q_proj.bias.copy_(4 * _normal(attention.q_proj.bias, chance))
            few = torch.rand(attention.k_proj.bias.shape, generator=chance) < 0.2
            attention.k_proj.bias.copy_(40 * few * _normal(attention.k_proj.bias, chance))


LOOKS: dict[str, tuple[Change, ...]] = {
    "plain": (matrices,),
    "norms": (matrices, norms),
    "massive": (matrices, massive),
    "outliers": (matrices, outliers),
    "sharp": (matrices, sharp),
    "biases": (matrices, biases),
    "norms, massive": (matrices, norms, massive),
    "massive, sharp": (matrices, massive, sharp),
    "biases, massive": (matrices, biases, massive),
    "all but biases": (matrices, norms, massive, outliers, sharp),
}


def made(name: str, attention: str, look: str, seed: int) -> nn.Module:
    """Return a model with a look."""
    torch.manual_seed(seed)
    net, chance = MAKE[name](attention, LAYERS), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for change in LOOKS[look]:
            change(net, chance)
    return net


def text() -> Tensor:
    """Return bytes of the standard library: a text that is everywhere, and the same for each Python."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:80]
    return torch.tensor(list(b"".join(file.read_bytes() for file in files)))


def sequences(data: Tensor, count: int, length: int, chance: torch.Generator) -> Tensor:
    """Draw sequences of a text, each of which begins with the same token."""
    starts = torch.randint(len(data) - length, (count,), generator=chance).tolist()
    drawn = torch.stack([data[start : start + length] for start in starts])
    drawn[:, 0] = FIRST
    return drawn


def trained(name: str, steps: int, data: Tensor) -> dict[str, Tensor]:
    """Train a model of six layers on a text; return its weights."""
    torch.manual_seed(0)
    net, chance = MAKE[name]("sdpa", 6), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (step + 1) / 100, 1.05 - step / steps)
        ids = sequences(data, 12, 64, chance)
        net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def record(path: Path, net: nn.Module, dtype: str, batches: list[Tensor], *, split: int = 1, threads: int = 1) -> Path:
    """Record some training steps, in the place of what was recorded there."""
    torch.set_num_threads(threads)
    path.unlink(missing_ok=True)
    net = net.bfloat16() if dtype == "bf16" else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    with probe.capture(net, path, task="statistics"):
        for ids in batches:
            for part in ids.chunk(split):
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
                    logits = net(input_ids=part, use_cache=False).logits
                loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), part[:, 1:].flatten()) / split
                loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def batches_of(seed: int) -> list[Tensor]:
    """Return two batches of tokens."""
    chance = torch.Generator().manual_seed(seed)
    batches = [torch.randint(3, VOCABULARY, (4, LENGTH), generator=chance) for _ in range(2)]
    for ids in batches:
        ids[:, 0] = FIRST
    return batches
