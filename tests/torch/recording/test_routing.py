"""Routing replay: routers take another recording's choices, weigh them by their own scores, and say it where they cannot."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe
from probe.adapters.base import Adapter
from probe.answer.result import Verdict
from probe.contents.experts import loads
from probe.errors import ConfigError, ProbeWarning, StoreError
from probe.numbers.choices import OWN_CHOICES, OWN_SCORES
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

EXPERTS, CHOSEN, WIDTH = 8, 2, 16


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    probe.stop()


def plain(scores):
    values, chosen = torch.topk(scores.softmax(-1), CHOSEN, dim=-1)
    return values / values.sum(-1, keepdim=True), chosen


def method(scores):
    chosen = scores.sigmoid().topk(k=CHOSEN, dim=-1, sorted=False).indices
    return scores.sigmoid().gather(-1, chosen), chosen


def grouped(scores):
    """Two of four groups by their best two, then experts of these alone."""
    best = scores.view(-1, 4, 2).topk(2, dim=-1)[0].sum(-1)
    mask = torch.zeros_like(best).scatter_(1, torch.topk(best, k=2, dim=-1, sorted=False)[1], 1)
    hidden = scores.masked_fill(~mask.repeat_interleave(2, -1).bool(), float("-inf"))
    chosen = torch.topk(hidden, k=CHOSEN, dim=-1, sorted=False)[1]
    return scores.gather(1, chosen).softmax(-1), chosen


def mapped(scores):
    """Return probabilities and a map of the experts, as Megatron does."""
    values, chosen = torch.topk(scores, k=CHOSEN, dim=1)
    values = values.softmax(-1)
    return torch.zeros_like(scores).scatter(1, chosen, values), torch.zeros_like(scores).scatter(1, chosen, 1).bool()


def written(scores):
    out = scores.new_empty(len(scores), CHOSEN), torch.empty(len(scores), CHOSEN, dtype=torch.int64)
    torch.topk(scores.detach(), CHOSEN, out=out)
    return scores.gather(1, out[1]), out[1]


class Router(nn.Module):
    def __init__(self, rule: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.rule = nn.Parameter(torch.randn(EXPERTS, WIDTH)), rule

    def forward(self, x):
        return self.rule(F.linear(x, self.weight))


class Mixture(nn.Module):
    def __init__(self, rule: Callable[..., Any]) -> None:
        super().__init__()
        self.gate, self.experts = Router(rule), nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 4)
        self.saves = False

    def inner(self, x):
        weights, chosen = self.gate(x)
        if chosen.dtype == torch.bool:
            return torch.einsum("te,eij,tj->ti", weights, self.experts, x)
        return (torch.einsum("tkij,tj->tki", self.experts[chosen], x) * weights[..., None]).sum(1)

    def forward(self, x):
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.saves else self.inner(x))


def made(rule: Callable[..., Any], seed: int = 0, layers: int = 2) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(Mixture(rule) for _ in range(layers)))


def record(model: nn.Module, path: str, tokens: int = 32, steps: int = 1, **options: Any) -> list[torch.Tensor]:
    """Record steps of two micro-batches; return the gradients."""
    options = {"task": "tensor", "quiet": True} | options
    with probe.capture(model, path, overwrite=True, **options) as _:
        for _step in range(steps):
            for micro in range(2):
                generator = torch.Generator().manual_seed(micro)
                model(torch.randn(tokens, WIDTH, generator=generator)).square().mean().backward()
            probe.step()
    return [each.grad for each in model.parameters()]


def chosen(path: str) -> dict[tuple[Any, ...], np.ndarray]:
    """Return what routers returned, by module, micro-batch and slot."""
    found = Reader(path)
    rows = [
        row
        for row in found.records
        if row["role"] == Role.OUTPUT and found.modules[row["module"]].path.endswith("gate")
    ]
    return {(row["module"], row["micro"], found.slots[row["slot"]]): found.values(row["tensor"]) for row in rows}


@pytest.mark.parametrize("saves", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("rule", [plain, method, grouped, mapped])
def test_choices_are_a_s_weights_are_b_s_and_gradients_flow(rule: Callable[..., Any], saves: bool) -> None:
    record(made(rule), "a.h5")
    other = made(rule, seed=1)
    for each in other:
        each.saves = saves
    gradients = record(other, "b.h5", routing="a.h5")
    a, b = chosen("a.h5"), chosen("b.h5")
    assert a.keys() == b.keys() and len(a) == 8
    choices = [key for key, each in a.items() if each.dtype.kind in "ib"]
    assert len(choices) == 4
    for key in choices:
        assert np.array_equal(a[key], b[key])
    assert not any(np.allclose(a[key], b[key]) for key in a if key not in choices)
    assert all(each is not None and each.abs().sum() > 0 for each in gradients)
    assert not any("forward" in vars(each) for each in other.modules())  # as it was


def test_gradients_are_those_of_the_same_model_with_these_choices() -> None:
    """B with A's weights has A's gradients, though it would choose otherwise: its router is given the negative of its scores."""
    of_a = record(made(plain), "a.h5")

    def worst(scores):
        values, chosen = torch.topk(scores.softmax(-1), CHOSEN, dim=-1, largest=False)
        return values / values.sum(-1, keepdim=True), chosen

    of_b = record(made(worst), "b.h5", routing="a.h5")
    assert all(torch.equal(x, y) for x, y in zip(of_a, of_b, strict=True))
    answer = probe.compare("a.h5", "b.h5")
    assert answer.verdict is Verdict.UNDECIDED and [each.code for each in answer.reasons] == ["choices-beyond-margin"]
    assert [each.code for each in probe.compare("b.h5", "a.h5").reasons] == ["choices-beyond-margin"]
    assert Reader("b.h5").info.config["routing"] == "a.h5"


def test_what_b_would_have_chosen_is_recorded_beside() -> None:
    record(made(plain), "a.h5")
    record(made(plain, seed=1), "b.h5", routing="a.h5")
    b = Reader("b.h5")
    own = [row for row in b.records if row["role"] == Role.VALUE]
    assert {b.slots[row["slot"]] for row in own} == {OWN_CHOICES, OWN_SCORES} and len(own) == 8
    for choices, scores in zip(own[::2], own[1::2], strict=True):
        best = np.argsort(-b.values(scores["tensor"]), -1)[:, :CHOSEN]
        assert np.array_equal(np.sort(best), np.sort(b.values(choices["tensor"])))
    counts = [np.bincount(np.concatenate([b.values(row["tensor"]) for row in own[at:8:4]]).ravel()) for at in (0, 2)]
    assert all(load.is_own and np.array_equal(load.counts, each) for load, each in zip(loads(b), counts, strict=True))


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({"task": "statistics"}, {}, "a.h5 has no values of what its routers chose, such as of 0.gate: record it with task='tensor' (--task tensor), or values of "
                                     "these alone with tensors=['*.gate']"),
        ({"rule": None}, {}, "a.h5 has no choices of experts: no module returns, or is given, indices beside weights of the same shape"),
        ({}, {"layers": 1}, "routing: router 1.gate of a.h5 has no counterpart: 2 routers there, 1 modules with weights of their shapes here (0.gate)"),
        ({}, {"task": "norms"}, "routing='a.h5' needs task='statistics' or 'tensor', not 'norms'"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_one_line(change: dict[str, Any], options: dict[str, Any], text: str) -> None:
    change = {"rule": plain, "task": "tensor"} | change
    model = made(change["rule"]) if change["rule"] else nn.Sequential(nn.Linear(WIDTH, WIDTH))
    record(model, "a.h5", task=change["task"])
    other = made(plain, layers=options.pop("layers", 2))
    with pytest.raises(ConfigError) as caught:
        probe.start(other, "b.h5", routing="a.h5", **options)
    assert str(caught.value) == text and not Path("b.h5").exists()
    assert not any("forward" in vars(each) for each in other.modules())


def test_a_recording_that_is_not_there() -> None:
    with pytest.raises(StoreError, match="none.h5"):
        probe.start(made(plain), "b.h5", routing="none.h5")


@pytest.mark.parametrize(
    ("rule", "of_b", "text"),
    [
        (
            plain,
            {"tokens": 16},
            "0.gate routed by itself: its 2 experts for each of 32 tokens are no choice that was seen inside it",
        ),
        (plain, {"steps": 2}, "0.gate routed by itself: a.h5 has no choices of step 1"),
        (written, {}, "0.gate routed by itself: its 2 experts for each of 32 tokens"),
    ],
    ids=["shape", "step", "out"],
)
def test_what_does_not_fit_is_said_and_the_training_goes_on(rule: Any, of_b: dict[str, Any], text: str) -> None:
    record(made(plain, layers=1), "a.h5")
    with pytest.warns(ProbeWarning, match=text.replace(".", r"\.")):
        record(made(rule, seed=1, layers=1), "b.h5", routing="a.h5", **of_b)
    assert any(said.startswith(text) for _, _, said in Reader("b.h5").notes)


@pytest.mark.parametrize("fails", [False, True])
def test_no_exception_leaves_a_router(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Of padded choices, or whatever may fail: the router takes its own."""

    def padded(scores):
        weights, chosen = plain(scores)
        return weights, chosen.index_fill(0, torch.tensor([0]), chosen.new_tensor(-1))

    record(made(plain if fails else padded), "a.h5")
    plainly = record(made(plain, seed=1), "b.h5")
    if fails:
        monkeypatch.setattr(Adapter, "picked", lambda *_: 1 / 0)
    with pytest.warns(ProbeWarning):
        gradients = record(made(plain, seed=1), "b.h5", routing="a.h5")
    assert all(map(torch.equal, plainly, gradients))
    said = [text for _, _, text in Reader("b.h5").notes if not text.startswith("not recorded because of an error")]
    assert [text.partition(":")[0] for text in said] == ["0.gate routed by itself", "1.gate routed by itself"]


