"""What documents show runs: the demo's two models, the test for continuous integration, the guides to inputs and to parallel runs, msprobe's scripts."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import train_hf
import train_megatron
import yaml
from convert_qwen2 import megatron_config, megatron_from, to_huggingface, to_megatron
from megatron_gpt import GPTModel, left_to_right
from train_hf import fixed_batch, next_token_loss, small_qwen2
from train_megatron import FAULTS

import probe
from probe import origins
from probe.answer.result import Kind
from probe.mapping import library, load_mapping
from probe.ranks.dims.language import parsed
from probe.records import Phase
from probe.testing import Recording
from tests.limits import HANGS

# ---- The demo's two models: equal mathematics, a mapping that fits both trees, faults where they say.

REPO = Path(__file__).parents[3]
EXAMPLES = REPO / "docs" / "examples"


EXPECTED_PAIRS = {
    "": "",
    "embedding.word_embeddings": "model.embed_tokens",
    "decoder.final_layernorm": "model.norm",
    "output_layer": "lm_head",
}
EXPECTED_PAIRS_PER_LAYER = {
    "": "",
    ".input_layernorm": ".input_layernorm",
    ".self_attention": ".self_attn",
    ".self_attention.linear_proj": ".self_attn.o_proj",
    ".pre_mlp_layernorm": ".post_attention_layernorm",
    ".mlp": ".mlp",
    ".mlp.linear_fc2": ".mlp.down_proj",
}


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / a.norm())


def run_megatron(model: GPTModel) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Loss and every layer's output of one forward pass."""
    outputs = []
    hooks = [
        layer.register_forward_hook(lambda module, args, output: outputs.append(output[0].detach()))
        for layer in model.decoder.layers
    ]
    tokens = fixed_batch()
    loss = next_token_loss(model(tokens, *left_to_right(tokens)), tokens)
    for hook in hooks:
        hook.remove()
    return loss, outputs


def test_conversion_is_complete_and_invertible() -> None:
    hf = small_qwen2()
    config = megatron_config(hf.config)
    back = to_huggingface(to_megatron(hf.state_dict(), config), config)
    assert back.keys() == hf.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in hf.state_dict().items())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_loss_and_gradients_agree(attention: str) -> None:
    hf = small_qwen2()
    hf.set_attn_implementation(attention)
    megatron = megatron_from(hf)
    tokens = fixed_batch()

    hf_logits = hf(input_ids=tokens).logits
    megatron_logits = megatron(tokens, *left_to_right(tokens))
    assert relative(hf_logits, megatron_logits) < 1e-5

    hf_loss, megatron_loss = next_token_loss(hf_logits, tokens), next_token_loss(megatron_logits, tokens)
    assert relative(hf_loss, megatron_loss) < 1e-6

    hf_loss.backward()
    megatron_loss.backward()
    gradients = {name: parameter.grad for name, parameter in megatron.named_parameters()}
    gradients = to_huggingface(gradients, megatron.config)
    errors = {name: relative(parameter.grad, gradients[name]) for name, parameter in hf.named_parameters()}
    assert max(errors.values()) < 1e-5, errors


def test_models_are_the_same_for_the_same_seed() -> None:
    first, second = small_qwen2().state_dict(), small_qwen2().state_dict()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert all(tensor.std() > 0 for tensor in first.values())  # no constant bias or norm


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_starts_in_its_layer(fault: str) -> None:
    clean, faulty = megatron_from(small_qwen2()), megatron_from(small_qwen2())
    FAULTS[fault](faulty.decoder.layers[3])
    clean_loss, clean_outputs = run_megatron(clean)
    faulty_loss, faulty_outputs = run_megatron(faulty)
    errors = [relative(a, b) for a, b in zip(clean_outputs, faulty_outputs, strict=True)]
    assert errors[:3] == [0, 0, 0]
    if fault != "grad":
        assert errors[3] > 1e-6
        return
    assert errors[3:] == [0, 0, 0]
    clean_loss.backward()
    faulty_loss.backward()
    differ = {
        name
        for (name, a), b in zip(clean.named_parameters(), faulty.parameters(), strict=True)
        if not torch.equal(a.grad, b.grad)
    }
    assert differ == {"decoder.layers.3.pre_mlp_layernorm.weight"}


def translate(path: str, sections: dict[str, dict[str, str]], classes: dict[str, str]) -> str:
    """The path on the other side, by the published format's rule, written down as plainly as possible."""
    walked: list[str] = []
    rest = path.split(".") if path else []
    translated: list[str] = []
    while rest:
        section = sections.get(classes[".".join(walked)], {})
        keys = [key.split(".") for key in section]
        fitting = [key for key in keys if key == rest[: len(key)]]
        key = max(fitting, key=len, default=rest[:1])
        translated += section.get(".".join(key), key[0]).split(".")
        walked, rest = walked + key, rest[len(key) :]
    return ".".join(translated)


