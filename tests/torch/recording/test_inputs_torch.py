"""Inputs, batches, seeds, schedules and settings of PyTorch."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader

import probe
from probe import origins
from probe.adapters.torch.adapter import TorchAdapter
from probe.adapters.torch.environment import environment
from probe.answer.result import Verdict
from probe.errors import ConfigError
from probe.report.text import render
from probe.settings.advising import advice
from probe.settings.environment import Environment
from probe.settings.reading.dialects import source_of
from probe.settings.reading.recordings import recorded
from probe.settings.resolving import resolved
from probe.settings.side import Settings
from probe.settings.source import Form
from probe.settings.table import MODELS

# ---- Inputs, batches and seeds of PyTorch.

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
]


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(origins, "_facts", {})
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_bits_of_the_arrays(dtype: str) -> None:
    text = f"{dtype}[3,4] < 100" if "int" in dtype else f"{dtype}[3,4]" if "float" in dtype else "bool[3,4] mask"
    plain = probe.make_inputs({"x": text})["x"]
    for to in ("torch", torch.nn.Linear(2, 2), torch.nn.ReLU()):
        made = probe.make_inputs({"x": text}, to=to)["x"]
        assert str(made.dtype) == f"torch.{dtype}" and tuple(made.shape) == (3, 4)
        bits = (
            made
            if dtype == "bool"
            else made.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[made.itemsize])
        )
        assert bits.numpy().tobytes() == plain.tobytes()


def test_a_tensor_does_not_write_into_an_array() -> None:
    from probe.adapters.torch.seeding import to_tensor

    array = np.zeros(3)
    to_tensor(array).fill_(1)
    assert not array.any()


def test_the_device_of_the_model() -> None:
    model = torch.nn.Linear(2, 2, device="meta")
    assert probe.make_inputs({"x": "float32[2]"}, to=model)["x"].is_meta


def test_dtypes_that_pytorch_lacks() -> None:
    from probe.reproducibility.inputs import tensor_maker

    with pytest.raises(
        ConfigError, match="no tensor of torch can be made from <U1|no tensor of torch can be made from str"
    ):
        tensor_maker("torch")(np.array(["a"]))


def loader(seed: int = 0) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    data = [{"ids": torch.arange(3) + i, "x": torch.full((2,), float(i)).bfloat16(), "name": f"n{i}"} for i in range(8)]
    return DataLoader(data, batch_size=3, shuffle=True, generator=generator)


def test_a_data_loader_is_replayed(tmp_path: Path) -> None:
    assert probe.save_batches(loader(), tmp_path / "b.npz") == 3
    replayed = probe.load_batches(tmp_path / "b.npz", like=torch.nn.Linear(2, 2))
    for before, after in zip(loader(), replayed, strict=True):
        assert before.keys() == after.keys() and before["name"] == after["name"]
        for name in ("ids", "x"):
            assert before[name].dtype == after[name].dtype and torch.equal(before[name], after[name])
    assert probe.compare_batches(loader(), tmp_path / "b.npz").equal
    different = probe.compare_batches(loader(), loader(seed=1)).difference
    assert different is not None and (different.batch, different.field) == (0, "ids")


def test_tensors_that_need_gradients_and_those_that_cannot_be_saved(tmp_path: Path) -> None:
    needs = torch.ones(2, requires_grad=True)
    probe.save_batches([{"x": needs * 2, "y": torch.ones(2, 3).T}], tmp_path / "b.npz")
    (loaded,) = probe.load_batches(tmp_path / "b.npz", like="torch")
    assert loaded["x"].tolist() == [2, 2] and loaded["y"].shape == (3, 2) and not loaded["x"].requires_grad
    with pytest.raises(
        ConfigError, match="x of batch 0 is one of the tensors of sparse_coo layout, which cannot be written"
    ):
        probe.save_batches([{"x": torch.ones(2).to_sparse()}], tmp_path / "c.npz")


# Seeds


def drawn() -> tuple[object, ...]:
    dropped = torch.nn.functional.dropout(torch.ones(20)).tolist()
    return random.random(), np.random.rand(), torch.rand(1).item(), torch.nn.Linear(2, 2).weight.tolist(), dropped


def test_twice_the_same_seed() -> None:
    probe.seed_all(3, deterministic=False)
    first = drawn()
    probe.seed_all(3, deterministic=False)
    assert drawn() == first


def test_determinism_is_switched_on() -> None:
    seeding = probe.seed_all(3)
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert "torch.use_deterministic_algorithms" in seeding.done
    assert "PyTorch's operations that have no deterministic form: it warns when one runs" in seeding.missing


def test_a_switch_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "torch.backends.cudnn.enable, which was set: PyTorch reads torch.backends.cudnn.enabled"
    assert text not in probe.seed_all(3).missing
    monkeypatch.setattr(torch.backends.cudnn, "enable", False, raising=False)
    assert text in probe.seed_all(3).missing


def test_without_determinism_the_switches_stay() -> None:
    seeding = probe.seed_all(3, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled() and "torch.manual_seed" in seeding.done
    assert not torch.backends.cudnn.deterministic


def test_cublas_has_to_be_told_before_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    late = probe.seed_all(3)
    assert "cuBLAS: CUDA is in use already, CUBLAS_WORKSPACE_CONFIG=:4096:8 has to be set before" in late.missing
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    early = probe.seed_all(3)
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in early.done and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def test_a_framework_that_is_not_imported_is_left_alone() -> None:
    code = "import sys, probe; probe.seed_all(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_seeds_stand_in_the_recording(tmp_path: Path) -> None:
    probe.seed_all(9)
    model = torch.nn.Linear(2, 2)
    x = probe.make_inputs({"x": "float32[3,2]"}, to=model)["x"]
    with probe.capture(model, tmp_path / "a.h5"):
        model(x).sum().backward()
    with probe.open(tmp_path / "a.h5") as run:
        facts = run._reader.environment
    assert int(facts["seed"]) == 9 and "make_inputs, seed 42: x float32[3,2] normal" in facts["inputs"]
    assert bool(facts["deterministic_algorithms"]) and facts["initial_seed"] == "9"


# ---- Schedules of PyTorch and transformers: simulated from where they stand, on copies that leave everything as it was.


def optimizer(*rates: float) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.ones(3))], "lr": rate} for rate in rates or (0.1,)]
    return torch.optim.SGD(groups, momentum=0.9)


def sequential(opt: Any) -> Any:
    inner = [schedules.LinearLR(opt, 0.1, total_iters=5), schedules.CosineAnnealingLR(opt, 20)]
    return schedules.SequentialLR(opt, inner, [5])


class Owner:
    """Has a model, and the function of the step: a copy of it would copy both."""

    def __init__(self) -> None:
        self.model = self

    def factor(self, step: int) -> float:
        return 1 / (1 + step)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise AssertionError("the program's own objects were copied")


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda opt: schedules.StepLR(opt, 3, 0.5),
    "cosine": lambda opt: schedules.CosineAnnealingLR(opt, 20),
    "one cycle": lambda opt: schedules.OneCycleLR(opt, 0.5, total_steps=40),
    "sequential": sequential,
    "chained": lambda opt: schedules.ChainedScheduler(
        [schedules.ConstantLR(opt, 0.5, 4), schedules.ExponentialLR(opt, 0.9)]
    ),
    "bound method": lambda opt: schedules.LambdaLR(opt, Owner().factor),
    "transformers linear": lambda opt: transformers.get_linear_schedule_with_warmup(opt, 5, 40),
    "transformers cosine": lambda opt: transformers.get_cosine_schedule_with_warmup(opt, 5, 40),
}


def as_trained(schedule: Any, steps: int) -> list[tuple[float, ...]]:
    """Return the rates that a training has."""
    found = []
    for _ in range(steps):
        found.append(tuple(group["lr"] for group in schedule.optimizer.param_groups))
        schedule.optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("already", [0, 7])
@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")
def test_what_is_simulated_is_what_a_training_has(name: str, already: int) -> None:
    opt = optimizer(0.1, 0.2)
    schedule = SCHEDULES[name](opt)
    for parameter in (p for group in opt.param_groups for p in group["params"]):
        parameter.grad = torch.ones(3)
    as_trained(schedule, already)
    state, weights = copy.deepcopy(opt.state_dict()), [group["params"][0].clone() for group in opt.param_groups]
    last = schedule.get_last_lr()
    found = probe.compare_schedules(schedule, schedule, steps=20)
    assert found.equal
    assert str(opt.state_dict()) == str(state) and schedule.get_last_lr() == last
    assert all(torch.equal(group["params"][0], weight) for group, weight in zip(opt.param_groups, weights, strict=True))
    expected = as_trained(schedule, 20)
    rates = list(zip(*found.a.tolist(), strict=True))
    assert [rate * (2 // len(found.a)) for rate in rates] == [pytest.approx(each) for each in expected]


def test_groups_are_held_against_each_other_in_order() -> None:
    mine, theirs = optimizer(0.1, 0.2), optimizer(0.1, 0.3)
    found = probe.compare_schedules(schedules.StepLR(mine, 3), schedules.StepLR(theirs, 3), 5)
    assert (found.first, found.group) == (0, 1) and "part at step 0, group 1:" in str(found)
    with pytest.raises(ConfigError, match="A has 2 parameter groups of different rates, B has 1"):
        probe.compare_schedules(schedules.StepLR(mine, 3), [0.1] * 5)


def test_the_state_of_the_optimizer_is_not_copied() -> None:
    opt = optimizer()
    large = opt.param_groups[0]["params"][0]

    class Held:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise AssertionError("copied")

    opt.state[large] = {"exp_avg": Held()}
    assert probe.compare_schedules(schedules.StepLR(opt, 2, 0.1), [0.1, 0.1, 0.01]).equal


def test_schedules_that_cannot_be_simulated() -> None:
    with pytest.raises(ConfigError, match="ReduceLROnPlateau depends on a metric"):
        probe.compare_schedules(schedules.ReduceLROnPlateau(optimizer()), [0.1])
    with pytest.raises(ConfigError, match="OneCycleLR has no more than 11 steps"):
        probe.compare_schedules(schedules.OneCycleLR(optimizer(), 0.5, total_steps=10), lambda step: 0.1, 12)


def test_what_the_trainer_of_this_version_prints_is_read(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from transformers.trainer_callback import PrinterCallback

    for step in range(1, 4):
        logs = {"loss": 10.6123456 / step, "grad_norm": 1.25, "learning_rate": 1e-5, "epoch": step / 10}
        PrinterCallback().on_log(None, SimpleNamespace(is_local_process_zero=True), None, logs=logs)
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(("# " if name == "b.log" else "") + "\n")
    text = capsys.readouterr().out
    (tmp_path / "a.log").write_text(text)
    (tmp_path / "b.log").write_text(f"starting\n{text}")
    found = probe.curves(tmp_path / "a.log", tmp_path / "b.log")
    assert found.kind_a == "Trainer output" and found["loss"].pair.steps.tolist() == [1, 2, 3]
    assert found["loss"].pair.a.tolist() == [10.61, 5.306, 3.537]


# ---- Settings of PyTorch: what is recorded of its switches, what models imply, findings of real models that name their setting.

# What is recorded


def test_the_switches_are_recorded(tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("high")
    try:
        facts = environment()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert facts["float32_matmul_precision"] == "high" and facts["num_threads"] == torch.get_num_threads()
    assert facts["default_dtype"] == "float32" and facts["sdp_kernels"]
    assert "devices" not in facts or torch.cuda.is_initialized()


def test_two_kinds_of_tf32_switches_do_not_stop_a_recording(tmp_path: Path) -> None:
    """PyTorch raises where a program has used the new switch and the old one is asked for."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this version has one kind")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        model = torch.nn.Linear(2, 2)
        with probe.capture(model, tmp_path / "a.h5"):
            model(torch.ones(1, 2)).sum().backward()
            probe.step()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    settings = resolved(recorded(tmp_path / "a.h5"))
    assert settings.source.recorded["matmul_fp32_precision"] == "tf32"
    assert settings.known("tf32") is True


