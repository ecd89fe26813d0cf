"""The pairs of models: how a recording of each side is made, and the truth."""

from __future__ import annotations

import importlib
import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from benchmarks.matching.truth import Truth, read_truth
from probe.records import ModuleInfo
from probe.structure.printed import Printed, read_printed, write_structure

ROOT = Path(__file__).resolve().parents[2]
_TRUTHS = Path(__file__).parent / "truths"


@dataclass(frozen=True)
class Text:
    """A model of which there is only what print shows."""

    file: str
    """below the top of the repository"""
    framework: str = "torch"

    def read(self) -> Printed:
        return read_printed((ROOT / self.file).read_text(encoding="utf-8"), self.file, self.framework)


@dataclass(frozen=True)
class ModelPair:
    """Two models, and which module is which."""

    title: str
    truth: str
    """file in ``truths``"""
    run: str = ""
    """module in ``models`` whose two models are run, or"""
    a: Text | None = None
    b: Text | None = None

    def record(self, folder: Path) -> tuple[Path, Path]:
        """Write a recording of each side; return their paths."""
        files = folder / "a.h5", folder / "b.h5"
        if self.run:
            _run(importlib.import_module(f"benchmarks.matching.models.{self.run}").pair, files)
        else:
            for text, file in zip((self.a, self.b), files, strict=True):
                write_structure(file, text.read(), {})
        return files

    def truth_of(self, modules_a: list[ModuleInfo], modules_b: list[ModuleInfo]) -> Truth:
        text = (_TRUTHS / f"{self.truth}.txt").read_text(encoding="utf-8")
        return read_truth(text, [m.path for m in modules_a], [m.path for m in modules_b])


def _run(pair: Callable, files: tuple[Path, Path]) -> None:
    """Record one step of two models with the same weights and inputs, and see that they return the same."""
    import torch

    import probe

    torch.manual_seed(0)
    models = pair()
    returned = []
    for model, file in zip(models[:2], files, strict=True):
        probe.start(model, file)
        out = model(*models[2])
        out = getattr(out, "logits", out)
        loss = out.pow(2).mean()
        loss.backward()
        probe.step(loss=loss)
        probe.stop()
        returned.append(out.detach())
    torch.testing.assert_close(*returned, atol=1e-4, rtol=1e-4)


def scramble(file: Path, seed: int = 0) -> dict[str, str]:
    """Give every module of a recording a random string for a name; return the old path of every new one.

    Numbers stay: they are places in a list. So do classes, and what a module calls its own parameters.
    """
    rng = np.random.default_rng(seed)
    new: dict[str, str] = {}

    def renamed(path: str) -> str:
        parts = path.split(".") if path else []
        for part in parts:
            if not part.isdigit() and part not in new:
                new[part] = "".join(rng.choice(list(string.ascii_lowercase), 8))
        return ".".join(new.get(part, part) for part in parts)

    with h5py.File(file, "r+") as recording:
        modules, parameters = recording["modules"][:], recording["parameters"][:]
        paths = [path.decode() for path in modules["path"]]
        modules["path"] = [renamed(path) for path in paths]
        for row in parameters:
            owners = (name.rpartition(".") for name in json.loads(row["names"]))
            row["names"] = json.dumps([f"{renamed(owner)}{dot}{slot}" for owner, dot, slot in owners])
        recording["modules"][:], recording["parameters"][:] = modules, parameters
    return {renamed(path): path for path in paths}


def _texts(title: str, truth: str, a: Text, b: Text) -> ModelPair:
    return ModelPair(title, truth, a=a, b=b)


def _skeleton(name: str, framework: str = "torch") -> Text:
    return Text(f"tests/skeletons/{name}.txt", framework)


def _megatron(title: str, name: str, truth: str = "") -> ModelPair:
    return _texts(
        f"Megatron ⟷ transformers {title}", truth or f"megatron-{name}", _skeleton(f"megatron-core-{name}"),
        _skeleton(f"transformers-{name}"),
    )  # fmt: skip


