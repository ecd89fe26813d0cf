"""What probe must say about every row of the fault suite, written down before the comparator was.

Both sides are the same 6-layer `Qwen2ForCausalLM` with the same weights and data, A with sdpa and B with
eager attention; the fault is planted on B. `check_truth.py` confirms the table without probe, by brute force.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

PHASES = ("init", "forward", "loss", "backward", "gradient", "update")
KINDS = ("inputs", "init", "introduced", "missing", "nonfinite", "shape", "dtype", "update")


@dataclass(frozen=True)
class Truth:
    """One planted fault and the only right answer to it."""

    name: str
    description: str
    path: str
    """Module path on side A of the first divergence; "" is the root, the loss or the optimizer as a whole."""
    phase: str
    """The first phase in causal order in which the fault is real, one of `PHASES`."""
    kind: str
    """One of `KINDS`."""
    step: int = 0
    """The step of the first divergence."""
    steps_run: int = 1
    """How many steps both sides record."""
    baseline: str = "base"
    """The recording of side A that it is compared with; most rows share one."""
    also: tuple[str, ...] = ()
    """Globs of other paths that are as right as `path`, because the fault is in all of them."""

    def names(self, path: str) -> bool:
        """Whether `path` is the right module."""
        return path == self.path or any(fnmatchcase(path, glob) for glob in self.also)

    def near(self, path: str) -> bool:
        """Whether `path` is not the right module but the one directly around it."""
        return not self.names(path) and "." in self.path and path == self.path.rpartition(".")[0]


@dataclass(frozen=True)
class Clean:
    """A pair of runs that differ in nothing that matters: anything but "aligned" is a false alarm."""

    name: str
    description: str
    steps_run: int = 1
    baseline: str = "base"


FAULTS: tuple[Truth, ...] = (
    Truth(
        "eps_large",
        "RMSNorm eps 1e-6 → 1e-3 in one norm",
        "model.layers.3.post_attention_layernorm",
        "forward",
        "introduced",
    ),
    Truth(
        "eps_small", "RMSNorm eps 1e-6 → 1e-5 in one norm", "model.layers.2.input_layernorm", "forward", "introduced"
    ),
    Truth("gelu", "SiLU → GELU in one MLP", "model.layers.2.mlp.act_fn", "forward", "introduced"),
    Truth("weight", "one weight × 1.01", "model.layers.1.self_attn.k_proj", "init", "init"),
    Truth("bias", "one Linear built without its bias", "model.layers.4.self_attn.q_proj", "init", "missing"),
    Truth("rope", "rope theta 10,000 → 500,000", "model.rotary_emb", "forward", "introduced"),
    Truth("mask", "causal mask off in one layer", "model.layers.3.self_attn", "forward", "introduced"),
    Truth(
        "dropout", "attention dropout of 0.1 left on in one layer", "model.layers.4.self_attn", "forward", "introduced"
    ),
    Truth(
        "backward",
        "input gradient × 1.01 in a custom autograd.Function, forward equal",
        "model.layers.3.self_attn.o_proj",
        "backward",
        "introduced",
    ),
    Truth(
        "backward_twin",
        "the same inside up_proj only, gate_proj reads the same tensor",
        "model.layers.2.mlp.up_proj",
        "backward",
        "introduced",
    ),
    Truth("frozen", "one parameter with requires_grad=False", "model.layers.1.mlp.down_proj", "gradient", "missing"),
    Truth(
        "norm_decay",
        "weight decay 0 → 0.1 on the norms",
        "model.layers.0.input_layernorm",
        "update",
        "update",
        also=("*norm",),
    ),
    Truth("lr", "learning rate 1e-3 → 1.1e-3", "", "update", "update"),
    Truth(
        "beta2",
        "Adam's beta2 0.95 → 0.999: at once in the optimizer state, in the weights a step later",
        "",
        "update",
        "update",
        steps_run=2,
        baseline="two_steps",
    ),
    Truth("smoothing", "label smoothing 0 → 0.1 in the loss", "", "loss", "introduced"),
    Truth("inputs", "other input ids", "", "forward", "inputs"),
    Truth("layer_last", "the last of six layers missing", "model.layers.5", "forward", "missing"),
    Truth(
        "layer_middle",
        "the third of six layers missing, the later ones moved up under its name",
        "model.layers.2",
        "forward",
        "missing",
    ),
)

CLEAN: tuple[Clean, ...] = (
    Clean("twice", "the same model twice, in two processes"),
    Clean("attention", "sdpa against eager attention"),
    Clean("threads", "1 thread against 2"),
    Clean("bf16", "bfloat16, sdpa against eager attention", baseline="bf16"),
    Clean("accumulate", "one micro-batch of 4 against two of 2, up to the gradients", baseline="one_of_four"),
    Clean("accumulate_more", "four micro-batches of 1 against two of 2, up to the gradients", baseline="four_of_one"),
)