def test_asking_changes_nothing() -> None:
    """Threads may still be set afterwards, CUDA is not started, random numbers go on."""
    state = torch.get_rng_state()
    environment()
    assert torch.equal(state, torch.get_rng_state()) and not torch.cuda.is_initialized()


def test_devices_are_recorded_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here: what is asked for, and that its answer is understood."""
    asked = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "get_device_capability": (7, 0),
        "get_device_name": "Tesla V100",
    }
    for name, answer in asked.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    facts = environment()
    assert facts["devices"] == ["Tesla V100 (compute capability 7.0)"]
    found = advice(Environment("a.h5", {"torch": "2"}, {}, tuple(facts["devices"]), facts, ("bfloat16",)))  # type: ignore[arg-type]
    assert [each.dtype for each in found.unfit] == ["bfloat16"] and found.is_wrong
    assert {step.variable for step in found.missing} >= {"CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert "devices" not in environment(), "asking would start CUDA"


def test_functions_and_dtypes_of_a_configuration_are_recorded_by_name() -> None:
    """As Megatron's TransformerConfig has them."""

    class Config:
        def __init__(self) -> None:
            self.activation_func, self.params_dtype, self.hidden_size = F.silu, torch.bfloat16, 8
            self.init_method = lambda weight: None
            self.nested = torch.nn.Linear(1, 1)

    model = torch.nn.Linear(1, 1)
    model.config = Config()  # type: ignore[assignment]
    found = TorchAdapter().model_config(model)
    assert found["activation_func"] == "silu" and found["params_dtype"] == "torch.bfloat16" and "nested" not in found


