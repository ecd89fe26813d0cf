"""The published templates for Qwen2.5, as they are, on a Qwen2 of transformers and the toy Megatron: right pairs and faults.

They pair ``linear_fc1``, which holds gate and up, with ``up_proj`` alone, say nothing of q, k and v, and count on wrappers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPO = Path(__file__).parents[2]
sys.path.insert(0, str(REPO / "docs" / "examples"))  # as Python does for a script in that folder

import torch.nn.functional as F  # noqa: E402
from convert_qwen2 import megatron_from  # noqa: E402
from megatron_gpt import left_to_right  # noqa: E402
from train_hf import next_token_loss  # noqa: E402
from train_megatron import gradient_twice, no_mask, wrong_activation, wrong_eps, wrong_qkv_order  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase, Role  # noqa: E402

DATA = REPO / "tests" / "data"
TEMPLATES = {"from Megatron": "template-qwen2.5-mindspeed-llm.yaml", "from Qwen2": "template-qwen2.5-llamafactory.yaml"}
LAYER = 1


class _Wrapper(torch.nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **more: Any) -> Any:
        return self.module(*args, **more)


DDP, Float16Module, DeepSpeedEngine = (
    type(name, (_Wrapper,), {}) for name in ("DistributedDataParallel", "Float16Module", "DeepSpeedEngine")
)
WRAPPED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "as the template says": (DeepSpeedEngine, lambda model: [DDP(Float16Module(model))]),
    "bare": (lambda model: model, lambda model: model),
    "no DDP": (lambda model: model, lambda model: [Float16Module(model)]),
    "no Float16Module": (DDP, lambda model: [DDP(model)]),
    "no list": (lambda model: [model], lambda model: DDP(Float16Module(model))),
}


def qwen2() -> Any:
    torch.manual_seed(7)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, use_cache=False,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.train()


def record(
    path: Path, model: Any, task: str, wrap: Callable[[Any], Any], lr: float = 1e-3, factor: float = 1.0, **options: Any
) -> Path:
    tokens = torch.randint(96, (2, 12), generator=torch.Generator().manual_seed(7))
    held = wrap(model)
    run = held[0] if isinstance(held, list) else held
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    with probe.capture(held, path, task=task, **options):
        is_qwen2 = isinstance(model, Qwen2ForCausalLM)
        logits = run(input_ids=tokens).logits if is_qwen2 else run(tokens, *left_to_right(tokens))
        loss = factor * next_token_loss(logits, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
    return path


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return Qwen2's recording, by the wrappers and the task."""
    folder = tmp_path_factory.mktemp("right")

    def recorded(wrappers: str, task: str) -> Path:
        path = folder / f"{wrappers.replace(' ', '-')}-{task}.h5"
        return path if path.exists() else record(path, qwen2(), task, WRAPPED[wrappers][0])

    return recorded


Right = Callable[[str, str], Path]


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("wrappers", WRAPPED)
def test_a_right_pair_is_aligned_whatever_wraps_the_models(
    tmp_path: Path, right: Right, wrappers: str, task: str
) -> None:
    port = record(tmp_path / "b.h5", megatron_from(qwen2()), task, WRAPPED[wrappers][1])
    for template in TEMPLATES.values():
        for files in ((right(wrappers, task), port), (port, right(wrappers, task))):
            found = probe.compare(*files, mapping=DATA / template)
            assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
            assert not [text for text in found.warnings if "leads to nothing" in text or "names nothing" in text]
            said = [text for text in found.warnings if "up_proj is one of several parts" in text]
            assert len(said) == 1 and "gate_proj, up_proj together are compared with it; write " in said[0], (
                found.warnings
            )
            side = found.matching.bundles[0].side.lower()
            weights = {
                place for s in found.slots if (s.role, s.phase) == (Role.PARAM, Phase.INIT) and s.metrics.is_known
                for place in getattr(s, f"places_{side}")
            }  # fmt: skip
            assert len(weights) == len(list(qwen2().parameters())), weights


def scaled(module: Any) -> None:
    module.register_forward_hook(lambda _module, _given, made: (1.01 * made[0], None))


def up_before_gate(layer: Any) -> None:
    weight = layer.mlp.linear_fc1.weight
    with torch.no_grad():
        weight.copy_(torch.cat(weight.chunk(2)[::-1]))


def gate_alone(layer: Any) -> None:
    with torch.no_grad():
        layer.mlp.linear_fc1.weight.chunk(2)[0].mul_(1.01)


def fc1_gradient(layer: Any) -> None:
    layer.mlp.linear_fc1.weight.register_hook(lambda gradient: 1.5 * gradient)


def other_scale(layer: Any) -> None:
    layer.self_attention.core_attention.softmax_scale *= 1.1


