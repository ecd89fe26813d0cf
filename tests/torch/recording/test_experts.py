"""Load and entropy of experts: what a recording tells of its routers, held against numbers worked out by hand."""

from __future__ import annotations

import json
import math

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import probe
from probe.commands.cli import main
from probe.contents.experts import load_curves, loads
from probe.curve_comparison.reading.recorded import read_recording
from probe.report.html.document import document
from probe.report.html.run_document import run_document
from probe.store.reading.reader import Reader

INF, NAN, LN3 = math.inf, math.nan, math.log(3)
QUARTER = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)  # entropy of 1/4 and 3/4: logits of 0 and log 3


class Told(nn.Module):
    """Routers that return, call by call, what they are told to."""

    def __init__(self, *routers: list[tuple[torch.Tensor, ...]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in routers)
        for layer, outputs in zip(self.layers, routers, strict=True):
            of_calls = iter(outputs)
            layer.forward = lambda x, of_calls=of_calls: next(of_calls)

    def forward(self, x):
        return sum(layer(x)[0].sum() for layer in self.layers) * 0 + x.sum()


def record(path: str, model: nn.Module, steps: int = 1, micros: int = 1, **options) -> Reader:
    with probe.capture(model, path, overwrite=True, quiet=True, **{"task": "tensor"} | options):
        for _step in range(steps):
            _ = [model(torch.ones(4, 3, requires_grad=True)).backward() for _micro in range(micros)]
            probe.step()
    return Reader(path)


def chosen(*rows: list[int], dtype=torch.int64) -> tuple[torch.Tensor, ...]:
    ids = torch.tensor(rows, dtype=dtype)
    return torch.tensor([[0.0, LN3, -INF, -INF]] * len(ids)), torch.full(ids.shape, 0.5), ids


ONE = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int64)
MAP = torch.tensor([[1, 0, 0, 1], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]).bool()
ROUTERS = {
    "indices": (chosen([0, 1], [0, 1], [0, 2], [0, 1]), [4, 3, 1, 0], 2, QUARTER),
    "dropped": (chosen([0, 1], [0, -1], [-1, -1], [0, 1], dtype=torch.int32), [3, 2, 0, 0], 2, QUARTER),
    "none": (chosen(*[[-1]] * 4), [0, 0, 0, 0], 1, QUARTER),
    "more than experts": (chosen(*[[0, 1, 2, 3, 3]] * 4), [4, 4, 4, 8], 5, QUARTER),
    "a map, and what it keeps of the probabilities": ((MAP / 2, MAP), [4, 1, 1, 2], 2, NAN),
    "probabilities": ((torch.tensor([[0.5, 0.5, 0, 0], [1, 0, 0, 0]]), *ONE), [2, 0, 0, 0], 1, math.log(2) / 2),
    "logits of 0": ((torch.zeros(2, 4), *ONE), [2, 0, 0, 0], 1, math.log(4)),
    "sigmoid": ((torch.tensor([[0.2, 0.6, 1e-30, 1e-30], [0.1, 0.3, 1e-30, 1e-30]]), *ONE), [2, 0, 0, 0], 1, QUARTER),
    "logits, NaN": ((torch.tensor([[5.0, 5 + LN3, -1e9, -1e9], [NAN, 0, 0, 0]]), *ONE), [2, 0, 0, 0], 1, QUARTER),
}


@pytest.mark.parametrize(("outputs", "counts", "k", "entropy"), ROUTERS.values(), ids=ROUTERS)
def test_choices_are_counted_and_probabilities_have_an_entropy(tmp_path, outputs, counts, k, entropy):
    (load,) = loads(record(tmp_path / "a.h5", Told([outputs])))
    assert (load.path, load.tokens, load.k, load.counts.tolist()) == ("layers.0", len(outputs[0]), k, counts)
    assert load.entropy == pytest.approx(entropy, nan_ok=True)
    said, total = json.loads(json.dumps(load.as_json(), allow_nan=False)), sum(counts)
    of_load = -sum(n / total * math.log(n / total) for n in counts if n) if total else None
    ends = [4 * each(counts) / total for each in (min, max)] if total else [None, None]
    assert [said["load_min"], said["load_max"]] == ends and said["load_entropy"] == pytest.approx(of_load)
    assert (said["unused"], said["max_vio"]) == (counts.count(0), ends[1] - 1 if total else None)


ODD = {
    "floats": chosen([0, 1], dtype=torch.float32), "no index": chosen([0, 2**40]), "without scores": chosen([0, 1])[1:],
    "a causal mask": (torch.ones(4, 4), torch.ones(4, 4).tril().bool()), "a mask": (MAP / 2, torch.ones(4, 4).bool()),
    "a vocabulary": (torch.ones(2, 9000), torch.ones(2, 3), torch.tensor([[1, 2, 8000]] * 2)),
}  # fmt: skip


