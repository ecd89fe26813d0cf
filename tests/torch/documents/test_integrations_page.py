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


def run(section: str, number: int = 0, **names: Any) -> dict[str, Any]:
    """Run a block of Python of a section; return its names."""
    exec(re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)[number], names)
    return names


def shim(section: str) -> ModuleType:
    """Run the lines of a section that lead an import of msprobe here; import it."""
    lines = re.findall(r"^    ((?:mkdir|echo) .*)$", SECTIONS[section], re.MULTILINE)
    subprocess.run(["bash", "-ec", "\n".join(lines)], check=True)
    return importlib.import_module("msprobe.pytorch")


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch) -> Any:
    """Put stand-ins of modules, and of their packages, where they are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "shim"))
    for name in ("msprobe", "msprobe.pytorch"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def put(name: str, **names: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)
        around, _, own = name.rpartition(".")
        if around:
            monkeypatch.setattr(sys.modules.get(around) or put(around), own, made, raising=False)
        return made

    put("megatron.core.utils", unwrap_model=lambda model: [each.module for each in model])
    return put


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


@pytest.mark.parametrize("keeps_its_own", [True, False])  # two versions of its profiler
def test_verl_records_each_stage_of_a_step(keeps_its_own: bool) -> None:
    pytorch, model, own = shim("verl"), Wrapped(), None
    Path("config.json").write_text('{"task": "tensor"}')
    for stage in ("actor_compute_log_prob", "actor_update", "actor_update"):
        known = own if keeps_its_own else pytorch.PrecisionDebugger._instance
        known = own = known or pytorch.PrecisionDebugger(config_path="config.json", dump_path="first")
        known.service.config.dump_path = f"out/step_1/{stage}"
        known.start(model.module)
        model.step() if stage == "actor_update" else model.module(torch.ones(1, 4))
        known.stop()
        known.step()
    assert steps("out/step_1/actor_compute_log_prob/probe.h5") == steps("out/step_1/actor_update/probe-2.h5") == [0]
    assert Recording(Path("out/step_1/actor_update/probe.h5")).find(phase="update", role="delta")


def test_verl_saves_both_sides() -> None:
    names = ("prompts", "responses", "attention_mask", "response_mask", "old_log_probs", "rollout_log_probs")
    made = [torch.ones(2, 3), torch.ones(2, 20), torch.ones(2, 23), torch.ones(2, 20), *-torch.rand(2, 2, 20)]
    run("verl", np=np, batch=SimpleNamespace(batch=dict(zip(names, made, strict=True))))
    assert check_logprobs("logprobs.npz").tokens == 40


@pytest.mark.parametrize("framework", ["slime", "Miles"])
def test_dumps_of_slime_and_miles_have_both_sides(framework: str) -> None:
    own = [-torch.rand(40) for _ in range(6)]
    batch = {"tokens": [list(range(50))] * 6, "response_lengths": [40] * 6, "loss_masks": [torch.ones(40)] * 6,
             "log_probs": own, "rollout_log_probs": [each - 0.3 for each in own]}  # fmt: skip
    samples = [{name: values[at] for name, values in batch.items()} for at in range(6)]
    Path("dump/train_data").mkdir(parents=True)
    torch.save({"samples": samples} if framework == "slime" else {"rollout_data": batch}, "dump/train_data/0.pt")
    run("slime and Miles")
    found = check_logprobs("logprobs.jsonl")
    assert found.form == "constant" and found.tokens == 240


@pytest.mark.parametrize("framework", ["slime", "Megatron"])
def test_a_file_records_a_step_of_a_long_run(framework: str, module: Any) -> None:
    model = Wrapped()
    training = module("megatron.training.training", post_training_step_callbacks=lambda *args: args[3])
    names = run("slime and Miles", 1) if framework == "slime" else run("Megatron-LM and Megatron-Bridge")
    for iteration in range(5):
        if iteration == 3:
            Path("probe.on").touch()
        if framework == "slime":
            names["before_train_step"](None, 0, iteration, [model], model.optimizer, None)
        model.step()
        if framework == "Megatron":
            assert training.post_training_step_callbacks([model], None, None, iteration, None, 0) == iteration
    names["armed"].pop().remove()
    (path,) = Path().glob("*.h5")
    found = Recording(path)
    assert steps(str(path)) == [0] and {each.micro for each in found.find(path="", role="input")} == {0, 1}
    assert found.find(phase="update", role="delta")


def test_a_callback_of_megatron_bridge(module: Any) -> None:
    module("megatron.bridge.training.callbacks", Callback=object)
    model, callback = Wrapped(), run("Megatron-LM and Megatron-Bridge", 1)["Recording"]()
    context = SimpleNamespace(model=[model], loss_dict={"lm loss": torch.tensor(2.5)})
    callback.on_train_start(context)
    for _ in range(2):
        model.step()
        callback.on_train_step_end(context)
    callback.on_train_end(context)
    assert steps("b.h5") == [0] and (0, "loss", 2.5) in Recording(Path("b.h5")).scalars


def test_trl_saves_both_sides(module: Any) -> None:
    class GRPOTrainer:
        state = SimpleNamespace(global_step=0)

        def _generate_and_score_completions(self, inputs: object) -> dict[str, torch.Tensor]:
            logprobs = dict.fromkeys(("old_per_token_logps", "sampling_per_token_logps"), -torch.rand(2, 9))
            ids = {"prompt_ids": 3, "prompt_mask": 3, "completion_ids": 9, "completion_mask": 9}
            return {**{name: torch.ones(2, size) for name, size in ids.items()}, **logprobs}

    module("trl", GRPOTrainer=GRPOTrainer)
    assert run("TRL")["Saving"]()._generate_and_score_completions(None)
    assert check_logprobs("logprobs-0.npz").tokens == 18


def test_vllm_and_the_trainer_are_compared(module: Any) -> None:
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

    module("vllm", LLM=LLM, SamplingParams=lambda **given: given)
    run("vLLM", ids=IDS)
    with probe.capture(trained, "trainer.h5"), torch.no_grad():
        trained(input_ids=IDS[None], position_ids=torch.arange(9)[None])
        probe.step()
    assert probe.compare("vllm.h5", "trainer.h5", "vllm/qwen2").verdict == "aligned"


def test_sglang_calls_what_the_shim_gives_it() -> None:
    pytorch, model = shim("SGLang"), served.qwen2_of_vllm(1)
    pytorch.seed_all(mode=False)
    debugger = pytorch.PrecisionDebugger(config_path="config.json")
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
    Path("probe.on").touch()
    order = {"models": ("tests.torch.served:Qwen2Model",), "on_file": "probe.on", "forwards": 4}
    with watched("torch", **order, options={"task": "tensor"}) as watch:
        served.generated(engine, IDS, 6)
    watch.armed.remove()
    with probe.capture(trained.model, "trainer.h5", task="tensor"), torch.no_grad():
        trained.model(input_ids=IDS[None], position_ids=torch.arange(9)[None])
        probe.step()
    assert probe.compare("a.h5", "trainer.h5", "vllm/qwen2").verdict == "aligned"
