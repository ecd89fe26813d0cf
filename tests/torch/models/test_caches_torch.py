"""Inference with a cache of keys and values: replayed alone, and one side that begins behind a cached prefix."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

import probe
from probe.answer.comparison import Comparison

SIZES = dict(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)
IDS = torch.randint(0, 48, (1, 12), generator=torch.Generator().manual_seed(3))
OTHER = IDS + (torch.arange(12) == 9)


def made(window: bool = False) -> nn.Module:
    torch.manual_seed(0)
    if window:
        return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=4)).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def generated(path: Path, model: nn.Module, ids: Tensor = IDS[:, :5], **options: object) -> Path:
    with probe.capture(model, path, task="tensor"):
        model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None, **options)
        probe.step()
    return path


def spoilt(model: nn.Module, place: str) -> nn.Module:
    """Let a module return more where it is given one token."""
    module = model.get_submodule(place)
    plain = module.forward

    def forward(*args: Tensor, **more: Tensor) -> object:
        found = plain(*args, **more)
        factor = 1.02 if (*args, *more.values())[0].shape[1] == 1 else 1.0
        return (found[0] * factor, *found[1:]) if isinstance(found, tuple) else found * factor

    forward.__signature__, module.forward = inspect.signature(plain), forward
    return model


def uncached(answer: Comparison) -> set[str]:
    return {name for each in answer.replayed.left if each.code == "replay-needs-cache" for name in each.facts["names"]}


PADDED = {"ids": torch.tensor([[0, 0, 3, 1], [3, 1, 4, 1]]), "attention_mask": torch.tensor([[0, 0, 1, 1], [1] * 4])}


@pytest.mark.parametrize(
    ("window", "options"), [(False, {}), (False, PADDED), (True, {})], ids=["plain", "padded", "window"]
)
def test_generating_is_replayed_with_the_cache_that_it_writes(
    tmp_path: Path, window: bool, options: dict[str, Tensor]
) -> None:
    answer = probe.replay(made(window), generated(tmp_path / "a.h5", made(window), **options))
    assert answer.verdict == "aligned" and not answer.replayed.left and not answer.left_out, answer


@pytest.mark.parametrize("place", ["mlp", "self_attn.o_proj", "self_attn"])
def test_a_fault_of_decoding_is_named_by_a_replay(tmp_path: Path, place: str) -> None:
    answer = probe.replay(spoilt(made(), f"model.layers.1.{place}"), generated(tmp_path / "a.h5", made()))
    assert [found.path for found in answer.divergences] == [f"model.layers.1.{place}"]


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"cache_implementation": "static"}], ids=["beams", "static"])
def test_attention_is_not_judged_with_another_cache(tmp_path: Path, options: dict[str, object]) -> None:
    """Beams change places in A's cache between calls, and a static one has another size than the one that B makes."""
    path = generated(tmp_path / "a.h5", made(), **options)
    answer = probe.replay(made(), path)
    assert answer.verdict == "aligned" and {f"model.layers.{at}.self_attn" for at in range(3)} <= uncached(answer), (
        answer
    )
    assert "need the cache that earlier calls wrote: not replayed" in " ".join(str(answer).split())
    assert answer.left_out or "num_beams" not in options
    answer = probe.replay(spoilt(made(), "model.layers.2.self_attn.o_proj"), path)
    assert [found.path for found in answer.divergences] == ["model.layers.2.self_attn.o_proj"]
    if "num_beams" not in options:
        given = {"past_key_values": transformers.StaticCache(config=made().config, max_cache_len=9)}
        assert not probe.replay(made(), path, inputs=given).replayed.left