# What models imply

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "n_embd": 16, "n_head": 4, "n_layer": 4, "n_positions": 32, "ffn_dim": 24, "word_embed_proj_dim": 16, "head_dim": 4,
    "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "kv_lora_rank": 8,
    "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "n_routed_experts": 4, "num_local_experts": 4, "num_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
INSTALLED = sorted(MODELS.keys() & set(transformers.CONFIG_MAPPING.keys()))


def settings_of(config: Any) -> Settings:
    return resolved(source_of("config.json", Form.ARGUMENTS_JSON, config.to_dict()))


@pytest.mark.parametrize("kind", INSTALLED)
def test_defaults_are_those_of_the_models_class(kind: str) -> None:
    """Where the class has a key, the table's default is its default."""
    given = settings_of(transformers.CONFIG_MAPPING[kind]())
    for name, value in MODELS[kind].items():
        known = given.values.get(name)
        if known is not None and known.origin == "given":
            assert known.value == value, f"{kind}: {name}"


BUILT = ("llama", "qwen2", "qwen3", "gemma2", "mixtral", "deepseek_v3", "gpt2", "gpt_neox")
"""of each family one: building all of them takes half a minute"""


@pytest.mark.parametrize("kind", BUILT)
def test_what_a_models_name_implies_is_what_it_is_built_of(kind: str) -> None:
    own = transformers.CONFIG_MAPPING[kind]()
    config = transformers.CONFIG_MAPPING[kind](**{name: value for name, value in SIZES.items() if hasattr(own, name)})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    names = {name for name, _ in model.named_parameters()}
    classes = {type(module).__name__.lower() for module in model.modules()}
    implied = MODELS[kind]
    has = {
        "normalization": "rmsnorm" if any("rmsnorm" in name for name in classes) else "layernorm",
        "qkv_bias": any(name.endswith(("q_proj.bias", "query.bias", "c_attn.bias", "query_key_value.bias", "q_a_proj.bias")) for name in names),
        "mlp_bias": any(".bias" in name and any(part in name for part in ("mlp", "fc1", "intermediate.dense", "dense_h_to_4h")) and "gate" not in name
                        and "expert" not in name for name in names),
        "gated_mlp": any("gate_proj" in name or "gate_up_proj" in name for name in names),
        "qk_norm": any(each in name for name in names for each in ("q_norm", "k_norm", "q_a_layernorm")),
    }  # fmt: skip
    assert has == {name: implied[name] for name in has}
    assert bool(model.config.tie_word_embeddings) is implied["tie_word_embeddings"]
    if "num_experts" in implied and implied["num_experts"] != 1:
        assert any("expert" in name for name in names)
        assert any("shared_expert" in name for name in names) is bool(
            implied["shared_expert_size"] or kind.startswith("deepseek")
        )