@pytest.mark.parametrize("options", [{"level": "mix", "modules": "1"}, {"modules": "1"}])
def test_routers_that_are_not_recorded_take_the_choices_too(options: dict[str, Any]) -> None:
    record(made(plain), "a.h5")
    whole = record(made(plain, seed=1), "b.h5", routing="a.h5")
    assert all(map(torch.equal, whole, record(made(plain, seed=1), "b.h5", routing="a.h5", **options)))


def test_routers_of_other_names_are_paired_in_order() -> None:
    class Named(nn.Module):
        def __init__(self, layers: nn.Sequential) -> None:
            super().__init__()
            self.decoder = layers

        def forward(self, x):
            return self.decoder(x)

    record(made(plain), "a.h5")
    record(Named(made(plain, seed=1)), "b.h5", routing=Path("a.h5"))
    a, b = ([each for each in chosen(path).values() if each.dtype.kind == "i"] for path in ("a.h5", "b.h5"))
    assert len(a) == 4 and all(map(np.array_equal, a, b))


def test_values_of_routers_alone_are_enough_and_operations_show_a_s_choice() -> None:
    record(made(plain), "a.h5", tensors=["*.gate"], task="statistics")
    record(made(plain, seed=1), "b.h5", routing="a.h5", level="mix")
    b = Reader("b.h5")
    taken = [
        row for row in b.records if b.modules[row["module"]].path == "0.gate/topk.0" and row["role"] == Role.OUTPUT
    ]
    given = [each for (module, *_), each in chosen("a.h5").items() if Reader("a.h5").modules[module].path == "0.gate"]
    assert np.array_equal(b.values(taken[1]["tensor"]), [each for each in given if each.dtype.kind == "i"][0])


