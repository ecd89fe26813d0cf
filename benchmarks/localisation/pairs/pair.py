"""What a pair is: two setups, the planted fault and the right answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.grading import Truth


@dataclass(frozen=True)
class Planted:
    """One fault in one place of one side."""

    fault: str
    """a key of `faults.registry.FAULTS`"""
    path: str = ""
    """the module that it is planted in, or a glob of parameter names for the optimizer's faults"""
    size: float | None = None
    """how large; the fault's own default when None"""
    step: int = 0
    """the step from which on it is there"""


@dataclass(frozen=True)
class Setup:
    """Everything that one side of a pair runs with. Two equal setups give the same recording."""

    architecture: str
    """a key of `models.registry.ARCHITECTURES`"""
    dtype: str = "fp32"
    """fp32, bf16, fp16, or autocast: fp32 weights, bf16 arithmetic"""
    rounded_to: str = ""
    """a 16-bit dtype to which weights and inputs are rounded first: what a reference in fp32 begins with"""
    attention: str = "sdpa"
    threads: int = 1
    micros: int = 1
    """forward passes that a step's batch is split into"""
    split: int = 1
    """parts in which every Linear's sum is taken, as under tensor parallelism"""
    channels_last: bool = False
    doubled: bool = False
    """computes in fp64 inside every Linear and convolution, and rounds: other kernels"""
    fused: bool = False
    """LayerNorms and activations in fp64, rounded once, and in fp32 the optimizer in one kernel: as compilers make them"""
    optimizer: str = "adamw"
    clip: float = 0.0
    """the norm that all gradients together are clipped to; 0 for none"""
    loss_scale: float = 1.0
    """by which the loss is multiplied, and the gradients divided"""
    steps: int = 1
    seed: int = 0
    width: int = 1
    """by which the widths of a model of transformers are multiplied"""
    layers: int = 0
    """how many it has; the architecture's own number when 0"""
    framework: str = "torch"
    """``paddle`` and ``mindspore`` for a port (architectures ``port-…``)"""
    planted: tuple[Planted, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two setups, and what is to be said about them."""

    name: str
    a: Setup
    b: Setup
    truth: Truth | None = None
    """None: the pair is clean"""
    set: str = ""
    """a key of `registry.SETS`; "drawn" for a random pair"""
    mapping: Mapping[str, Any] | None = field(default=None, hash=False)
    about: str = ""
    """what is planted, or what differs legitimately"""

    @property
    def held_out(self) -> bool:
        """Tell whether the pair was written without looking at any answer, and scored before a rule was changed for it."""
        return self.set.startswith("held-out-")

    @property
    def phase(self) -> str:
        """The phase of the fault, or ``clean``."""
        return self.truth.phases[0] if self.truth else "clean"
