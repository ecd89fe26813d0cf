"""How alike two modules are by their names and classes, whatever a project calls them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SAME = {
    "query": "q", "wq": "q", "key": "k", "wk": "k", "value": "v", "wv": "v", "wqkv": "qkv", "attn": "attention",
    "attentions": "attention", "ffn": "mlp", "ff": "mlp", "feedforward": "mlp", "layernorm": "norm", "ln": "norm",
    "rmsnorm": "norm", "norms": "norm", "bn": "norm", "batchnorm": "norm", "emb": "embed", "embedding": "embed",
    "embeddings": "embed", "wte": "embed", "tok": "word", "token": "word", "tokens": "word", "words": "word",
    "wpe": "position", "pos": "position", "positions": "position", "act": "activation", "fn": "activation",
    "func": "activation", "conv": "conv", "fc": "linear", "dense": "linear", "lin": "linear", "proj": "linear",
    "projection": "linear", "classifier": "head", "output": "out", "pre": "before", "input": "before", "post": "after",
    "final": "last", "blocks": "layer", "block": "layer", "layers": "layer", "h": "layer", "encoder": "encoder",
    "decoder": "decoder", "vision": "visual", "image": "visual", "language": "text", "shortcut": "down", "gating": "router",
}  # fmt: skip
_ROLES = {
    "q": ("q",), "k": ("k",), "v": ("v",), "gate": ("gate", "w1"), "up": ("up", "w3"), "down": ("down", "w2"),
    "o": ("o", "wo"),
}  # fmt: skip
_ORDER = {"q": 0, "k": 1, "v": 2, "norm1": 0, "norm2": 1}
_NORMS = {
    "norm1": (
        "norm1", "ln1", "ln_1", "norm_1", "input_layernorm", "attention_norm", "layernorm_before", "attn_norm",
        "pre_attention_layernorm", "layer_norm1",
    ),
    "norm2": (
        "norm2", "ln2", "ln_2", "norm_2", "post_attention_layernorm", "ffn_norm", "layernorm_after", "mlp_norm",
        "pre_mlp_layernorm", "layer_norm2",
    ),
}  # fmt: skip
"""what projects call the norms of a layer: named after what is before or behind them, they cannot be told by words"""
_KINDS = (
    ("dropout", ("dropout", "droppath", "stochasticdepth")),
    ("conv", ("conv",)),
    ("linear", ("linear", "dense", "gemm")),
    ("norm", ("norm",)),
    ("rotary", ("rotary", "rope")),
    ("embedding", ("embedding",)),
    ("pool", ("pool",)),
    ("activation", ("relu", "gelu", "silu", "swish", "sigmoid", "tanh", "activation", "swiglu", "mish", "softplus")),
    ("softmax", ("softmax",)),
    ("loss", ("loss", "entropy")),
    ("flatten", ("flatten",)),
    ("upsample", ("upsample", "interpolate")),
    ("recurrent", ("lstm", "gru", "rnn")),
)
NEVER_ALIKE = ("rotary", "dropout")
"""kinds of which one is not as good as another: nobody expects them to be pairs"""
_MODELS = re.compile(
    "embeddinggemma|gemma|convbert|convnext|hunyuandense|jinaembeddings|kimilinear|poolformer|robertaprelayernorm|solaropen"
)
"""models whose names, with which those of all their classes begin, hold a word of a kind: Gemma is no gemm, SolarOpen no rope"""


@functools.lru_cache(maxsize=65536)
def words(name: str) -> frozenset[str]:
    """Return the words of a name, each by the one that stands for all that mean the same."""
    found = {word.lower() for word in _WORD.findall(name)}
    return frozenset(_SAME.get(word, word) for word in found if not word.isdigit())


@functools.lru_cache(maxsize=65536)
def role_of(name: str) -> str:
    """Return which of a layer's like projections a name means: q, k, v, o, gate, up or down; ``""`` if none.

    ``norm1`` and ``norm2`` are the first and the second norm of a layer.
    """
    for role, spelled_out in _NORMS.items():
        if name.lower() in spelled_out:
            return role
    spelled = words(name) | {name.lower()}
    found = [role for role, spellings in _ROLES.items() if spelled.intersection(spellings)]
    return found[0] if len(found) == 1 else ""


def ranks_of(names: Sequence[str], class_names: Sequence[str]) -> list[int]:
    """Return in which order modules are used in their attention or layer, as far as names and classes tell."""
    roles = [role_of(name) for name in names]
    if any(role in _ORDER for role in roles):
        return [_ORDER.get(role, len(_ORDER)) for role in roles]
    return [int(role == "down" or (not role and "Row" in kind)) for role, kind in zip(roles, class_names, strict=True)]


@functools.lru_cache(maxsize=65536)
def kind_of(class_name: str) -> str:
    """Return what sort of thing a class is, or ``""`` when its name does not tell."""
    plain = _MODELS.sub("", class_name.lower())
    return next((kind for kind, parts in _KINDS if any(part in plain for part in parts)), "")


@functools.lru_cache(maxsize=65536)
def of_names(a: str, b: str) -> float:
    """Return −1 (they mean different things) to 1 (the same)."""
    if a == b:
        return 1.0
    role_a, role_b = role_of(a), role_of(b)
    if role_a and role_b:
        return 1.0 if role_a == role_b else -1.0
    mine, theirs = words(a), words(b)
    if not mine or not theirs:
        return 0.0
    return len(mine & theirs) / len(mine | theirs)


@functools.lru_cache(maxsize=65536)
def of_classes(a: str, b: str) -> float:
    """Return −1 (they do different things) to 1 (the same)."""
    if a == b:
        return 1.0
    kind_a, kind_b = kind_of(a), kind_of(b)
    if kind_a and kind_b:
        return 0.7 if kind_a == kind_b else -1.0
    mine, theirs = words(a), words(b)
    return 0.5 * len(mine & theirs) / max(1, len(mine | theirs))