IN_LAYER: dict[str, tuple[Callable[[Any], None], str]] = {
    "eps": (wrong_eps, "forward pre_mlp_layernorm"),
    "gelu": (wrong_activation, "forward mlp"),
    "mask": (no_mask, "forward self_attention"),
    "scale": (other_scale, "forward self_attention"),
    "order of q, k, v": (wrong_qkv_order, "init self_attention.linear_qkv"),
    "up before gate": (up_before_gate, "init mlp.linear_fc1"),
    "one part": (gate_alone, "init mlp.linear_fc1"),
    "fused output": (lambda layer: scaled(layer.mlp.linear_fc1), "forward mlp.linear_fc1"),
    "projection": (lambda layer: scaled(layer.self_attention.linear_proj), "forward self_attention.linear_proj"),
    "gradient of a norm": (gradient_twice, "gradient pre_mlp_layernorm"),
    "gradient of the fused": (fc1_gradient, "gradient mlp.linear_fc1"),
}
ELSEWHERE: dict[str, tuple[Callable[[Any], None], dict[str, float], str]] = {
    "head": (lambda model: scaled(model.output_layer), {}, "forward output_layer"),
    "last norm": (
        lambda model: setattr(model.decoder.final_layernorm, "eps", 1e-4),
        {},
        "forward decoder.final_layernorm",
    ),
    "loss": (lambda model: None, {"factor": 1.1}, "loss "),
    "rate": (lambda model: None, {"lr": 2e-3}, "update "),
}


def named(found: Any) -> str:
    """Return the phase and the module of B that is named, without wrappers; where it has none, what holds A's."""
    first = found.first_divergence
    assert first is not None, found.warnings
    path = (
        first.b[0].path
        if first.b
        else first.a[0].path.replace("model.layers", "decoder.layers").removesuffix(".act_fn")
    )
    while path.partition(".")[0] in ("0", "module"):
        path = path.partition(".")[2]
    return f"{first.phase.label} {path}"


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("fault", [*IN_LAYER, *ELSEWHERE])
def test_a_fault_is_named_as_without_a_mapping(tmp_path: Path, right: Right, fault: str, task: str) -> None:
    model, more = megatron_from(qwen2()), {}
    if fault in IN_LAYER:
        plant, where = IN_LAYER[fault]
        plant(model.decoder.layers[LAYER])
        phase, inside = where.split(" ")
        expected = f"{phase} decoder.layers.{LAYER}.{inside}"
    else:
        plant, more, expected = ELSEWHERE[fault]
        plant(model)
    wrappers = list(WRAPPED)[sum(map(ord, fault)) % len(WRAPPED)]
    port = record(tmp_path / "b.h5", model, task, WRAPPED[wrappers][1], **more)
    for template in TEMPLATES.values():
        assert named(probe.compare(right(wrappers, task), port, mapping=DATA / template)) == expected


def test_a_line_for_k_alone_is_completed_with_q_and_v(tmp_path: Path, right: Right) -> None:
    """The better line says in how many groups they lie."""
    port = record(tmp_path / "b.h5", megatron_from(qwen2()), "tensor", WRAPPED["bare"][1])
    mapping = tmp_path / "m.yaml"
    mapping.write_text((REPO / "layer_mappings" / "megatron-core" / "qwen2.yaml").read_text().replace(
        "  linear_qkv:                           # group by group: the queries of a group of heads, its key, its value\n"
        "    to: [q_proj, k_proj, v_proj]\n    split: {groups: num_query_groups}\n", "  linear_qkv: k_proj\n"
    ))  # fmt: skip
    found = probe.compare(right("bare", "tensor"), port, mapping=mapping)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    better = "write linear_qkv: {to: [q_proj, k_proj, v_proj], split: {groups: 2}}"
    assert [text for text in found.warnings if "k_proj is one of several parts" in text and text.endswith(better)], (
        found.warnings
    )


def test_a_part_whose_siblings_cannot_be_told_is_not_judged_by_what_it_passes_back(
    tmp_path: Path, right: Right
) -> None:
    """One more layer as wide as gate is there, and without weights nothing tells which of both is the rest."""

    def with_more(model: Any) -> Any:
        for layer in model.model.layers:
            mlp = layer.mlp
            mlp.one, mlp.two, mlp.three = mlp.gate_proj, mlp.up_proj, torch.nn.Linear(32, 48, bias=False)
            del mlp.gate_proj, mlp.up_proj
            mlp.forward = lambda x, mlp=mlp: mlp.down_proj(F.silu(mlp.one(x)) * mlp.two(x) + 0 * mlp.three(x))
        return model

    files = [
        record(tmp_path / f"{number}.h5", model, "tensor", WRAPPED["bare"][number], phases=["forward", "backward"])
        for number, model in enumerate((with_more(qwen2()), megatron_from(qwen2())))
    ]
    sections = yaml.safe_load((REPO / "layer_mappings" / "megatron-core" / "qwen2.yaml").read_text())
    sections["MLP"]["linear_fc1"] = "two"
    found = probe.compare(*files, mapping=sections, min_confidence=1)
    assert not found.divergences, found.first_divergence
    known = {s.role for s in found.slots if s.path_b.endswith("linear_fc1") and s.metrics.is_known}
    assert known == {Role.INPUT}
