"""One recording of a size that is asked for, made in a process of its own: `python -m benchmarks.growth.making RUN PATH`.

RUN is a `Run` in JSON. What recording cost is printed in JSON: the same steps are made without probe before.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MODULES_OF_A_BLOCK = 5
SEED = 20240611
WRONG = 1.01
"""what the norm with the fault multiplies its output by"""


@dataclass(frozen=True)
class Run:
    """What is trained, and how B differs from A."""

    modules: int
    steps: int = 1
    width: int = 8
    tokens: int = 4
    task: str = "statistics"
    is_rounded: bool = False
    """linear layers compute in float64 and round: other last bits in every tensor that is computed"""
    is_wrong: bool = False
    """one norm, in the last step, returns what is not right"""

    @property
    def blocks(self) -> int:
        """How many blocks of modules it has."""
        return max(1, self.modules // MODULES_OF_A_BLOCK)

    @property
    def fault(self) -> str:
        """The path of the module with the fault."""
        return f"blocks.{self.blocks // 2}.norm"


def model_of(run: Run) -> Any:
    """Return blocks of a norm and two linear layers, each added to what the ones before returned."""
    import torch
    from torch import nn

    class Linear(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not run.is_rounded:
                return super().forward(x)
            return nn.functional.linear(x.double(), self.weight.double(), self.bias.double()).float()

    class Norm(nn.LayerNorm):
        factor = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.factor

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm(run.width)
            self.up = Linear(run.width, 4 * run.width)
            self.act = nn.GELU()
            self.down = Linear(4 * run.width, run.width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(self.act(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(run.blocks)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(SEED)
    return Net()


def make(run: Run, path: Path) -> dict[str, float]:
    """Record a run; return what recording cost beyond the training."""
    import torch

    import probe

    torch.set_num_threads(1)
    model = model_of(run)
    fault = model.get_submodule(run.fault)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3 / run.blocks)
    batches = torch.randn(run.steps, run.tokens, run.width, generator=torch.Generator().manual_seed(SEED))

    def train(record: bool) -> tuple[float, float]:
        began = time.process_time(), time.perf_counter()
        for number, batch in enumerate(batches):
            fault.factor = WRONG if run.is_wrong and number == run.steps - 1 else 1.0
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if record:
                probe.step(loss=loss)
        return time.process_time() - began[0], time.perf_counter() - began[1]

    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(2):  # once more than is measured: the first step pays for what is made once
        plain = train(record=False)
    model.load_state_dict(kept)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time(), time.perf_counter()
    probe.start(model, path, task=run.task, steps=list(range(run.steps)), overwrite=True, quiet=True)
    train(record=True)
    probe.stop()
    cpu, wall = time.process_time() - began[0], time.perf_counter() - began[1]
    with probe.open(path) as recording:
        records = recording.observations
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "records": records, "cpu": cpu - plain[0], "wall": wall - plain[1], "plain_cpu": plain[0],
        "peak": (peak - held) / 1024, "size": path.stat().st_size,
    }  # fmt: skip


def as_text(run: Run) -> str:
    """Return what `main` takes."""
    return json.dumps(asdict(run))


if __name__ == "__main__":
    print(json.dumps(make(Run(**json.loads(sys.argv[1])), Path(sys.argv[2]))))