def test_mapping_pairs_what_corresponds_and_nothing_else() -> None:
    hf = small_qwen2()
    megatron = megatron_from(hf)
    classes = {path: type(module).__name__ for path, module in megatron.named_modules()}
    written = yaml.safe_load((REPO / "layer_mappings" / "megatron-core" / "qwen2.yaml").read_text())
    del written["ignore"]  # is for another layer spec
    assert written.keys() <= set(classes.values())
    plain = {name: {key: to for key, to in section.items() if isinstance(to, str)} for name, section in written.items()}

    hf_modules = dict(hf.named_modules())
    pairs = {path: translate(path, plain, classes) for path in classes}
    pairs = {path: other for path, other in pairs.items() if other in hf_modules}
    expected = dict(EXPECTED_PAIRS) | {"decoder.layers": "model.layers"}
    for n in range(6):
        for ours, theirs in EXPECTED_PAIRS_PER_LAYER.items():
            expected[f"decoder.layers.{n}{ours}"] = f"model.layers.{n}{theirs}"
    assert pairs == expected


def test_scripts_write_recordings_and_agree_on_the_loss(tmp_path: Path) -> None:
    printed = []
    for script, out in [("train_hf.py", "a.h5"), ("train_megatron.py", "b.h5")]:
        command = [sys.executable, str(EXAMPLES / script), "--out", str(tmp_path / out), "--steps", "2"]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=HANGS)
        assert finished.returncode == 0, finished.stderr
        assert (tmp_path / out).exists()
        printed.append([float(line.split()[-1]) for line in finished.stdout.splitlines() if "loss" in line])
    assert printed[0] == pytest.approx(printed[1], rel=1e-5)
    assert len(printed[0]) == 2


def record(folder: Path, script: str, *more: str) -> Path:
    main = {"hf": train_hf.main, "megatron": train_megatron.main}[script]
    out = str(folder / f"{script}.h5")
    main.main(["--task", "tensor", "--out", out, "--steps", "1", *more], standalone_mode=False)
    return Path(out)


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("hf"), "hf")


def test_what_one_side_computes_without_a_module_is_not_called_missing(hf: Path, tmp_path: Path) -> None:
    a, b = hf, record(tmp_path, "megatron", "--fault", "gelu", "--fault-layer", "3")
    first = probe.compare(a, b, "megatron-core/qwen2").first_divergence
    hint = "what B computes in the place of this SiLUActivation is not the same: look at it, and at its settings"
    assert first is not None and (first.phase, first.kind, first.hint) == (Phase.FORWARD, Kind.INTRODUCED, hint)
    assert (
        first.a[0].path == "model.layers.3.mlp"
        and "not compared on the way: model.layers.3.mlp.act_fn" in first.evidence
    )


def test_a_module_of_one_side_whose_input_was_not_compared_is_not_blamed_alone(hf: Path, tmp_path: Path) -> None:
    """What lies before it in the same code, such as rotary embeddings, may be wrong as well."""
    a, b = hf, record(tmp_path, "megatron", "--fault", "mask", "--fault-layer", "3")
    first = probe.compare(a, b, "megatron-core/qwen2").first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.FORWARD, Kind.INTRODUCED)
    assert (first.a[0].path, first.b[0].path) == ("model.layers.3.self_attn", "decoder.layers.3.self_attention")
    assert first.evidence[1] == "not compared on the way: decoder.layers.3.self_attention.core_attention"


def test_what_was_not_compared_is_nearer_than_what_the_whole_model_is_not_given(hf: Path, tmp_path: Path) -> None:
    """B gets two more arguments; without a pair for the faulty norm, its layer is named, and that it was not compared."""
    a, b = hf, record(tmp_path, "megatron", "--fault", "eps", "--fault-layer", "3")
    lines = library()["megatron-core/qwen2"].read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "map.yaml").write_text("".join(line for line in lines if "pre_mlp_layernorm: post" not in line))
    found = probe.compare(a, b, tmp_path / "map.yaml", min_confidence=1)
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "model.layers.3")
    way = "not compared on the way: model.layers.3.post_attention_layernorm"
    assert any(each.startswith(way) for each in first.evidence)


# ---- The test for continuous integration that docs/guide/comparing.md shows: it passes, and fails with the report.

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "comparing.md"
MODELS = """
import torch
from torch import nn

def make_baseline(eps=1e-5):
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm = nn.Linear(16, 32), nn.LayerNorm(32, eps)
        def forward(self, x):
            return self.norm(self.up(x))
    return Net()

def make_port():
    return make_baseline({eps})
"""


