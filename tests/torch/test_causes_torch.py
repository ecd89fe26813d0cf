"""Several faults, faults from a step on, and optimizers that say nothing of themselves, in models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import probe  # noqa: E402
from benchmarks.localisation.pairs.pair import Planted, Setup  # noqa: E402
from benchmarks.localisation.tools import suite  # noqa: E402
from benchmarks.localisation.tools.training import Run, run_of  # noqa: E402
from probe.comparison.result import Kind, Verdict  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402
from probe.records import Phase  # noqa: E402

Tweak = Callable[[Run], object]
QWEN2 = Setup("qwen2")
EAGER = {"attention": "eager"}


def record(path: Path, setup: Setup, tweak: Tweak | None = None, task: str = "statistics", begin: int = 0) -> Path:
    """Train a setup; the steps from ``begin`` on are recorded, counted from 0."""
    run = run_of(setup)
    if tweak is not None:
        tweak(run)
    for index in range(begin):
        run.step(index)
    probe.start(run.parts[0], path, task=task)
    try:
        for index in range(begin, setup.steps):
            probe.step(loss=run.step(index))
    finally:
        probe.stop()
    return path


def compared(
    tmp_path: Path, setup: Setup, *planted: Planted, task: str = "statistics", a: Tweak | None = None,
    b: Tweak | None = None, **noise: Any,
) -> Comparison:  # fmt: skip
    mine = record(tmp_path / "a.h5", setup, a, task)
    return probe.compare(mine, record(tmp_path / "b.h5", replace(setup, **noise, planted=planted), b, task))


def places(found: Comparison) -> list[tuple[str, str]]:
    return [(each.phase.label, each.path) for each in found.divergences]


EPS = Planted("eps", "model.layers.1.input_layernorm", 1e-3)
SEVERAL = {
    "eps and a bias behind it": (
        [EPS, Planted("bias_shift", "model.layers.2.self_attn.q_proj", 0.1)],
        [("init", "model.layers.2.self_attn.q_proj"), ("forward", EPS.path)],
    ),
    "eps and another activation": (
        [EPS, Planted("gelu", "model.layers.2.mlp.act_fn")], [("forward", EPS.path), ("forward", "model.layers.2.mlp.act_fn")],
    ),
    "eps and backward": (
        [EPS, Planted("gradient", "model.layers.0.mlp.up_proj", 0.5)],
        [("forward", EPS.path), ("backward", "model.layers.0.mlp.up_proj")],
    ),
    "eps and learning rate": ([EPS, Planted("lr", "", 0.1)], [("forward", EPS.path), ("update", "")]),
    "eps and beta2": ([EPS, Planted("beta2")], [("forward", EPS.path), ("update", "")]),
    "a weight and attention's dropout": (
        [Planted("weight", "model.layers.0.mlp.up_proj"), Planted("attention_dropout", "model.layers.2.self_attn")],
        [("init", "model.layers.0.mlp.up_proj"), ("forward", "model.layers.2.self_attn")],
    ),
    "a weight, an activation, the learning rate": (
        [Planted("weight", "model.layers.0.mlp.up_proj"), Planted("gelu", "model.layers.1.mlp.act_fn"), Planted("lr", "", 0.1)],
        [("init", "model.layers.0.mlp.up_proj"), ("forward", "model.layers.1.mlp.act_fn"), ("update", "")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_several_faults_are_listed_and_what_they_cause_is_not(name: str, tmp_path: Path) -> None:
    planted, wanted = SEVERAL[name]
    found = compared(tmp_path, QWEN2, *planted, **EAGER)
    assert places(found) == wanted
    confidences = [each.confidence for each in found.divergences]
    assert all(0.3 < confidence <= confidences[0] + 0.05 for confidence in confidences)


# ---- from a step on ----------------------------------------------------------------------------------


def from_step(step: int, change: Callable[[Run], object]) -> Tweak:
    """Return what changes a run when a step begins."""

    def tweak(run: Run) -> None:
        begin = run.begin

        def begun(index: int) -> None:
            if index == step:
                change(run)
            begin(index)

        run.begin = begun

    return tweak


def _accumulates_more(run: Run) -> None:
    run.setup, run.loss_factor = replace(run.setup, micros=4), 2.0


def _other_seeds(run: Run) -> None:
    """Draw other numbers from step 2 on."""
    begin = run.begin
    run.begin = lambda index: (begin(index), torch.manual_seed(index if index < 2 else index + 77))


def _averaging(run: Run) -> None:
    """Keep a moving average of a weight, as a buffer."""
    head = run.model.lm_head
    head.register_buffer("average", torch.zeros_like(head.weight))
    run.kept_share = 0.9

    def average(module: Any, args: Any, output: Any) -> None:
        with torch.no_grad():
            module.average.mul_(run.kept_share).add_(module.weight, alpha=1 - run.kept_share)

    head.register_forward_hook(average)


def _averages_less(run: Run) -> None:
    run.kept_share = 0.8


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_schedule_that_parts_in_a_step(task: str, tmp_path: Path) -> None:
    found = compared(tmp_path, replace(QWEN2, steps=5), Planted("schedule", size=0.5, step=3), task=task, **EAGER)
    first = found.first_divergence
    assert first is not None and (first.step, first.phase.label, first.path) == (3, "update", "")
    assert "by the numbers: lr 0.001 against 0.0005" in first.evidence
    assert "1 later step is not judged: it inherits what is wrong in step 3" in found.warnings


def test_gradients_that_are_accumulated_otherwise_from_a_step_on(tmp_path: Path) -> None:
    tweak = from_step(2, _accumulates_more)
    found = compared(tmp_path, replace(QWEN2, steps=4, micros=2), b=tweak, **EAGER)
    first = found.first_divergence
    assert first is not None and (first.step, first.phase.label, first.path) == (2, "loss", "")
    assert "B's gradients are 2 times A's" in first.evidence
    assert first.hint == "the loss is not divided by the number of micro-batches, 2 in A and 4 in B"


def test_gradients_of_which_only_the_last_micro_batch_is_left_from_a_step_on(tmp_path: Path) -> None:
    found = compared(tmp_path, replace(QWEN2, steps=4, micros=2), Planted("last_micro", step=2), **EAGER)
    assert [(each.step, each.phase.label, each.path) for each in found.divergences] == [(2, "gradient", "")]


def test_a_dropout_that_draws_other_numbers_from_a_step_on(tmp_path: Path) -> None:
    path = "bert.encoder.layer.1.output.dropout"
    setup = replace(Setup("bert"), steps=4, planted=(Planted("dropout", path, 0.1),))
    mine = record(tmp_path / "a.h5", setup)
    found = probe.compare(mine, record(tmp_path / "b.h5", setup, _other_seeds))
    first = found.first_divergence
    assert first is not None and (first.step, first.phase.label, first.path) == (2, "forward", path)
    assert any(line.startswith("this Dropout is active on both sides: it takes away ") for line in first.evidence)


def test_a_moving_average_that_parts_in_a_step(tmp_path: Path) -> None:
    def b(run: Run) -> None:
        _averaging(run)
        from_step(2, _averages_less)(run)

    found = compared(tmp_path, replace(QWEN2, steps=4), a=_averaging, b=b)
    first = found.first_divergence
    assert first is not None and (first.step, first.path, first.a[0].slot) == (2, "lm_head", "average")


@pytest.mark.parametrize("restores", [True, False])
def test_a_run_that_goes_on_with_and_without_its_optimizers_state(restores: bool, tmp_path: Path) -> None:
    setup = replace(QWEN2, steps=6)
    whole = record(tmp_path / "a.h5", setup)
    forget = None if restores else from_step(3, lambda run: [each.state.clear() for each in run.optimizers])
    found = probe.compare(whole, record(tmp_path / "b.h5", replace(setup, **EAGER), forget, begin=3), steps="3:0")
    if restores:
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        return
    first = found.first_divergence
    assert first is not None and (first.phase.label, first.path, first.step, first.b[0].step) == ("update", "", 3, 0)
    assert "the first of them: the optimizer's count of steps is 4 in A and 1 in B" in first.evidence


# ---- an optimizer of one's own -----------------------------------------------------------------------


class Own(torch.optim.Optimizer):
    """Adam without settings, and with states of other names."""

    def __init__(self, parameters: Any, **rule: Any) -> None:
        super().__init__(parameters, {})
        self.rule = {
            "rate": 1e-3,
            "b1": 0.9,
            "b2": 0.95,
            "eps": 1e-8,
            "inside": False,
            "corrects": True,
            "decay": 0.1,
            **rule,
        }

    @torch.no_grad()
    def step(self) -> None:
        r = self.rule
        for p in (p for group in self.param_groups for p in group["params"]):
            state = self.state[p]
            if not state:
                state.update(n=0, m=torch.zeros_like(p), q=torch.zeros_like(p))
            state["n"] += 1
            state["m"].lerp_(p.grad, 1 - r["b1"])
            state["q"].mul_(r["b2"]).addcmul_(p.grad, p.grad, value=1 - r["b2"])
            one, two = (1 - r["b1"] ** state["n"], 1 - r["b2"] ** state["n"]) if r["corrects"] else (1, 1)
            q = state["q"] / two
            p.mul_(1 - r["rate"] * r["decay"]).sub_(
                r["rate"] * state["m"] / one / ((q + r["eps"]).sqrt() if r["inside"] else q.sqrt() + r["eps"])
            )


def own(**rule: Any) -> Tweak:
    def tweak(run: Run) -> None:
        run.optimizers = [Own(list(run.model.parameters()), **rule)]
        run._update = lambda optimizer, index: optimizer.step()

    return tweak


OWN = {
    "lr": ({"rate": 1.1e-3}, "statistics", "B's lr is 1.1 times A's"),
    "beta1": ({"b1": 0.8}, "statistics", "beta1 0.9 against 0.8"),
    "beta2": ({"b2": 0.999}, "statistics", "beta2 0.95 against 0.999"),
    "no bias correction": ({"corrects": False}, "statistics", "B does not correct the bias of Adam's moments, A does"),
    "decay": ({"decay": 0.0}, "statistics", "B takes 0.0001 times the weight less away with an update (weight_decay)"),
    "eps": ({"eps": 1e-3}, "tensor", "eps 1e-08 against 0.001"),
    "eps, statistics": (
        {"eps": 1e-3}, "statistics", "eps of B is larger, about 1e-03: the smaller a gradient, the shorter is its update",
    ),
    "eps inside the root": ({"eps": 1e-6, "inside": True}, "tensor", "B adds eps (1e-06) inside the root, A behind it"),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_an_optimizer_of_ones_own_is_read_from_its_numbers(name: str, tmp_path: Path) -> None:
    rule, task, text = OWN[name]
    first = compared(tmp_path, QWEN2, a=own(), b=own(**rule), task=task, **EAGER).first_divergence
    assert first is not None and first.phase.label == "update"
    assert any(line.startswith(f"by the numbers: {text}") for line in first.evidence), first.evidence


def test_clean_runs_with_an_optimizer_of_ones_own(tmp_path: Path) -> None:
    found = compared(tmp_path, replace(QWEN2, steps=3), a=own(), b=own(), **EAGER)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def test_updates_that_are_rounded_in_16_bits_are_no_other_learning_rate(tmp_path: Path) -> None:
    setup = Setup("vit", dtype="fp16", optimizer="sgd")
    found = compared(tmp_path, setup, Planted("heads", "vit.layers.1.attention.o_proj"), **EAGER)
    assert places(found) == [("forward", "vit.layers.1.attention.o_proj")]


def test_an_eps_that_a_few_alike_updates_show_is_not_a_learning_rate(tmp_path: Path) -> None:
    """From statistics both readings fit: three of four updates are shorter by the same share."""
    pair = suite.PAIRS["vae/fp32/adam_eps/0.0001"]
    digest = suite.sources_digest()
    a, b = (suite.record(setup, "statistics", tmp_path, digest) for setup in (pair.a, pair.b))
    (first,) = probe.compare(a, b).divergences
    assert [line for line in first.evidence if line.startswith("by the numbers: ")] == [
        "by the numbers: eps of B is larger, about 2e-04: the smaller a gradient, the shorter is its update"
    ]


class Cut(torch.nn.Linear):
    """A linear layer that passes nothing back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_layer_behind_which_nothing_learns_is_named_and_not_what_does_not_learn(tmp_path: Path, task: str) -> None:
    paths = []
    for name, second in (("a", torch.nn.Linear), ("b", Cut)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.GELU(), second(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        paths.append(tmp_path / f"{name}.h5")
        with probe.capture(model, paths[-1], task=task):
            loss = model(torch.ones(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
    for a, b, side in ((*paths, "B"), (*paths[::-1], "A")):
        (first,) = probe.compare(a, b).divergences
        assert (first.phase, first.kind, first.path) == (Phase.BACKWARD, Kind.MISSING, "2")
        assert first.evidence == (
            f"2 gets a gradient on both sides and passes nothing back in {side}",
            "2 parameters before it get none there, first weight of 0",
        )
        assert first.hint == f"{side} cuts the graph here: look for detach(), no_grad() or .data in this module"
