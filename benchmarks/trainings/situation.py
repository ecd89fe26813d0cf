"""One training, as it is run plainly and with probe."""

from __future__ import annotations

import gc
import random
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.optim.optimizer as optimizers
from torch import Tensor, nn

import probe

STEPS, MICROS, WIDTH = 3, 2, 16
FAULT = 0.5
"""of the norm's eps, where the fault is planted: seen in 16 bits too"""
FAULTY = r"(^|\.)blocks\.1\.norm$"
"""where the planted fault is"""
MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
GLOBAL_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Block(nn.Module):
    """A norm and two linear layers around an activation, added to what comes in."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks between two linear layers."""

    def __init__(self, depth: int = 3, width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def net(watch: Watch) -> Net:
    """Build the model, with the fault if there is to be one."""
    model = Net()
    if watch.faulty:
        model.blocks[1].norm.eps = FAULT
    return model


def batch(index: int, *shape: int) -> Tensor:
    """Return a batch of this rank's own."""
    generator = torch.Generator().manual_seed(1000 * rank() + index)
    return torch.randn(*(shape or (4, WIDTH)), generator=generator)


def rank() -> int:
    """Return this process's rank, 0 where there are no others."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


@dataclass
class Watch:
    """What a training calls where its user would call probe; without a path it does nothing."""

    folder: Path
    """of the training's own, for what it writes"""
    path: Path | None = None
    faulty: bool = False
    task: str = "statistics"
    seen: list[Any] = field(default_factory=list)
    """losses, gradients, weights: what must be the same with and without probe"""
    written: Path | None = None
    """the recording of this rank"""
    left: set[str] = field(default_factory=set)
    """what probe left behind"""
    _before: tuple[set[str], Any, Any] | None = None

    def start(self, model: Any, optimizer: Any = None, **options: Any) -> None:
        """Begin to record."""
        models = model if isinstance(model, list) else [model]
        if self.path is not None:
            self._before = (hooks(models, optimizer) | of_process(), models, optimizer)
            self.written = probe.start(model, self.path, task=self.task, quiet=True, **options)

    def step(self, loss: Any = None) -> None:
        """End a step."""
        if loss is not None:
            self.seen.append(plain(loss))
        if self.path is not None:
            probe.step(**({} if loss is None else {"loss": loss}))

    def stop(self) -> None:
        """End the recording, and look at what is left of it."""
        if self._before is not None:
            probe.stop()
            before, models, optimizer = self._before
            self.left = (hooks(models, optimizer) | of_process()) - before
            self._before = None

    def keep(self, *values: Any) -> None:
        """Keep what must be the same with and without probe, as it is now."""
        self.seen += [plain(value) for value in values]

    def keep_model(self, model: nn.Module, optimizer: Any = None) -> None:
        """Keep weights, buffers and the optimizer's state."""
        self.keep({**dict(model.named_parameters()), **dict(model.named_buffers())})
        if optimizer is not None:
            self.keep([list(state.items()) for state in optimizer.state.values()])


@dataclass(frozen=True)
class Situation:
    """One way to train, by its name."""

    name: str
    train: Callable[[Watch], None]
    ranks: int = 1
    place: str = FAULTY
    """pattern of the path that the comparison must name when the fault is planted"""
    is_compiled: bool = False
    """whether hardly anything is recorded, because modules inside of compiled code run without hooks"""


def seeded() -> None:
    """Begin from fixed seeds."""
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)


def random_states() -> list[Any]:
    """Return the states of all generators."""
    return [random.getstate(), np.random.get_state(), torch.get_rng_state()]


def plain(value: Any) -> Any:
    """Return a copy of a value in which every tensor is this rank's bytes."""
    if isinstance(value, Tensor):
        local = value.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        local = local.to_dense() if local.layout is not torch.strided else local
        size = local.untyped_storage().nbytes()
        data = local.contiguous().cpu().clone().view(-1).view(torch.uint8).numpy().tobytes() if size else b""
        return (str(local.dtype), tuple(local.shape), local.stride(), data)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def first_difference(a: Any, b: Any, where: str = "") -> str:
    """Return where two values differ first, ``""`` if they do not."""
    if type(a) is not type(b):
        return f"{where}: {type(a).__name__}, {type(b).__name__}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{where}: other keys"
        return next(filter(None, (first_difference(a[key], b[key], f"{where}.{key}") for key in a)), "")
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {len(a)} and {len(b)} entries"
        each = (first_difference(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
        return next(filter(None, each), "")
    return "" if a == b or (a != a and b != b) else where or "value"


def hooks(models: list[nn.Module], optimizer: Any = None) -> set[str]:
    """Return every hook on models, their parameters, what they keep, the optimizer, and of the process."""
    holders: list[tuple[str, Any, str]] = [("optimizer", optimizer, name) for name in OPTIMIZER_HOOKS]
    for number, model in enumerate(models):
        for path, module in model.named_modules():
            where = f"{number}.{path}"
            holders += [(where, module, name) for name in MODULE_HOOKS]
            tensors = {**module._parameters, **{k: v for k, v in vars(module).items() if isinstance(v, Tensor)}}
            holders += [(f"{where}.{slot}", tensor, name) for slot, tensor in tensors.items() for name in TENSOR_HOOKS]
    holders += [("all", nn.modules.module, f"_global{name}") for name in MODULE_HOOKS]
    holders += [("all", optimizers, name) for name in GLOBAL_OPTIMIZER_HOOKS]
    found = [(where, name, holder, getattr(holder, name, None)) for where, holder, name in holders]
    return {
        f"{where} {name} {key}"
        for where, name, _, table in found
        for key, hook in (table or {}).items()
        if _is_ours(hook)
    }


def _is_ours(hook: Any) -> bool:
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).startswith("probe") or type(hook).__module__.startswith("probe")


def of_process() -> set[str]:
    """Return the threads of this process that are probe's, and its open recordings."""
    gc.collect()
    threads = {f"thread {each.name}" for each in threading.enumerate() if "probe" in each.name}
    files = Path("/proc/self/fd")
    targets = (str(file.readlink()) for file in files.iterdir() if file.is_symlink())
    return threads | {f"open {Path(target).name}" for target in targets if target.endswith(".h5")}


def quietly() -> None:
    """Let no warning flood what a sweep prints; notes in the file tell what probe has said."""
    warnings.simplefilter("ignore")
