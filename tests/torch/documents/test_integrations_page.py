"""What docs/guide/integrations.md shows runs against stand-ins with the interfaces of the frameworks' sources."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import probe
from probe.checks.logprobs import check_logprobs
from probe.testing import Recording
from tests.torch import served
from tests.unaided import alone, watched  # noqa: F401

PAGE = (Path(__file__).parents[3] / "docs" / "guide" / "integrations.md").read_text(encoding="utf-8")
SECTIONS = dict(part.partition("\n")[::2] for part in PAGE.split("\n## ")[1:])
IDS = torch.arange(9) * 5 % served.CONFIG.vocab_size


def blocks(section: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)


def run_shell(section: str) -> None:
    """Run the lines of a section that make a shim, and let it be imported."""
    lines = re.findall(r"^    ((?:mkdir|echo) .*)$", SECTIONS[section], re.MULTILINE)
    subprocess.run(["bash", "-ec", "\n".join(lines)], check=True)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> ModuleType:
    """Put a stand-in of a module, and of its packages, where it is imported."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = ".".join(parts[:count])
        if path not in sys.modules:
            monkeypatch.setitem(sys.modules, path, ModuleType(path))
        if count > 1:
            monkeypatch.setattr(
                sys.modules[".".join(parts[: count - 1])], parts[count - 1], sys.modules[path], raising=False
            )
    vars(sys.modules[name]).update(names)
    return sys.modules[name]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "shim"))
    for name in ("msprobe", "msprobe.pytorch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module(monkeypatch, "megatron.core.utils", unwrap_model=lambda model: [each.module for each in model])


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.module = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.parameters(), 0.1)

    def step(self) -> None:
        for _ in range(2):
            self.module(torch.randn(3, 4)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def steps(path: str) -> list[int]:
    return [int(each["step"]) for each in Recording(Path(path)).steps]


@pytest.mark.parametrize("keeps_its_own", [True, False])
def test_verl_records_each_stage_of_a_step(keeps_its_own: bool) -> None:
    run_shell("verl")
    Path("config.json").write_text('{"task": "tensor"}')
    model, own = Wrapped(), None
    for stage, work in (("actor_compute_log_prob", lambda: model.module(torch.ones(1, 4))), ("actor_update", model.step), ("actor_update", model.step)):  # fmt: skip
        pytorch = importlib.import_module("msprobe.pytorch")  # as both versions of its profiler do
        known = own if keeps_its_own else pytorch.PrecisionDebugger._instance
        known = own = known or pytorch.PrecisionDebugger(config_path="config.json", dump_path="first")
        known.service.config.dump_path = f"out/step_1/{stage}"
        known.start(model.module)
        work()
        known.stop()
        known.step()
    assert steps("out/step_1/actor_compute_log_prob/probe.h5") == [0]
    assert Recording(Path("out/step_1/actor_update/probe.h5")).find(phase="update", role="delta")
    assert steps("out/step_1/actor_update/probe-2.h5") == [0]


def test_verl_saves_both_sides() -> None:
    names = ("prompts", "responses", "attention_mask", "response_mask", "old_log_probs", "rollout_log_probs")
    made = [
        torch.ones(2, 3),
        torch.arange(40).reshape(2, 20),
        torch.ones(2, 23),
        torch.ones(2, 20),
        -torch.rand(2, 20),
        -torch.rand(2, 20),
    ]
    exec(blocks("verl")[0], {"np": np, "batch": SimpleNamespace(batch=dict(zip(names, made, strict=True)))})
    assert check_logprobs("logprobs.npz").tokens == 40


@pytest.mark.parametrize("framework", ["slime", "Miles"])
def test_dumps_of_slime_and_miles_have_both_sides(framework: str) -> None:
    logprobs = [-torch.rand(40) for _ in range(6)]
    samples = [{"tokens": list(range(50)), "response_lengths": 40, "loss_masks": torch.ones(40), "log_probs": each, "rollout_log_probs": each - 0.3, "metadata": {"a": None}} for each in logprobs]  # fmt: skip
    batch = {name: [each[name] for each in samples] for name in samples[0] if name != "metadata"}
    torch.save(
        {"rollout_id": 0, "samples": samples} if framework == "slime" else {"rank": 0, "rollout_data": batch}, "0.pt"
    )
    found = check_logprobs("0.pt")
    assert found.form == "constant" and found.tokens == 240


@pytest.mark.parametrize("framework", ["slime", "Megatron"])
def test_a_file_records_a_step_of_a_long_run(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, names = Wrapped(), {}
    section = "slime and Miles" if framework == "slime" else "Megatron-LM and Megatron-Bridge"
    training = module(monkeypatch, "megatron.training.training", post_training_step_callbacks=lambda *args: args[3])
    module(monkeypatch, "megatron.training", training=training)
    exec(blocks(section)[0], names)
    for iteration in range(5):
        if iteration == 3:
            Path("probe.on").touch()
        if framework == "slime":
            names["before_train_step"](None, 0, iteration, [model], model.optimizer, None)
        model.step()
        if framework == "Megatron":
            assert (
                training.post_training_step_callbacks([model], model.optimizer, None, iteration, None, 0) == iteration
            )
    names["armed"].pop().remove()
    path = "trainer.h5" if framework == "slime" else "b.h5"
    run = Recording(Path(path))
    assert [path.name for path in Path().glob("*.h5")] == [path] and steps(path) == [0]
    assert {each.micro for each in run.find(path="", role="input")} == {0, 1} and run.find(phase="update", role="delta")


def test_a_callback_of_megatron_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "megatron.bridge.training.callbacks", Callback=object)
    names: dict[str, Any] = {}
    exec(blocks("Megatron-LM and Megatron-Bridge")[1], names)
    model, callback = Wrapped(), names["Recording"]()
    context = SimpleNamespace(model=[model], loss_dict={"lm loss": torch.tensor(2.5)})
    callback.on_train_start(context)
    for _ in range(2):
        model.step()
        callback.on_train_step_end(context)
    callback.on_train_end(context)
    assert steps("b.h5") == [0] and (0, "loss", 2.5) in Recording(Path("b.h5")).scalars


def test_trl_saves_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "prompt_ids": 3,
        "prompt_mask": 3,
        "completion_ids": 9,
        "completion_mask": 9,
        "old_per_token_logps": 9,
        "sampling_per_token_logps": 9,
    }

    class GRPOTrainer:
        state = SimpleNamespace(global_step=0)

        def _generate_and_score_completions(self, inputs: object) -> dict[str, torch.Tensor]:
            return {
                name: -torch.rand(2, size) if "logps" in name else torch.ones(2, size) for name, size in sizes.items()
            }

    module(monkeypatch, "trl", GRPOTrainer=GRPOTrainer)
    names: dict[str, Any] = {}
    exec(blocks("TRL")[0], names)
    assert names["Saving"]()._generate_and_score_completions(None).keys() == sizes.keys()
    assert check_logprobs("logprobs-0.npz").tokens == 18