def transformers_model(kind: str, experts: str = "eager") -> nn.Module:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    common = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 4, "num_experts_per_tok": 2, "use_cache": False, "attn_implementation": "eager",
              "experts_implementation": experts}  # fmt: skip
    own = {
        "Qwen3Moe": {"moe_intermediate_size": 16, "num_experts": 8, "head_dim": 8},
        "Mixtral": {"num_local_experts": 8},
        "DeepseekV3": {"moe_intermediate_size": 16, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "q_lora_rank": 16, "kv_lora_rank": 16,
                       "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 0},
    }  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**common, **own[kind]))
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("gate.weight", "e_score_correction_bias")):
            each.data.normal_(std=0.05)
    return model


def trained(model: nn.Module, path: str, **options: Any) -> None:
    ids = torch.randint(0, 64, (4, 48), generator=torch.Generator().manual_seed(1))
    options = {"task": "tensor", "quiet": True, "overwrite": True} | options
    with warnings.catch_warnings(), probe.capture(model, path, **options):
        warnings.simplefilter("ignore")
        model(input_ids=ids).logits.float().square().mean().backward()


def narrow(kind: str, experts: str, change: Callable[..., Any] = lambda out: out) -> nn.Module:
    """Return a model in bfloat16; ``change``: what becomes of what the experts of its last layer return."""
    model = transformers_model(kind, experts)
    inner = model.model.layers[1].mlp.experts
    plain = inner.forward
    inner.forward = lambda *args: change(plain(*args))
    exact = model.model.rotary_emb.inv_freq.clone()
    model = model.to(torch.bfloat16)
    model.model.rotary_emb.inv_freq = exact
    return model


def with_other_gradient(out: torch.Tensor) -> torch.Tensor:
    out.register_hook(lambda gradient: 1.5 * gradient)
    return out


KINDS = pytest.mark.parametrize(
    ("kind", "experts"), [("Qwen3Moe", "eager"), ("Mixtral", "grouped_mm"), ("DeepseekV3", "grouped_mm")]
)


@KINDS
def test_experts_in_16_bits_are_judged_as_a_dense_model(kind: str, experts: str) -> None:
    trained(transformers_model(kind), "a.h5")
    trained(narrow(kind, experts), "b.h5", routing="a.h5")
    assert probe.compare("a.h5", "b.h5").verdict is Verdict.ALIGNED
    trained(narrow(kind, experts, lambda out: out * 1.08), "b.h5", routing="a.h5")
    first = probe.compare("a.h5", "b.h5").first_divergence
    assert first is not None and first.a[0].path == "model.layers.1.mlp.experts"


@KINDS
def test_bare_the_tokens_that_both_sides_route_alike_tell(kind: str, experts: str) -> None:
    """Routers choose by themselves, and some tokens of both layers fall otherwise."""
    trained(transformers_model(kind), "a.h5")
    trained(narrow(kind, experts), "b.h5")
    right = probe.compare("a.h5", "b.h5")
    assert right.verdict is Verdict.ALIGNED, right
    trained(narrow(kind, experts, lambda out: out * 1.2), "b.h5")
    first = probe.compare("a.h5", "b.h5").first_divergence
    assert first is not None and first.a[0].path == "model.layers.1.mlp.experts"
    trained(narrow(kind, experts, with_other_gradient), "b.h5")
    first = probe.compare("a.h5", "b.h5").first_divergence
    assert first is not None and first.phase is Phase.BACKWARD and first.a[0].path.startswith("model.layers.1.mlp")
