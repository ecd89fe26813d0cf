"""Valid inputs of every kind, as small as they can be, from which mutated ones are made."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np

import probe
from probe.checkpoints.stored import Stored
from probe.checkpoints.writing import write_file
from probe.curve_comparison.reading.events import masked_crc32c
from probe.mapping.library import library
from probe.reproducibility.batches import save_batches
from tests.saved import state_dict, torch_legacy
from tests.toy import nn
from tests.toy.tensor import Tensor, cross_entropy

FRAMEWORKS = {".safetensors": "torch", ".pdparams": "paddle", ".ckpt": "mindspore"}


@dataclass(frozen=True)
class Seed:
    """One valid input."""

    name: str
    suffix: str
    data: bytes
    partner: bytes = b""
    """what it is compared with; itself where it is empty"""


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(5, 4), up=nn.Linear(4, 6), head=nn.Linear(6, 5))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.up(self.embed(ids)))


def _recorded(path: Path, task: str, steps: int) -> bytes:
    """Return a recording of a model of three modules."""
    nn.manual_seed(0)
    model = _Net()
    optimizer = nn.AdamW(model.parameters(), lr=1e-2)
    ids = np.arange(6).reshape(2, 3) % 5
    probe.start(model, path, task=task, overwrite=True, quiet=True)
    for _ in range(steps):
        loss = cross_entropy(model(Tensor(ids)), Tensor(ids))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
    probe.stop()
    return packed(path)


def packed(path: Path) -> bytes:
    """Return a recording with chunks no larger than its tables: what is mutated shall mean something."""
    buffer = io.BytesIO()
    with h5py.File(path, "r") as old, h5py.File(buffer, "w", libver=("v108", "v110")) as new:
        new.attrs.update(old.attrs)
        new.create_group("environment").attrs.update(old["environment"].attrs)
        for name, item in old.items():
            if isinstance(item, h5py.Dataset):
                facts = {"chunks": (max(len(item), 1), *item.shape[1:]), "maxshape": (None, *item.shape[1:])}
                new.create_dataset(name, data=item[()], dtype=item.dtype, fletcher32=not item.dtype.hasobject, **facts)
        for name, item in old["tensors"].items():
            chunks = {"chunks": (max(len(item), 1),), "maxshape": (None,)} if name == "blob" else {}
            new.create_dataset(f"tensors/{name}", data=item[()], **chunks)
    return buffer.getvalue()


def recordings(folder: Path) -> list[Seed]:
    """Return recordings of each task, of one step and of two, as they are written and packed."""
    found = [
        Seed(f"{task} {steps}", ".h5", *(_recorded(folder / "run.h5", task, steps) for _ in range(2)))
        for task, steps in (("statistics", 1), ("tensor", 1), ("statistics", 2), ("structure", 1), ("norms", 2))
    ]
    return [
        *found,
        Seed("as written", ".h5", (folder / "run.h5").read_bytes(), _recorded(folder / "run.h5", "norms", 2)),
    ]


def mappings(folder: Path) -> list[Seed]:
    """Return the mappings that come with probe, and small ones with all that the language has."""
    shipped = [Seed(path.stem, ".yaml", path.read_bytes()) for path in sorted(library().values())[:6]]
    small = (
        "_Net:\n  embed: embed\n  up: up\n  head: head\n",
        "TopLayer:\n  up: up\nLinear:\n  params:\n    weight: weight\n    bias: {to: bias, permute: [0]}\n",
        "_Net:\n  up: up\n  'layers.{i}?': 'blocks.{2*i+1}'\n  ignore:\n    - head\n    - embed\n",
        "_Net:\n  up: {to: up, params: {weight: {to: weight, transpose: false}}}\n",
    )
    return [*shipped, *(Seed(f"small {number}", ".yaml", text.encode()) for number, text in enumerate(small))]


def options(folder: Path) -> list[Seed]:
    """Return configurations of `probe.start`, and rules of tolerances."""
    config = {"task": "tensor", "steps": [0, "10-20", "every 100"], "ranks": [0], "modules": ["a.*", "!b"],
              "phases": ["forward", "loss"], "on_nonfinite": True, "on_loss_jump": 3.0, "tensors": ["*"]}  # fmt: skip
    rules = "- path: up\n  phase: forward\n  role: output\n  atol: 1e-5\n  rtol: 1.0e-3\n- path: '*'\n  ignore: true\n"
    return [
        Seed("config json", ".json", json.dumps(config).encode()),
        Seed("config yaml", ".yaml", "\n".join(f"{k}: {json.dumps(v)}" for k, v in config.items()).encode()),
        Seed("rules", ".rules.yaml", rules.encode()),
    ]


def curves(folder: Path) -> list[Seed]:
    """Return curves in each format that is read, but recordings."""
    rows = [(step, round(5 / (step + 1) + 1, 6), round(2 - step / 30, 4), 1e-4) for step in range(24)]
    objects = [dict(zip(("step", "loss", "grad_norm", "lr"), row, strict=True)) for row in rows]
    megatron = [
        f" [2026-01-02] iteration {s:8d}/ 100 | consumed samples: {s * 64} | learning rate: {r:.6E} | lm loss: {v:.6E} | "
        f"grad norm: {g:.3f} |" for s, v, g, r in rows
    ]  # fmt: skip
    mindformers = [
        f"INFO - Epoch:[ 1/ 2], step:[ {s + 1:4d}/ 100], loss: {v:5.3f}, per_step_time: 10ms, lr: {r}, global_norm: {g}"
        for s, v, g, r in rows
    ]
    return [
        Seed("csv", ".csv", "\n".join(["step,loss,grad_norm,lr", *(",".join(map(str, row)) for row in rows)]).encode()),
        Seed("json lines", ".jsonl", "\n".join(map(json.dumps, objects)).encode()),
        Seed("trainer state", ".json", json.dumps({"log_history": objects}).encode()),
        Seed("megatron", ".log", "\n".join(megatron).encode()),
        Seed("mindformers", ".log", "\n".join(mindformers).encode()),
        Seed("events", ".tfevents", b"".join(_event(s, {"loss": v, "grad_norm": g}) for s, v, g, _ in rows)),
    ]


def _event(step: int, values: Mapping[str, float]) -> bytes:
    body = b""
    for tag, value in values.items():
        inner = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + np.float32(value).tobytes()
        body += b"\x0a" + bytes([len(inner)]) + inner
    record = b"\x09" + np.float64(1.0).tobytes() + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(body)]) + body
    head = len(record).to_bytes(8, "little")
    return head + masked_crc32c(head).to_bytes(4, "little") + record + masked_crc32c(record).to_bytes(4, "little")


def checkpoints(folder: Path) -> list[Seed]:
    """Return weights in each format that is read."""
    arrays = {
        "up.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "up.bias": np.zeros(3, np.float32),
        "head.weight": np.ones((2, 3), ml_dtypes.bfloat16),
        "steps": np.array(7, np.int64),
    }
    shard = [Stored(name, array.dtype, array.shape) for name, array in arrays.items()]
    found = []
    for suffix, framework in FRAMEWORKS.items():
        write_file(folder / f"model{suffix}", shard, arrays.__getitem__, framework)
        found.append(Seed(suffix, suffix, (folder / f"model{suffix}").read_bytes()))
    return [*found, Seed("torch", ".bin", torch_zip()), Seed("torch 1.5", ".bin", torch_legacy()),
            Seed("torch deflated", ".pt", torch_zip(zipfile.ZIP_DEFLATED))]  # fmt: skip


def torch_zip(compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return what torch.save writes of a state_dict of one weight, without torch."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + state_dict() + b".")
        archive.writestr("archive/byteorder", b"little")
        archive.writestr("archive/data/0", np.arange(6, dtype=np.float32).tobytes())
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()


def batches(folder: Path) -> list[Seed]:
    """Return two batches with all that may stand in one."""
    made = [
        {"input_ids": np.arange(6).reshape(2, 3) + n, "mask": np.ones((2, 3), bool), "text": ["a", "b"], "n": n,
         "pair": (np.float32(n), np.zeros((1, 2), ml_dtypes.bfloat16)), "none": None, "names": np.array(["x", "yz"])}
        for n in range(2)
    ]  # fmt: skip
    path = folder / "batches.zip"
    path.unlink(missing_ok=True)
    save_batches(made, path)
    return [Seed("batches", ".zip", path.read_bytes())]


SEEDS: dict[str, Callable[[Path], list[Seed]]] = {
    "recordings": recordings, "mappings": mappings, "options": options, "curves": curves, "checkpoints": checkpoints,
    "batches": batches,
}  # fmt: skip