def test_vllm_and_the_trainer_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = served.trained()

    class LLM:
        def __init__(self, path: str, **options: Any) -> None:
            assert options["enforce_eager"]
            self.model = served.qwen2_of_vllm(1)
            self.model.load_weights(trained.state_dict())

        def apply_model(self, function: Any) -> list[Any]:
            return [function(self.model)]

        def generate(self, prompt: dict[str, Any], params: object) -> None:
            served.served(self.model, prompt["prompt_token_ids"][None])

    module(monkeypatch, "vllm", LLM=LLM, SamplingParams=lambda **given: given)
    exec(blocks("vLLM")[0], {"ids": IDS})
    with probe.capture(trained, "trainer.h5"), torch.no_grad():
        trained(input_ids=IDS[None], position_ids=torch.arange(9)[None])
        probe.step()
    assert probe.compare("vllm.h5", "trainer.h5", "vllm/qwen2").verdict == "aligned"


def test_sglang_calls_what_the_shim_gives_it() -> None:
    run_shell("SGLang")
    pytorch = importlib.import_module("msprobe.pytorch")
    pytorch.seed_all(mode=False)
    debugger, model = pytorch.PrecisionDebugger(config_path="config.json"), served.qwen2_of_vllm(1)
    for _ in range(2):
        debugger.start(model=model, rank_id=None)
        with torch.no_grad():
            model.forward(IDS, torch.arange(9))
        debugger.stop()
        debugger.step()
    probe.stop()
    (path,) = Path("sglang").glob("*.h5")
    assert steps(str(path)) == [0] and Recording(path).find(path="model.norm", role="output")


def test_a_model_of_an_engine_is_recorded_by_its_class(alone) -> None:  # noqa: F811
    trained, engine = served.trained(), served.qwen2_of_vllm(1)
    engine.load_weights(trained.state_dict())
    options = re.search(r'PROBE_RECORD_OPTIONS="(.*)"', SECTIONS["Any program, by its environment"])[1]
    assert (
        re.sub(r"\S*probe.on", "F", options)
        == "--model vllm.model_executor.models.qwen2:Qwen2ForCausalLM --on-file F --forwards 17 --task tensor"
    )
    Path("probe.on").touch()
    with watched(
        "torch", models=("tests.torch.served:Qwen2Model",), on_file="probe.on", forwards=4, options={"task": "tensor"}
    ) as watch:
        served.generated(engine, IDS, 6)
    watch.armed.remove()
    with probe.capture(trained.model, "trainer.h5", task="tensor"), torch.no_grad():
        trained.model(input_ids=IDS[None], position_ids=torch.arange(9)[None])
        probe.step()
    found = probe.compare("a.h5", "trainer.h5", "vllm/qwen2")
    assert found.verdict == "aligned", found
