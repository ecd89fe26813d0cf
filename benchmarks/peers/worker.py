"""All dumps of one tool in one framework: `python -m benchmarks.peers.worker TOOL FRAMEWORK TASK FOLDER`, where the tool is installed.

FOLDER has the weights that `benchmarks.frameworks.worker torch FOLDER statistics` left.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frameworks.faults import PLANT, planted_weights
from benchmarks.frameworks.worker import EXAMPLES
from benchmarks.peers.truth import MSPROBE, Side, pairs

STEPS = 2


def main(tool: str, framework: str, task: str, folder: Path) -> None:
    """Dump every training of the tool, framework and task."""
    wanted = {side for pair in pairs() for side in (pair.a, pair.b)}
    sides = sorted((s for s in wanted if (s.tool, s.framework, s.task) == (tool, framework, task)), key=str)
    dump = _Msprobe(framework, task, folder) if tool == MSPROBE else _padiff
    sys.path.insert(0, str(EXAMPLES))
    models = importlib.import_module(f"{framework}_models")
    for side in sides:
        with models.torch.backends.mkldnn.flags(enabled=False) if side.is_again else contextlib.nullcontext():
            dump(models, _model(models, side, folder), side, folder / "dumps" / side.label)


def _model(models: Any, side: Side, folder: Path) -> Any:
    model, weights = models.MODELS[side.model](), dict(np.load(folder / f"{side.model}.npz"))
    if side.framework != "torch":
        import probe

        weights = {k: v for k, v in weights.items() if "num_batches_tracked" not in k}
        source = folder / f"torch-{side.model}-sgd.h5"
        weights = probe.convert_weights(weights, None, to=side.framework, source=source, like=model)
    models.load(model, planted_weights(side.name, weights))
    if side.framework == "torch":
        PLANT_TORCH.get(side.name, bool)(model)
    else:
        PLANT[side.framework](side.name, model)
    return model


PLANT_TORCH: dict[str, Callable[[Any], object]] = {
    "eps": lambda model: setattr(model.layers[1].norm1, "eps", 1e-3),
    "gelu": lambda model: setattr(model.layers[1].act, "approximate", "tanh"),
    "bias": lambda model: setattr(model.layers[0].up, "bias", None),
    "padding": lambda model: setattr(model.pool2, "count_include_pad", False),
    "frozen": lambda model: model.layers[0].down.requires_grad_(False),
    "halved": lambda model: model.layers[1].key.weight.register_hook(lambda gradient: gradient / 2),
}


class _Msprobe:
    """mindstudio-probe, whose debugger is one for a process: each step of each training is a step of one long dump."""

    def __init__(self, framework: str, task: str, folder: Path) -> None:
        self._at, self._count = folder / f"msprobe-{framework}-{task}", 0
        name = {"torch": "pytorch"}.get(framework, framework)
        config = {"task": task, "dump_path": str(self._at), "rank": [], "step": [], "level": "L0", "async_dump": False,
                  task: {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}}  # fmt: skip
        path = folder / f"config-{framework}-{task}.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        if framework == "mindspore":  # its norm, which the tool calls, has no kernel for CPUs
            ms = importlib.import_module("mindspore")
            ms.mint.norm = lambda x: ms.Tensor(np.linalg.norm(x.asnumpy()).astype(np.float32))
        self._debugger = importlib.import_module(f"msprobe.{name}").PrecisionDebugger(config_path=str(path))

    def __call__(self, models: Any, model: Any, side: Side, into: Path) -> None:
        from batches import batch

        optimizer = models.optimizer_of(model, "sgd")
        for step in range(STEPS):
            self._debugger.start(model=model)
            models.train_step(model, optimizer, *batch(side.model, step), "mean")
            self._debugger.stop()
            self._debugger.step()
            into.mkdir(parents=True, exist_ok=True)
            shutil.move(self._at / f"step{self._count}", into / f"step{step}")
            self._count += 1


def _padiff(models: Any, model: Any, side: Side, into: Path) -> None:
    import padiff
    from batches import batch

    padiff.set_dump_root_path(str(into))
    proxy, optimizer = padiff.create_model(model, "net"), models.optimizer_of(model, "sgd")
    tensor = importlib.import_module(side.framework)
    of_numpy = tensor.to_tensor if side.framework == "paddle" else tensor.from_numpy
    for step in range(STEPS):
        inputs, target = batch(side.model, step)
        proxy.backward(models.loss_of(proxy(of_numpy(inputs)), of_numpy(target)))
        proxy.try_dump()
        optimizer.step()
        optimizer.clear_grad() if side.framework == "paddle" else optimizer.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]))
