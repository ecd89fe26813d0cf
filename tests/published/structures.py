"""Structures of models made by hand, and weights for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from probe.conversion.structure import Structure, Weight
from probe.numbers.layouts import layout_of
from probe.records import ModuleInfo
from probe.structure.tree import Tree

Arrays = dict[str, np.ndarray]
Modules = dict[str, tuple[str, dict[str, tuple[int, ...]]]]
"""path → (class, slots with their shapes), parents first"""


def structure(framework: str, modules: Modules, tied: Iterable[tuple[str, str]] = ()) -> Structure:
    """Return a structure by hand; of two tied names the second is another name of the first."""
    paths = list(modules)
    infos = [ModuleInfo(p, modules[p][0], paths.index(p.rpartition(".")[0]) if p else -1) for p in paths]
    again = dict(tied)
    weights = [
        Weight(tuple(filter(None, (name, again.get(name)))), index, slot, shape, layout_of(framework, (kind,), slot))
        for index, (path, (kind, slots)) in enumerate(modules.items())
        for slot, shape in slots.items()
        if (name := f"{path}.{slot}".lstrip(".")) not in again.values()
    ]
    return Structure(framework, Tree(infos), [(kind,) for kind, _ in modules.values()], weights)


def state_of(known: Structure, seed: int = 0, dtype: Any = np.float32) -> Arrays:
    """Return random values of every weight."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(w.shape).astype(dtype) for w in known.weights for name in w.names[:1]}


LINEAR = {"weight": (4, 3), "bias": (4,)}
NET: Modules = {
    "": ("Net", {}),
    "conv": ("Linear", {"weight": (4, 4), "bias": (4,)}),
    "norm": ("LayerNorm", {"weight": (4,), "bias": (4,)}),
    "bn": ("BatchNorm1d", {"weight": (4,), "bias": (4,), "running_mean": (4,), "running_var": (4,), "num_batches_tracked": ()}),
    "emb": ("Embedding", {"weight": (7, 4)}),
    "attn": ("MultiheadAttention", {"in_proj_weight": (12, 4), "in_proj_bias": (12,)}),
    "attn.out_proj": ("NonDynamicallyQuantizableLinear", {"weight": (4, 4), "bias": (4,)}),
    "c1": ("Conv1d", {"weight": (5, 4, 3)}),
    "lstm": ("LSTM", {"weight_ih_l0": (16, 4), "weight_hh_l0": (16, 4), "bias_ih_l0": (16,), "bias_hh_l0": (16,)}),
}  # fmt: skip
TORCH = structure("torch", NET)
PADDLE_NET: Modules = {
    "": ("Net", {}),
    "conv": ("Linear", {"weight": (4, 4), "bias": (4,)}),
    "norm": ("LayerNorm", {"weight": (4,), "bias": (4,)}),
    "bn": ("BatchNorm1D", {"weight": (4,), "bias": (4,), "_mean": (4,), "_variance": (4,)}),
    "emb": ("Embedding", {"weight": (7, 4)}),
    "attn": ("MultiHeadAttention", {}),
    **{f"attn.{part}": ("Linear", {"weight": (4, 4), "bias": (4,)}) for part in ("q_proj", "k_proj", "v_proj", "out_proj")},
    "c1": ("Conv1D", {"weight": (5, 4, 3)}),
    "lstm": ("LSTM", {"weight_ih_l0": (16, 4), "weight_hh_l0": (16, 4), "bias_ih_l0": (16,), "bias_hh_l0": (16,)}),
    "lstm.0": ("RNN", {}),
    "lstm.0.cell": ("LSTMCell", {"weight_ih": (16, 4), "weight_hh": (16, 4), "bias_ih": (16,), "bias_hh": (16,)}),
}  # fmt: skip
ALIASES = [(f"lstm.{slot}_l0", f"lstm.0.cell.{slot}") for slot in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
PADDLE = structure("paddle", PADDLE_NET, ALIASES)


def as_paddle(state: Arrays) -> Arrays:
    """Convert by hand."""
    made = {
        name: state[name] for name in ("conv.bias", "norm.weight", "norm.bias", "bn.weight", "bn.bias", "emb.weight")
    }
    made |= {
        "conv.weight": state["conv.weight"].T,
        "bn._mean": state["bn.running_mean"],
        "bn._variance": state["bn.running_var"],
    }
    for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
        made[f"attn.{part}.weight"] = state["attn.in_proj_weight"][4 * i : 4 * i + 4].T
        made[f"attn.{part}.bias"] = state["attn.in_proj_bias"][4 * i : 4 * i + 4]
    made |= {"attn.out_proj.weight": state["attn.out_proj.weight"].T, "attn.out_proj.bias": state["attn.out_proj.bias"]}
    return made | {name: state[name] for name in state if name.startswith(("lstm", "c1"))}


def equal(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all((a[n].dtype, a[n].tobytes()) == (b[n].dtype, b[n].tobytes()) for n in a)