@pytest.mark.parametrize("outputs", ODD.values(), ids=ODD)
def test_what_is_no_choice_of_experts_is_none(tmp_path, outputs):
    assert loads(record(tmp_path / "a.h5", Told([outputs]))) == []


def test_calls_of_a_step_are_one_load_and_steps_are_curves(tmp_path):
    even, odd = chosen([0, 1], [2, 3]), chosen([0, 1], [0, 1])
    reader = record(tmp_path / "a.h5", Told([even, odd, odd, odd]), steps=2, micros=2)
    assert [each.counts.tolist() for each in loads(reader)] == [[3, 3, 1, 1], [4, 4, 0, 0]]
    series = read_recording(reader.path).series
    assert [*series["MaxVio L0"].values, *series["router entropy L0"].values] == pytest.approx(
        [0.5, 1, QUARTER, QUARTER]
    )
    many = record(tmp_path / "b.h5", Told(*([each] for each in (even, odd, even, even, odd))))
    of_all = {"MaxVio mean": 0.4, "MaxVio worst": 1, "router entropy mean": QUARTER, "router entropy worst": QUARTER}
    assert {name: value for _, name, value in load_curves(many)} == pytest.approx(of_all)


@pytest.mark.parametrize(("rows", "counts"), [((3, 0, 1), [[3, 0, 1]]), ((4, 4, 4), [])])
def test_experts_that_are_modules_need_no_values(tmp_path, rows, counts):
    model = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(3, 3) for _ in rows)})
    model.forward = lambda x: sum(e(x[:n]).sum() for e, n in zip(model["experts"], rows, strict=True) if n)
    assert [each.counts.tolist() for each in loads(record(tmp_path / "a.h5", model, task="statistics"))] == counts


def test_info_lists_routers_and_the_page_has_those_of_both_sides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outputs = chosen([0, 1], [0, 1], [0, 2], [0, 1])
    record("a.h5", Told(*[[outputs]] * 12)), record("b.h5", Told(*[[outputs] * 2] * 12), steps=2)
    wanted = ["a.h5"], ["a.h5", "-v"], ["b.h5", "--json"]
    short, long, told = (CliRunner().invoke(main, ["info", *each]).output for each in wanted)
    assert "experts, step 0" in short and short.count("2 of 4") == 10 and "… and 2 more: -v" in short
    assert long.count("2 of 4") == 12 and "0.00–2.00" in long and "0.56" in long
    assert [each["tokens_per_expert"] for each in json.loads(told)["experts"]] == [[4, 3, 1, 0]] * 24
    page, one = document(probe.compare("a.h5", "b.h5", steps="0:1"))["experts"], run_document(Reader("b.h5"))["experts"]
    steps = [[each["step"] for each in side] for side in (page["a"], page["b"], one["a"])]
    assert steps == [[0] * 12, [0] * 12, [0] * 12 + [1] * 12]


def test_nothing_is_said_without_values_or_of_what_is_damaged(tmp_path):
    outputs = chosen([0, 1], [0, 1], [0, 2], [0, 1])
    reader = record(path := tmp_path / "a.h5", Told([outputs]), task="statistics")
    assert loads(reader) == [*load_curves(reader)] == []
    assert "of load" not in CliRunner().invoke(main, ["info", str(path)]).output
    record(path, Told([outputs])).close()
    whole, stored = path.read_bytes(), outputs[2].numpy().tobytes()
    assert stored in whole and path.write_bytes(whole.replace(stored, b"\x01" + stored[1:]))
    assert loads(Reader(path)) == []


def test_qwen3_moe_is_counted_as_torch_counts(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "moe_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"vocab_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 1, "head_dim": 8}
    model, seen = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **config)), []
    _ = [each.mlp.gate.register_forward_hook(lambda *call: seen.append(call[-1])) for each in model.model.layers]
    with probe.capture(model, tmp_path / "a.h5", tensors=["*.mlp.gate"], quiet=True):  # values of routers alone
        model(input_ids=torch.arange(24).view(2, 12)).logits.mean().backward()
        probe.step()
    for each, (logits, _, ids) in zip(loads(Reader(tmp_path / "a.h5")), seen, strict=True):
        assert each.counts.tolist() == torch.bincount(ids.view(-1), minlength=8).tolist() and each.tokens == 24
        assert each.entropy == pytest.approx(torch.distributions.Categorical(logits=logits).entropy().mean().item())