PAIRS = {
    "qwen2.5-vl": _texts(
        "MindSpeed-MM ⟷ LLaMA-Factory Qwen2.5-VL", "qwen2.5-vl",
        Text("tests/data/mindspeed-mm-qwen25vl.txt"), Text("tests/data/llamafactory-qwen25vl.txt"),
    ),
    "qwen2.5-mindspeed": _texts(
        "MindSpeed-LLM ⟷ LLaMA-Factory Qwen2.5", "mindspeed-llm-qwen2.5", _skeleton("mindspeed-llm-qwen2.5"),
        _skeleton("llamafactory-qwen2.5"),
    ),
    "llama-megatron": _megatron("Llama", "llama", "megatron-dense"),
    "qwen2-megatron": _megatron("Qwen2", "qwen2", "megatron-dense"),
    "qwen3-megatron": _megatron("Qwen3", "qwen3"),
    "mixtral-megatron": _megatron("Mixtral", "mixtral"),
    "qwen2-moe-megatron": _megatron("Qwen2-MoE", "qwen2-moe"),
    "qwen3-moe-megatron": _megatron("Qwen3-MoE", "qwen3-moe"),
    "deepseek-v3-megatron": _megatron("DeepSeek-V3", "deepseek-v3"),
    "qwen2": ModelPair("Megatron-style ⟷ transformers Qwen2", "megatron-style-dense", run="qwen2"),
    "mixtral": ModelPair("experts in a list ⟷ stacked, Mixtral", "megatron-style-mixtral", run="mixtral"),
    "vit": ModelPair("timm-style ⟷ transformers ViT", "timm-vit", run="vit"),
    "bert": ModelPair("TransformerEncoder ⟷ transformers BERT", "bert-encoder", run="bert"),
    "whisper": ModelPair("OpenAI's ⟷ transformers Whisper", "whisper", run="whisper"),
    "unet": ModelPair("U-Net ⟷ the same with other block names", "unet", run="unet"),
    "llama-meta": ModelPair("Meta ⟷ transformers Llama", "llama-meta", run="llama"),
    "llama-meta-tree": _texts(
        "Meta ⟷ transformers Llama, structure", "llama-meta", _skeleton("meta-llama"), _skeleton("transformers-llama")
    ),
    "vit-timm-tree": _texts(
        "timm ⟷ transformers ViT, structure", "timm-vit", _skeleton("timm-vit"), _skeleton("transformers-vit")
    ),
    "bert-tree": _texts(
        "TransformerEncoder ⟷ transformers BERT, structure", "torch-bert", _skeleton("torch-bert"),
        _skeleton("transformers-bert"),
    ),
    "bert-paddlenlp": _texts(
        "PaddleNLP ⟷ transformers BERT", "paddlenlp-bert", _skeleton("paddlenlp-bert", "paddle"),
        _skeleton("transformers-bert"),
    ),
    "bert-mlm-paddlenlp": _texts(
        "PaddleNLP ⟷ transformers BERT, masked language model", "paddlenlp-bert-mlm",
        _skeleton("paddlenlp-bert-mlm", "paddle"), _skeleton("transformers-bert-mlm"),
    ),
    "llama-paddlenlp": _texts(
        "PaddleNLP ⟷ transformers Llama", "paddlenlp-llama", _skeleton("paddlenlp-llama", "paddle"),
        _skeleton("transformers-llama"),
    ),
    "qwen2-paddlenlp": _texts(
        "PaddleNLP ⟷ transformers Qwen2", "paddlenlp-qwen2", _skeleton("paddlenlp-qwen2", "paddle"),
        _skeleton("transformers-qwen2"),
    ),
    "qwen2-vllm": _texts("vLLM ⟷ transformers Qwen2", "vllm", _skeleton("vllm-qwen2"), _skeleton("transformers-qwen2")),
    "llama-vllm": _texts("vLLM ⟷ transformers Llama", "vllm", _skeleton("vllm-llama"), _skeleton("transformers-llama")),
    "qwen2-sglang": _texts(
        "SGLang ⟷ transformers Qwen2", "sglang", _skeleton("sglang-qwen2"), _skeleton("transformers-qwen2")
    ),
    "llama-mindformers": _texts(
        "MindFormers ⟷ transformers Llama", "mindformers-transformers", _skeleton("mindformers-llama", "mindspore"),
        _skeleton("transformers-llama"),
    ),
    "qwen2-mindformers": _texts(
        "MindFormers ⟷ transformers Qwen2", "mindformers-transformers", _skeleton("mindformers-qwen2", "mindspore"),
        _skeleton("transformers-qwen2"),
    ),
    "llama-mindformers-megatron": _texts(
        "Megatron ⟷ MindFormers Llama", "megatron-mindformers", _skeleton("megatron-core-llama"),
        _skeleton("mindformers-llama", "mindspore"),
    ),
    "qwen2-mindformers-megatron": _texts(
        "Megatron ⟷ MindFormers Qwen2", "megatron-mindformers", _skeleton("megatron-core-qwen2"),
        _skeleton("mindformers-qwen2", "mindspore"),
    ),
    "cnn": ModelPair("ResNet ⟷ the same with other block names", "cnn", run="cnn"),
    "lstm": ModelPair("LSTM ⟷ loop over cells", "lstm", run="lstm"),
}  # fmt: skip

OTHER_TREES = {
    "llama-megatron-te": _texts(
        "Megatron, Transformer Engine ⟷ transformers Llama", "megatron-dense-te", _skeleton("megatron-core-llama-te"),
        _skeleton("transformers-llama"),
    ),
    "mixtral-megatron-te": _texts(
        "Megatron, Transformer Engine ⟷ transformers Mixtral", "megatron-mixtral-te", _skeleton("megatron-core-mixtral-te"),
        _skeleton("transformers-mixtral"),
    ),
    "deepseek-v3-megatron-te": _texts(
        "Megatron, Transformer Engine ⟷ transformers DeepSeek-V3", "megatron-deepseek-v3-te",
        _skeleton("megatron-core-deepseek-v3-te"), _skeleton("transformers-deepseek-v3"),
    ),
    "llama-mindformers-megatron-te": _texts(
        "Megatron, Transformer Engine ⟷ MindFormers Llama", "megatron-mindformers-te", _skeleton("megatron-core-llama-te"),
        _skeleton("mindformers-llama", "mindspore"),
    ),
    "mixtral-megatron-grouped": _texts(
        "Megatron, legacy grouped experts ⟷ transformers Mixtral", "megatron-mixtral-grouped",
        _skeleton("megatron-core-mixtral-grouped"), _skeleton("transformers-mixtral"),
    ),
    "llama-mindformers-concat": _texts(
        "MindFormers, qkv_concat ⟷ transformers Llama", "mindformers-transformers-concat",
        _skeleton("mindformers-llama-concat", "mindspore"), _skeleton("transformers-llama"),
    ),
}  # fmt: skip
"""further trees that the ready-made mappings fit; with no mapping they are not measured"""