def test_the_recipe(tmp_path: Path) -> None:
    (recipe,) = (
        block
        for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
        if "def test_" in block
    )
    assert "from models import" in recipe
    for name, eps in (("right", "1e-5"), ("wrong", "1e-2")):
        (tmp_path / f"test_{name}.py").write_text(recipe.replace("from models", f"from {name}"), encoding="utf-8")
        (tmp_path / f"{name}.py").write_text(MODELS.replace("{eps}", eps), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert re.findall(r"^FAILED (\w+)\.py", done.stdout, re.M) == ["test_wrong"]
    assert "DIVERGED" in done.stdout and "B norm" in done.stdout and "assert_aligned()" in done.stdout


# ---- What docs/guide/inputs.md shows runs.

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "inputs.md"


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(origins, "_facts", {})
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        names: dict[str, object] = {}
        exec(compile(code, str(GUIDE), "exec"), names)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
    said = capsys.readouterr()
    assert "first difference: batch 0" in said.out and "seed 42, deterministic: " in said.err
    assert names["logits"].shape == (8, 10)  # type: ignore[attr-defined]


# ---- The program and the commands of docs/guide/parallel.md run as they stand there, and print what it shows.

GUIDE_PARALLEL = Path(__file__).parents[3] / "docs" / "guide" / "parallel.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [text for name, text in BLOCK.findall(GUIDE_PARALLEL.read_text(encoding="utf-8")) if name == kind]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the commands have run, and what they printed."""
    folder = tmp_path_factory.mktemp("guide") / "work"
    folder.mkdir()
    (folder / "train.py").write_text(blocks("python")[0], encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    said = ""
    for command in (line[2:] for text in blocks("console") for line in text.splitlines()):
        done = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=HANGS)
        assert done.returncode == int("faulty.h5" in command and "compare" in command), done.stdout + done.stderr
        said += done.stdout
    return folder, said


def test_the_commands_print_what_the_page_shows(printed: tuple[Path, str]) -> None:
    _, said = printed
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for text in blocks("text"):
        for line in text.splitlines():
            assert " ".join(line.split()) in lines
    assert "ALIGNED" in said and "ranks 2 of 2: tp 2" in " ".join(said.split())


def test_open_gives_whole_weights(printed: tuple[Path, str]) -> None:
    folder, _ = printed
    with probe.open(folder / "tp2.h5") as ranks, probe.open(folder / "one.h5") as one:
        for path in ("fc1", "fc2"):
            assert (ranks[path].param[0].values() == one[path].param[0].values()).all()


def test_the_dims_of_the_page_can_be_read() -> None:
    mapping = load_mapping(yaml.safe_load(blocks("yaml")[0]))
    assert len(mapping.dims) == 4
    assert [parsed(text).groups for _, text in mapping.dims] == [("tp",), (), ("tp",), ("tp",)]


# ---- Scripts written for mindstudio-probe, with one import changed, in processes of their own; and dropout that is off.

ROOT = Path(__file__).parents[3]
CONFIG = {
    "task": "statistics", "dump_path": "./data_dump", "rank": [], "step": [0, 1], "level": "L1", "async_dump": False, "extra_info": True,
    "statistics": {"scope": [], "list": [], "tensor_list": ["fc"], "data_mode": ["all"], "summary_mode": "statistics"},
}  # fmt: skip
SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger, seed_all
seed_all(seed=1234, mode=True, rm_dropout=True)
debugger = PrecisionDebugger(config_path="./config.json")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        hidden = F.dropout(F.relu(self.drop(self.fc(x))), 0.3, self.training)
        assert torch.equal(hidden, F.relu(self.fc(x)))  # neither module nor function drops
        return self.out(hidden)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for data in torch.randn(3, 10, 8):
    debugger.start(model)
    loss = model(data).sum()
    loss.backward()
    debugger.stop()
    debugger.step()
    optimizer.step()
    optimizer.zero_grad()
"""
CHANGED = SCRIPT.replace("from msprobe.pytorch import", "from probe.compat.msprobe import")


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PROBE_QUIET": ""}
    command = [sys.executable, *(arguments or ["train.py"])]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_one_import_is_enough(tmp_path: Path) -> None:
    sides = tmp_path / "bench", tmp_path / "npu"
    for side in sides:
        side.mkdir()
    scripts = CHANGED, CHANGED.replace("self.out(hidden)", "self.out(hidden) * 1.01")
    for side, script in zip(sides, scripts, strict=True):
        done = run(side, script)
        assert done.returncode == 0, done.stderr
        said = re.findall("ProbeWarning: (.*)", done.stderr)
        assert said == []
        assert "dropout off: p=0 in torch.nn.functional.dropout" in done.stderr
        (path,) = (side / "data_dump").iterdir()
        seen = Recording(path)
        assert [int(step) for step in seen.steps["step"]] == [0, 1]
        assert {s.path for s in seen.seen if s.values is not None} == {"fc", "fc/linear.0"}
        assert {s.step for s in seen.find(phase="update", role="delta")} == {0, 1}
        assert seen.notes == []
    (tmp_path / "compare.json").write_text(
        json.dumps({"npu_path": "./npu/data_dump/step0/rank/dump.json", "bench_path": "./bench/data_dump/step0/rank/dump.json",
                    "stack_path": "./npu/data_dump/step0/rank/stack.json", "is_print_compare_log": True})
    )  # fmt: skip
    done = run(tmp_path, "", "-m", "probe", "compare", "-i", "compare.json", "--format", "json")
    assert done.returncode == 1, done.stderr
    first = json.loads(done.stdout)["divergences"][0]
    assert (first["phase"], first["a"][0]["path"]) == ("forward", "")
