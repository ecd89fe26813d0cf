"""A Qwen2 of transformers against a GPT as Megatron-core builds it: every weight is compared, the fused ones too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPO = Path(__file__).parents[2]
sys.path.insert(0, str(REPO / "docs" / "examples"))  # as Python does for a script in that folder

from convert_qwen2 import megatron_from, to_megatron  # noqa: E402
from megatron_gpt import left_to_right  # noqa: E402
from train_hf import fixed_batch, next_token_loss, small_qwen2  # noqa: E402
from train_megatron import wrong_qkv_order  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402
from probe.records import Phase, Role  # noqa: E402

QKV = {"to": ["q_proj", "k_proj", "v_proj"], "split": {"groups": "num_query_groups"}}
LAYER = 1
HF, MEGATRON = f"model.layers.{LAYER}.self_attn", f"decoder.layers.{LAYER}.self_attention.linear_qkv"


def mapping() -> dict[str, Any]:
    """Return the mapping of the library, with what the two fused projections are."""
    sections = yaml.safe_load((REPO / "layer_mappings" / "megatron-core" / "qwen2.yaml").read_text())
    sections["SelfAttention"]["linear_qkv"] = QKV
    sections["MLP"]["linear_fc1"] = ["gate_proj", "up_proj"]
    return sections  # type: ignore[no-any-return]


def logits_of(model: Any, tokens: Any) -> Any:
    return model(input_ids=tokens).logits if hasattr(model, "model") else model(tokens, *left_to_right(tokens))


def record(path: Path, model: Any, task: str, steps: int = 1, sgd: bool = False) -> Path:
    lr = 1e-3
    optimizer = torch.optim.SGD(model.parameters(), lr, 0.9) if sgd else torch.optim.AdamW(model.parameters(), lr)
    tokens = fixed_batch()
    with probe.capture(model, path, task=task):
        for _ in range(steps):
            loss = next_token_loss(logits_of(model, tokens), tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    folder = tmp_path_factory.mktemp("clean")

    def recorded(task: str) -> Path:
        path = folder / f"{task}.h5"
        return path if path.exists() else record(path, small_qwen2(), task)

    yield recorded


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(("sgd", "turned"), [(False, False), (True, True)])
def test_all_weights_are_compared(tmp_path: Path, task: str, sgd: bool, turned: bool) -> None:
    hf = small_qwen2()
    files = [
        record(tmp_path / f"{number}.h5", model, task, 2, sgd) for number, model in enumerate((hf, megatron_from(hf)))
    ]
    # the second of two models made from one must not share memory with it
    found = probe.compare(*(files[::-1] if turned else files), mapping=mapping())
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    assert not any("weights that were not compared" in text for text in found.warnings), found.warnings
    side = "b" if turned else "a"
    for role, phase in ((Role.PARAM, Phase.INIT), (Role.PARAM_GRAD, Phase.GRADIENT), (Role.DELTA, Phase.UPDATE)):
        names = {
            f"{path}.{slot}" for s in found.slots if (s.role, s.phase, s.step) == (role, phase, 0) and s.metrics.is_known
            for path, slot in getattr(s, f"places_{side}")
        }  # fmt: skip
        assert names == {name for name, _ in hf.named_parameters()}
    outputs = [s for s in found[f"{HF}.k_proj"] if s.role is Role.OUTPUT]
    assert outputs and all(s.metrics.is_known and s.metrics.rel_l2 < 1e-5 for s in outputs)


def one_part(model: Any) -> None:
    model.model.layers[LAYER].self_attn.k_proj.weight.data *= 1.1


def one_gradient(model: Any) -> None:
    model.model.layers[LAYER].self_attn.v_proj.weight.register_hook(lambda grad: 1.5 * grad)


def other_eps(model: Any) -> None:
    model.model.layers[LAYER].post_attention_layernorm.variance_epsilon = 1e-5


def one_gate(model: Any) -> None:
    mlp = model.model.layers[LAYER].mlp
    mlp.gate_proj.weight.data, mlp.up_proj.weight.data = mlp.up_proj.weight.data, mlp.gate_proj.weight.data


def compared(tmp_path: Path, fault: Callable[[Any], None], task: str) -> Comparison:
    whole = record(tmp_path / "megatron.h5", megatron_from(small_qwen2()), task)
    model = small_qwen2()
    fault(model)
    return probe.compare(record(tmp_path / "hf.h5", model, task), whole, mapping=mapping())


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("fault", "phase", "part"), [(one_part, "init", "k_proj"), (one_gradient, "gradient", "v_proj")]
)
def test_a_fault_in_one_part(tmp_path: Path, fault: Callable[[Any], None], phase: str, part: str, task: str) -> None:
    first = compared(tmp_path, fault, task).first_divergence
    assert first is not None and first.phase.label == phase
    assert [(ref.path, ref.slot) for ref in first.a] == [(f"{HF}.{name}_proj", "weight") for name in "qkv"]
    assert [(ref.path, ref.slot) for ref in first.b] == [(MEGATRON, "weight")]
    if task == "tensor":
        assert any(text.startswith(f"of its parts {part} (rel ") for text in first.evidence), first.evidence


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_fault_in_a_norm_is_one_finding(tmp_path: Path, task: str) -> None:
    """Joined weights have no sketch of what the optimizer used: that makes it no other optimizer."""
    found = compared(tmp_path, other_eps, task)
    assert [(each.phase.label, each.path) for each in found.divergences] == [
        ("forward", f"model.layers.{LAYER}.post_attention_layernorm")
    ]


def test_gate_and_up_in_the_other_order(tmp_path: Path) -> None:
    first = compared(tmp_path, one_gate, "tensor").first_divergence
    assert first is not None and first.phase is Phase.INIT
    name = f"B's decoder.layers.{LAYER}.mlp.linear_fc1.weight"
    assert first.hint.startswith(f"{name} holds up_proj, gate_proj one after the other, where gate_proj, up_proj one")


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_fused_weight_that_was_put_together_plainly(tmp_path: Path, clean: Callable[[str], Path], task: str) -> None:
    model = megatron_from(small_qwen2())
    wrong_qkv_order(model.decoder.layers[LAYER])
    found = probe.compare(clean(task), record(tmp_path / "b.h5", model, task), mapping=mapping())
    first = found.first_divergence
    assert first is not None and found.verdict is Verdict.DIVERGED
    assert (first.phase, first.b[0].path) == (Phase.INIT, MEGATRON)
    assert f"B's {MEGATRON}.weight holds q_proj, k_proj, v_proj one after the other, where q_proj" in first.hint


def test_convert_makes_what_the_example_makes_by_hand(tmp_path: Path) -> None:
    hf = small_qwen2()
    megatron = megatron_from(hf)
    there = probe.convert_weights(hf.state_dict(), mapping(), to="torch", source=hf, like=megatron)
    by_hand = to_megatron(hf.state_dict(), megatron.config)
    assert {name: w.tobytes() for name, w in there.items()} == {
        name: by_hand[name].contiguous().numpy().tobytes() for name in there
    }
    assert set(there) == {name for name, _ in megatron.named_parameters()}
    back = probe.convert_weights(there, mapping(), to="torch", source=megatron, like=hf)
    state = hf.state_dict()
    assert all(back[name].tobytes() == state[name].numpy().tobytes() for name in state) and len(back) == len(state)
