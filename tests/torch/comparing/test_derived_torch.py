"""Tables, routers and buffers in fewer bits, documents, caps, heads of the last token and batch-variant kernels, in models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict
from probe.contents.float8 import float8_row
from probe.numbers.documents import begins_of
from probe.store.reading.reader import Reader
from tests.torch.hint_runs import Of

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "max_position_embeddings": 1024, "head_dim": 16}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
BORDERED = torch.cat([torch.arange(10), torch.arange(14)])[None]
BEGINS = torch.tensor([0, 10, 24])
Change = Callable[[Any], object]


def model(kind: str = "Qwen2", **config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {**SIZES, **EXPERTS} if "Moe" in kind else SIZES
    made = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes, **config))
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made.eval()


def record(path: Path, made: nn.Module, task: str = "tensor", split: int = 8, **given: Any) -> Path:
    given = {"input_ids": ids(), **given}
    with probe.capture(made, path, task=task, overwrite=True), torch.no_grad():
        for part in given.pop("input_ids").split(split):
            made(input_ids=part, **given)
        probe.step()
    return path


def ids(samples: int = 2, tokens: int = 24) -> Tensor:
    return torch.randint(1, 61, (samples, tokens), generator=torch.Generator().manual_seed(1))


def both(folder: Path, a: nn.Module, b: nn.Module, task: str = "tensor", **given: Any) -> Comparison:
    return probe.compare(*(record(folder / f"{name}.h5", each, task, **given) for name, each in (("a", a), ("b", b))))


def codes(found: Comparison) -> list[str]:
    return [each.code for each in found.notes]


def first(found: Comparison) -> tuple[str, str]:
    """Return the place of the first divergence, and the name of its first hint."""
    said = found.first_divergence
    assert found.verdict is Verdict.DIVERGED and said is not None, str(found)
    return said.path, str(said.hints[0]["name"]) if said.hints else ""


# Fewer bits


def kept(made: Any) -> Any:
    """Return a model in bfloat16 whose frequencies are left as they are, as loading in a dtype does."""
    frequencies = made.model.rotary_emb.inv_freq.clone()
    made.bfloat16().model.rotary_emb.inv_freq = frequencies
    return made


@pytest.mark.parametrize("wide", [kept, lambda made: made], ids=["both in bfloat16", "float32 against bfloat16"])
def test_a_model_cast_with_its_frequencies_is_told_where_angles_are_off(wide: Change, tmp_path: Path) -> None:
    for task, hint in (("tensor", "table of frequencies"), ("statistics", "")):
        found = both(tmp_path, wide(model()), model().bfloat16(), task, input_ids=ids(1, 400))
        assert first(found) == ("model.rotary_emb", hint)


def test_frequencies_in_fewer_bits_that_leave_angles_alone_are_a_note(tmp_path: Path) -> None:
    found = both(tmp_path, kept(model()), model().bfloat16(), input_ids=ids(1, 6))
    assert found.verdict is Verdict.ALIGNED and "buffers-in-fewer-bits" in codes(found)
    clean = both(tmp_path, model().bfloat16(), model().bfloat16(), input_ids=ids(1, 400))
    assert clean.verdict is Verdict.ALIGNED and "buffers-in-fewer-bits" not in codes(clean)


def test_running_statistics_in_fewer_bits_are_not_told(tmp_path: Path) -> None:
    class Norm(nn.BatchNorm1d):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(input_ids.to(self.weight.dtype))

    a, b = (Norm(24).eval() for _ in "ab")
    a.running_mean += 0.123
    b.load_state_dict(a.state_dict())
    assert "buffers-in-fewer-bits" not in codes(both(tmp_path, a, b.bfloat16()))


def routes(made: Any, computes: torch.dtype, returns: torch.dtype) -> Any:
    """Return a model in bfloat16 whose routers multiply in one dtype and choose in another."""
    gate = made.bfloat16().model.layers[0].mlp.gate

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        scores = F.linear(x.reshape(-1, 32).to(computes), gate.weight.to(computes)).to(returns)
        weights, chosen = scores.float().softmax(-1).topk(2)
        return scores, weights.to(x.dtype), chosen

    gate.forward = forward
    return made


@pytest.mark.parametrize("returns", [torch.bfloat16, torch.float32])
def test_a_router_in_fewer_bits_is_told(returns: torch.dtype, tmp_path: Path) -> None:
    wide = routes(model("Qwen3Moe"), torch.float32, torch.float32)
    found = both(tmp_path, wide, routes(model("Qwen3Moe"), torch.bfloat16, returns))
    (said,) = (each for each in found.notes if each.code == "router-in-fewer-bits")
    assert said.facts["names"] == ("model.layers.0.mlp.gate",) and said.facts["side"] == "B"
    assert "router-in-fewer-bits" not in codes(both(tmp_path, wide, wide))


# Documents


class Lengths(transformers.Qwen2ForCausalLM):
    """A model that is given cumulated lengths of documents."""

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Any:
        places = torch.cat([torch.arange(int(each)) for each in cu_seqlens.diff()])[None]
        return super().forward(input_ids=input_ids, position_ids=places)


def bordered(kind: type) -> Any:
    made = kind(transformers.Qwen2Config(**SIZES))
    made.load_state_dict(model().state_dict())
    return made.eval()


@pytest.mark.parametrize(
    "places, name", [(BORDERED, ""), (BORDERED.expand(3, 1, 24), ""), (BORDERED.roll(2), "documents")]
)
def test_lengths_and_positions_are_compared_by_what_they_mean(places: Tensor, name: str, tmp_path: Path) -> None:
    class Places(transformers.Qwen2ForCausalLM):
        def forward(self, input_ids: Tensor, position_ids: Tensor) -> Any:
            return super().forward(input_ids=input_ids, position_ids=position_ids.reshape(-1, 1, 24)[0])

    a = record(tmp_path / "a.h5", bordered(Lengths), input_ids=ids(1), cu_seqlens=BEGINS)
    found = probe.compare(a, record(tmp_path / "b.h5", bordered(Places), input_ids=ids(1), position_ids=places))
    assert ("inputs-mean-the-same" in codes(found)) is not bool(name)
    assert (found.verdict is Verdict.ALIGNED) if not name else first(found)[1] == name


def test_attention_that_leaves_documents_out_is_told_where_they_begin(tmp_path: Path) -> None:
    which = torch.repeat_interleave(torch.arange(2), BEGINS.diff())
    causal = torch.ones(24, 24).tril().bool()
    masks = [
        torch.zeros(24, 24).masked_fill(~each, -3e38)[None, None]
        for each in (causal & (which[:, None] == which), causal)
    ]
    wrong = model(attn_implementation="eager")
    attend = wrong.model.layers[0].self_attn.forward
    wrong.model.layers[0].self_attn.forward = lambda *given, **more: attend(
        *given, **more | {"attention_mask": masks[1]}
    )
    found = both(tmp_path, model(attn_implementation="eager"), wrong, input_ids=ids(1), attention_mask=masks[0])
    assert first(found) == ("model.layers.0.self_attn", "causal mask")
    assert "documents that begin at token 0, 10" in str(found.first_divergence.hints[0]["found"])  # type: ignore[union-attr]


def test_a_cap_of_the_logits_is_verified_and_its_setting_named(tmp_path: Path) -> None:
    caps = [model("Gemma2", final_logit_softcapping=cap, query_pre_attn_scalar=16) for cap in (3.0, None)]
    found = both(tmp_path, *caps)
    assert first(found) == ("", "soft cap") and found.first_divergence.settings == ("logits_softcap",)  # type: ignore[union-attr]


# Heads of the last token, and kernels that depend on the batch


class At(transformers.Qwen2ForCausalLM):
    """A model that returns the logits of one token."""

    place, factor = -1, 1.0

    def forward(self, input_ids: Tensor) -> Any:
        return self.lm_head(self.model(input_ids).last_hidden_state[:, self.place, None]) * self.factor


@pytest.mark.parametrize("place, factor, at", [(-1, 1.0, None), (-1, 1.01, ""), (-2, 1.0, ""), (0, 1.0, "")])
def test_a_head_of_the_last_token_is_compared_at_it(place: int, factor: float, at: str | None, tmp_path: Path) -> None:
    b = bordered(At)
    b.place, b.factor = place, factor
    for sides in ((bordered(transformers.Qwen2ForCausalLM), b), (b, bordered(transformers.Qwen2ForCausalLM))):
        found = both(tmp_path, *sides)
        assert "last-token-alone" in codes(found) and found["lm_head"].output[0].values()[0].shape == (2, 1, 61)
        assert (found.verdict is Verdict.ALIGNED) if at is None else first(found)[0] == at


class Variant(nn.Linear):
    """Adds up in another order, and in fewer bits, where the batch is one sample."""

    def forward(self, x: Tensor) -> Tensor:
        whole = super().forward(x)
        return whole if len(x) > 1 else whole.bfloat16().float()


@pytest.mark.parametrize("eps, place", [(1e-6, ""), (1e-1, "model.norm")])
def test_what_a_further_run_of_the_same_split_shows_is_batch_variant(eps: float, place: str, tmp_path: Path) -> None:
    sides = [model() for _ in range(3)]
    for each in sides:
        each.model.layers[0].mlp.down_proj.__class__ = Variant
    sides[1].model.norm.variance_epsilon = eps
    splits = {"a": 8, "b": 1, "n": 1}
    a, b, noise = (record(tmp_path / f"{x}.h5", each, split=splits[x]) for x, each in zip("abn", sides, strict=True))
    assert first(probe.compare(a, b))[0] == "model.layers.0.mlp.down_proj"
    found = probe.compare(a, b, noise=noise)
    (said,) = (each for each in found.notes if each.code == "batch-variant")
    assert "model.layers.0.mlp.down_proj" in said.facts["names"] and 1e-4 < said.facts["error"] < 1e-2
    assert (found.verdict is Verdict.ALIGNED) if not place else first(found)[0] == place


@pytest.mark.parametrize("dtype, shape", [("i8", (4, 0)), ("c8", (2, 2, 2)), ("i8", (2,))])
def test_inputs_that_are_empty_complex_or_of_another_size_tell_no_documents(dtype: str, shape: Any) -> None:
    for slot in ("position_ids", "mask"):
        assert begins_of(slot, shape if len(shape) > 1 else (4, 5, 5), lambda: np.zeros(shape, dtype)) is None


# float8


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_info_tells_what_of_float8_saturates_underflows_and_its_scales(task: str, tmp_path: Path) -> None:
    inner = Of(lambda self, held, scale: held.float() * scale)
    values = torch.tensor([[448.0, -448.0, 0.0, 0.01, 1.0, 2.0, 3.0, 4.0]]).to(torch.float8_e4m3fn)
    net = Of(lambda self, x: self.inner(values, torch.tensor([0.5])) + x, inner=inner)
    with probe.capture(net, tmp_path / "a.h5", task=task), torch.no_grad():
        net(torch.ones(1, 8))
        probe.step()
    with Reader(tmp_path / "a.h5") as reader:
        (said,) = float8_row(reader).values()
    for part in ("float8_e4m3fn ×1: 1 of ±448 reached", "25.00% at the end", "12.50% subnormal", "12.50% zeros"):
        assert (part in said) is (task == "tensor" or part not in ("25.00% at the end", "12.50% subnormal"))
