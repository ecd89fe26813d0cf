"""What is trained, and how it is divided."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Spec:
    """One training."""

    name: str = "one"
    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    """experts lie over ranks of dp"""
    sequence_parallel: bool = False
    micros: int = 1
    """micro-batches of each share of the batch"""
    zigzag: bool = True
    wrapper: str = ""
    """``ddp`` or ``fsdp2``: of torch, in the place of own reductions"""
    experts: int = 0
    gated: bool = False
    tied: bool = False
    strided: bool = False
    """ranks are given every n-th sample, as DistributedSampler does"""
    fault: str = ""
    task: str = "tensor"
    steps: int = 2
    layers: int = 2
    batch: int = 4
    options: tuple[tuple[str, object], ...] = ()
    """for `probe.start`"""

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def but(self, **changed: object) -> Spec:
        """Return another training."""
        return replace(self, **changed)  # type: ignore[arg-type]

    def as_json(self) -> dict[str, object]:
        """Return it for a worker."""
        return asdict(self)


HIDDEN, HEADS, FFN, VOCABULARY, LENGTH = 32, 4, 64, 64, 8
