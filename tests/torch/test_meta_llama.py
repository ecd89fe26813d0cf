"""Meta's Llama against transformers': the rows of wq and wk lie in another order, which the ready-made mapping says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import probe  # noqa: E402
from benchmarks.matching.models.llama import CONFIG, pair  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.errors import MappingError  # noqa: E402
from probe.records import Phase, Role  # noqa: E402

LAYER = 1


def record(path: Path, model: Any, task: str, tokens: Any) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with probe.capture(model, path, task=task):
        for _ in range(2):
            returned = model(tokens)
            loss = getattr(returned, "logits", returned).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def recorded(folder: Path, task: str, change: Callable[[Any], object] = lambda model: None) -> tuple[Path, Path]:
    torch.manual_seed(0)
    meta, hf, (tokens,) = pair()
    change(meta)
    return record(folder / "meta.h5", meta, task, tokens), record(folder / "hf.h5", hf, task, tokens)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("turned", [False, True])
def test_queries_and_keys_are_compared_row_by_row(tmp_path: Path, task: str, turned: bool) -> None:
    files = recorded(tmp_path, task)
    found = probe.compare(*(files[::-1] if turned else files), mapping="meta/llama")
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    assert not any("weights that were not compared" in text for text in found.warnings), found.warnings
    for name in ("wq", "wk"):
        slots = [s for s in found[f"layers.{LAYER}.attention.{name}"] if s.step == 0]
        known = {(s.phase, s.role): s.metrics for s in slots if s.metrics.is_known}
        assert known.keys() >= {
            (Phase.INIT, Role.PARAM), (Phase.FORWARD, Role.OUTPUT), (Phase.BACKWARD, Role.GRAD_OUTPUT),
            (Phase.GRADIENT, Role.PARAM_GRAD), (Phase.UPDATE, Role.STATE), (Phase.UPDATE, Role.DELTA),
        }  # fmt: skip
        assert known[Phase.INIT, Role.PARAM].rel_l2 < 1e-12
        if task == "tensor":
            assert not known[Phase.INIT, Role.PARAM].estimated and not known[Phase.FORWARD, Role.OUTPUT].estimated
            assert known[Phase.FORWARD, Role.OUTPUT].rel_l2 < 1e-5


def as_transformers_has_it(meta: Any) -> None:
    """Undo what the conversion did for one layer's keys."""
    weight = meta.layers[LAYER].attention.wk.weight
    size = CONFIG.hidden_size // CONFIG.num_attention_heads
    rows = weight.data.view(CONFIG.num_key_value_heads, size // 2, 2, -1)
    weight.data = rows.transpose(1, 2).reshape(weight.shape).contiguous()


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_layer_that_was_not_permuted_is_named(tmp_path: Path, task: str) -> None:
    found = probe.compare(*recorded(tmp_path, task, as_transformers_has_it), mapping="meta/llama")
    first = found.first_divergence
    assert found.verdict is Verdict.DIVERGED and first is not None and first.phase is Phase.INIT
    meta, hf = f"layers.{LAYER}.attention.wk", f"model.layers.{LAYER}.self_attn.k_proj"
    assert [(ref.path, ref.slot) for ref in (*first.a, *first.b)] == [(meta, "weight"), (hf, "weight")]
    assert first.hint.startswith(
        f"the rows of each head lie in B's {hf} as in A's {meta}, where those of the two halves"
    ), first.hint


def test_weights_are_converted_there_and_back() -> None:
    torch.manual_seed(0)
    meta, hf, _ = pair()
    there = probe.convert_weights(hf.state_dict(), "meta/llama", to="torch", source=hf, like=meta)
    wanted = meta.state_dict()
    assert there.keys() == wanted.keys()
    assert all((there[name] == wanted[name].numpy()).all() for name in wanted)
    back = probe.convert_weights(there, "meta/llama", to="torch", source=meta, like=hf)
    assert all((back[name] == value.numpy()).all() for name, value in hf.state_dict().items())


def test_heads_that_cannot_be(tmp_path: Path) -> None:
    heads, message = "3", "wk: layers.0.attention.wk.weight has 16 rows, which 3 heads of two halves do not divide"
    rules = {"Transformer": {"layers": "model.layers"}, "TransformerBlock": {"attention": "self_attn"},
             "Attention": {"wk": {"to": "k_proj", "rotary": {"heads": heads, "here": "interleaved"}}}}  # fmt: skip
    files = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for path, model in zip(files, pair()[:2], strict=True):
        with probe.capture(model, path, task="structure"):
            pass
    with pytest.raises(MappingError, match=message):
        probe.compare(*files, mapping=rules)