class Own(nn.Module):
    """Keeps keys in a buffer, as hand-written loops do; where its tokens begin is a plain number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.key, self.head = nn.Embedding(48, 16), nn.Linear(16, 16), nn.Linear(16, 48)
        self.register_buffer("keys_cache", torch.zeros(1, 16, 16), persistent=False)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        x, end = self.embed(ids), start + ids.shape[1]
        self.keys_cache[:, start:end] = self.key(x)
        return self.head(x + self.keys_cache[:, :end].mean(1, keepdim=True))


@pytest.mark.parametrize("fault", ["", "key", "head"])
def test_a_cache_of_buffers_is_no_false_alarm(tmp_path: Path, fault: str) -> None:
    with probe.capture(model := Own(), tmp_path / "a.h5", task="tensor"), torch.no_grad():
        for first, last in ((0, 3), (3, 4), (4, 5)):
            model(IDS[:, first:last], first)
        probe.step()
    answer = probe.replay(spoilt(Own(), fault) if fault else Own(), tmp_path / "a.h5")
    assert [found.path for found in answer.divergences] == [fault] * bool(fault) and uncached(answer) == {"the model"}


# ---- One side begins behind a cached prefix.


def behind(folder: Path, *, bounds: tuple[int, ...] = (8, 12), swap: bool = False, places: int | None = 0, ids: Tensor = IDS,
           task: str = "tensor", rows: int = 1, fault: bool = False) -> Comparison:  # fmt: skip
    """Compare one prefill of all tokens with what was given behind a cache of the first ones."""
    model, cached, names = made(), made(), ["whole.h5", "end.h5"]
    cached.model.layers[1].mlp.act_fn = nn.GELU() if fault else nn.SiLU()
    model.model.layers[1].mlp.act_fn = nn.SiLU()

    def run(model: nn.Module, ids: Tensor, first: int, last: int, off: int | None, **more: object) -> object:
        given = {} if off is None else {"position_ids": torch.arange(first + off, last + off).expand(rows, -1)}
        return model(input_ids=ids[:, first:last].expand(rows, -1), **given, **more)

    with torch.no_grad():
        with probe.capture(model, folder / names[0], task=task):
            run(model, IDS, 0, 12, None if places is None else 0)
            probe.step()
        cache = run(cached, ids, 0, 8, 0).past_key_values
        with probe.capture(cached, folder / names[1], task=task):
            for first, last in zip(bounds[:-1], bounds[1:], strict=True):
                run(cached, ids, first, last, places, past_key_values=cache)
            probe.step()
    return probe.compare(*(folder / name for name in (names[::-1] if swap else names)))


DECODED = (8, 10, 11, 12)


@pytest.mark.parametrize("options", [{}, {"bounds": DECODED}, {"swap": True}, {"places": None}, {"rows": 2}], ids=str)
@pytest.mark.parametrize("fault", [False, True])
def test_tokens_behind_a_cached_prefix_are_lined_up(tmp_path: Path, options: dict[str, object], fault: bool) -> None:
    answer = behind(tmp_path, fault=fault, **options)
    assert [found.path for found in answer.divergences] == ["model.layers.1.mlp.act_fn"] * fault, answer
    assert answer.coverage.share == 1 and not [slot for slot in answer.slots if slot.verdict == "not judged"]
    assert [each.facts["begin"] for each in answer.notes if each.code == "begins-behind-prefix"] == [8]


@pytest.mark.parametrize(
    ("options", "told"),
    [({"places": -1}, (1, 0, 1)), ({"ids": OTHER}, (0, 1, 1)), ({"ids": OTHER, "places": -1}, (0, 0, 0)), ({"task": "statistics"}, (0, 0, 0))],
    ids=["positions", "ids", "both", "statistics"],
)  # fmt: skip
def test_other_ids_or_positions_are_said(tmp_path: Path, options: dict[str, object], told: tuple[int, ...]) -> None:
    answer = behind(tmp_path, **options)
    (facts,) = (each.facts for each in answer.notes if each.code == "begins-behind-prefix")
    assert (facts["same"], facts["same_places"], facts["is_lined_up"]) == told
    assert answer.verdict == "diverged" and answer.first_divergence.kind == "inputs"
