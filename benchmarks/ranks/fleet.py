"""The fleet of PaddlePaddle, mp 2 over gloo on a CPU, against one process: `train` starts it, as a program it is one rank.

fleet calls two things that PaddlePaddle does not have on a CPU: the operator c_identity, which returns what it is given, and an all-reduce on the stream that
computes, of which gloo has none. Both are given to it here; groups, layers and all other collectives are its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ranks.cases import Fault

ROOT = Path(__file__).parents[2]
HIDDEN, FFN, VOCABULARY, LENGTH, BATCH, STEPS, LAYERS = 16, 32, 32, 6, 4, 2, 2
FAULTS = (
    Fault("fleet-missing-all-reduce", "fleet's RowParallelLinear without its all-reduce", "layers.1.fc2", {"fleet mp2": (0, 1)}),
    Fault("fleet-other-norm", "one rank of fleet begins with another norm", "layers.1.norm", {"fleet mp2": (1,)}),
)  # fmt: skip
WHOLE, DIVIDED = "fleet-one", "fleet-mp2"


def train(folder: Path, task: str, fault: str = "") -> tuple[str, str]:
    """Train and record one process, and two ranks; return the names of their files."""
    names = f"{task}-{WHOLE}", f"{task}-{DIVIDED}{fault.removeprefix('fleet')}"
    for name, ranks in zip(names, (1, 2), strict=True):
        if not list(folder.glob(f"{name}.*")):
            _launch(folder, {"name": name, "ranks": ranks, "task": task, "fault": fault if ranks > 1 else ""})
    return names


def _launch(folder: Path, spec: dict[str, Any]) -> None:
    ports = _free_ports(spec["ranks"] + 1)
    ends = [f"127.0.0.1:{port}" for port in ports[1:]]
    processes = []
    for rank, end in enumerate(ends):
        launch = {
            "PADDLE_TRAINER_ID": str(rank), "PADDLE_TRAINERS_NUM": str(len(ends)), "PADDLE_TRAINER_ENDPOINTS": ",".join(ends),
            "PADDLE_CURRENT_ENDPOINT": end, "PADDLE_MASTER": f"127.0.0.1:{ports[0]}", "PADDLE_DISTRI_BACKEND": "gloo",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.ranks.fleet", str(folder), json.dumps(spec)]
        processes.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, **launch}, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT))  # fmt: skip
    said = [process.communicate(timeout=300)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("\n".join(said))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


# ---- one rank


def main(given: Sequence[str]) -> None:
    """Train and record as one rank."""
    import paddle
    from paddle.distributed import fleet

    import probe

    folder, spec = Path(given[0]), json.loads(given[1])
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": spec["ranks"], "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    if spec["ranks"] > 1:
        _on_a_cpu(fleet.get_hybrid_communicate_group().get_model_parallel_group().process_group)
    model = _model(rank, spec["ranks"])
    if spec["fault"] == "fleet-missing-all-reduce":
        model.layers[1].fc2.is_mp = False
    elif spec["fault"] == "fleet-other-norm" and rank == 1:
        model.layers[1].norm.weight.set_value(model.layers[1].norm.weight + 0.01)
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    with probe.capture(model, folder / f"{spec['name']}.h5", task=spec["task"], quiet=True, overwrite=True):
        for step in range(STEPS):
            ids = paddle.to_tensor(_random(step).integers(0, VOCABULARY, (BATCH, LENGTH + 1)))
            loss = paddle.nn.functional.cross_entropy(model(ids[:, :-1]), ids[:, 1:].unsqueeze(-1))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            probe.step(loss=loss)


def _on_a_cpu(group: Any) -> None:
    """Give fleet what PaddlePaddle does not have on a CPU."""
    import paddle
    from paddle import _C_ops

    _C_ops.c_identity = lambda tensor, *more: paddle.assign(tensor)
    base = type(group).__mro__[1]
    base.all_reduce_on_calc_stream = lambda self, tensor, op: self.all_reduce(tensor, op, True)


def _random(seed: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed)


def _model(rank: int, ranks: int) -> Any:
    import paddle
    from paddle import nn
    from paddle.distributed.fleet import meta_parallel as mp

    class Layer(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(HIDDEN)
            self.fc1 = mp.ColumnParallelLinear(HIDDEN, FFN, has_bias=True, gather_output=False)
            self.fc2 = mp.RowParallelLinear(FFN, HIDDEN, has_bias=True, input_is_parallel=True)

        def forward(self, x: Any) -> Any:
            return x + self.fc2(nn.functional.gelu(self.fc1(self.norm(x))))

    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = mp.VocabParallelEmbedding(VOCABULARY, HIDDEN)
            self.layers = nn.LayerList([Layer() for _ in range(LAYERS)])
            self.head = nn.Linear(HIDDEN, VOCABULARY)

        def forward(self, ids: Any) -> Any:
            x = self.embedding(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    model, random = Model(), _random(7)
    for _, parameter in model.named_parameters():
        is_divided = getattr(parameter, "is_distributed", False)
        axis = parameter.split_axis if is_divided else 0
        shape = [size * (ranks if is_divided and at == axis else 1) for at, size in enumerate(parameter.shape)]
        whole = random.normal(size=shape) * (0.3 if len(shape) > 1 else 0.05)
        own = (
            whole.take(range(rank * parameter.shape[axis], (rank + 1) * parameter.shape[axis]), axis)
            if is_divided
            else whole
        )
        parameter.set_value(paddle.to_tensor(own.astype("float32")))
    return model


if __name__ == "__main__":
    main(sys.argv[1:])