# Findings that name their setting

BASE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "use_cache": False, "tie_word_embeddings": False,
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "eps": ({"rms_norm_eps": 1e-4}, "norm_eps", "rms_norm_eps: 1e-06 in A, 0.0001 in B"),
    "theta": ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, "rope_theta", "rope_theta: 10000 in A, 1000000 in B"),
    "activation": ({"hidden_act": "gelu"}, "activation", "hidden_act: silu in A, gelu in B"),
    "dropout": ({"attention_dropout": 0.3}, "attention_dropout", "attention_dropout: 0 in A, 0.3 in B"),
    "groups": ({"num_key_value_heads": 4}, "num_key_value_heads", "num_key_value_heads: 2 in A, 4 in B"),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("trained")

    def one(name: str, **changes: Any) -> Path:
        path = folder / f"{name}.h5"
        if path.exists():
            return path
        torch.manual_seed(0)
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**BASE, **changes})).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(1))
        with probe.capture(model, path):
            logits = model(input_ids=ids).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
        return path

    return one


@pytest.mark.parametrize("case", CASES)
def test_the_finding_names_the_setting_from_statistics(case: str, trained: Callable[..., Path]) -> None:
    changes, name, said = CASES[case]
    found = probe.compare(trained("plain"), trained(case, **changes))
    first = next((each for each in found.divergences if each.settings), None)
    assert found.verdict is Verdict.DIVERGED and first is not None
    assert first.settings[0] == name and first.hint.replace("rope_parameters.", "").startswith(said)
    assert found.settings[0].difference.setting == name
    assert first is not found.first_divergence or "→ the first divergence" in render(found).plain


def test_the_same_configuration_names_nothing(trained: Callable[..., Path]) -> None:
    found = probe.compare(trained("plain"), trained("again"))
    assert (found.verdict, found.settings) == (Verdict.ALIGNED, ())


def test_one_layers_fault_is_not_its_configurations(trained: Callable[..., Path], tmp_path: Path) -> None:
    """The configurations agree on the eps: another setting that differs is not blamed for a norm."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**BASE, bos_token_id=3)).train()
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-3
    ids = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(1))
    with probe.capture(model, tmp_path / "b.h5"):
        loss = F.cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        probe.step(loss=loss)
    first = probe.compare(trained("plain"), tmp_path / "b.h5").first_divergence
    assert first is not None and first.path == "model.layers.1.input_layernorm" and first.settings == ()
