"""What was not recorded, not compared or left out is said, and keeps an answer from being a bare ALIGNED."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.answer.comparison import Comparison
from probe.answer.left_out import What, Why
from probe.answer.logged import Logged, logged_otherwise
from probe.answer.result import Kind, Verdict
from probe.comparing import compare
from probe.errors import NotRecordedError
from probe.records import Phase
from probe.report.left_out import but_for
from probe.report.text import render
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad
from tests.toys import GPT, Step, batch, evaluate, gpt, loss_of, module, plain_step, record, replaced
from tests.verdict.planted import MODEL_FAULTS, Clean, Model, Recorder, changed, said

# ---- What was not recorded, not compared or left out is said, and keeps an answer from being a bare ALIGNED.

# ---- What keeps an answer from being `ALIGNED`, or stands beside it: what was recorded, and what is said.

CoverageStep = Callable[[nn.Module, nn.Optimizer, int], Any]


def beside(name: str, values: np.ndarray) -> CoverageStep:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        probe.log(name, Tensor(values))
        return plain_step(model, optimizer, number)

    return step


def times(factor: float) -> CoverageStep:
    return lambda model, optimizer, number: plain_step(model, optimizer, number) * factor


def in_parts(count: int, order: list[int] | None = None, *, other: bool = False) -> CoverageStep:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> float:
        ids = np.concatenate([batch(number).data, batch(number + (70 if other else 50)).data])[order or [0, 1, 2, 3]]
        for part in np.split(ids, count):
            (loss_of(model(Tensor(part)), Tensor(part)) / count).backward()
        optimizer.step()
        optimizer.zero_grad()
        return 1.0

    return step


def twice_evaluated(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    with no_grad():
        model(batch(number + 9))
    return plain_step(model, optimizer, number)


def wide(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    ids = Tensor(np.concatenate([batch(number).data] * 2))
    loss = loss_of(model(ids), ids)
    loss.backward()
    return loss


def evaluating(path: str) -> nn.Module:
    model = gpt()
    module(model, path).training = False
    return model


def frozen(path: str) -> nn.Module:
    model = gpt()
    module(model, path).weight.requires_grad = False
    return model


def nan_in(path: str) -> nn.Module:
    model = gpt()
    module(model, path).weight.data[0] = math.nan
    return model


IMAGE = np.arange(6, dtype=np.float32)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, set[str]]] = {
    "the same": ({}, {}, "aligned", set()),
    "no numbers": ({"task": "structure"}, {"task": "structure"}, "undecided", {"nothing-compared"}),
    "norms alone": ({"task": "norms"}, {"task": "norms"}, "undecided", {"nothing-compared"}),
    "rate of 0": ({"lr": 0.0}, {"lr": 0.0}, "undecided", {"no-parameter-changed"}),
    "losses of NaN": ({"step": times(math.nan)}, {"step": times(math.nan)}, "undecided", {"not-judged-behind-nan"}),
    "infinite losses": ({"step": times(math.inf)}, {"step": times(-math.inf)}, "diverged", set()),
    "NaN on both sides": (
        {"model": lambda: nan_in("layers.1.norm1")},
        {"model": lambda: nan_in("layers.1.norm1")},
        "undecided",
        {"not-judged-behind-nan"},
    ),
    "training and evaluation": ({}, {"step": evaluate}, "undecided", {"gradients-off-on-one-side"}),
    "another batch": ({}, {"step": wide}, "diverged", set()),
    "the same samples in parts": (
        {"step": in_parts(1)}, {"step": in_parts(2)}, "aligned", {"micro-batches-joined"},
    ),
    "samples strided over parts": (
        {"step": in_parts(1)}, {"step": in_parts(2, [0, 2, 1, 3])}, "aligned", {"micro-batches-joined"},
    ),
    "other samples in parts": ({"step": in_parts(1)}, {"step": in_parts(2, other=True)}, "diverged", set()),
    "an evaluation on one side": ({}, {"step": twice_evaluated}, "aligned", {"other-number-of-forwards"}),
    "one module in another mode": ({}, {"model": lambda: evaluating("layers.1.mlp")}, "aligned", {"modes-differ"}),
    "one weight that does not learn": (
        {"phases": ["init", "forward"]},
        {"phases": ["init", "forward"], "model": lambda: frozen("layers.1.norm1")},
        "aligned",
        {"weights-learn-on-one-side"},
    ),
    "another image beside the model": (
        {"step": beside("image", IMAGE)}, {"step": beside("image", IMAGE[::-1].copy())}, "diverged", set(),
    ),
    "a value on one side": ({"step": beside("seen", IMAGE)}, {}, "aligned", {"recorded-without-counterpart"}),
    "gradients alone": ({}, {"phases": ["gradient"]}, "aligned", {"recorded-parts-differ"}),
}  # fmt: skip
"""how A and B are recorded, the verdict, and the codes of what is said, among others"""


def recorded(path: Path, model: Callable[[], nn.Module] = gpt, lr: float = 1e-3, **options: Any) -> Path:
    made = model()
    options = {"task": "tensor", **options}
    return record(path, made, optimizer=nn.AdamW(made.parameters(), lr=lr), **options)


def said_coverage(answer: Comparison) -> set[str]:
    return {each.code for each in answer.notes}


@pytest.mark.parametrize("case", CASES)
def test_what_an_answer_says_of_itself(tmp_path: Path, case: str) -> None:
    a, b, verdict, codes = CASES[case]
    answer = compare(recorded(tmp_path / "a.h5", **a), recorded(tmp_path / "b.h5", **b))
    assert (answer.verdict.value, codes - said_coverage(answer)) == (verdict, set()), (
        answer.divergences,
        answer.warnings,
    )


@pytest.mark.parametrize("changed", [False, True])
def test_a_run_that_was_recorded_later_begins_with_what_the_step_before_left(tmp_path: Path, changed: bool) -> None:
    def trained(name: str, eps: float, steps: list[int] | None) -> Path:
        model = gpt()
        module(model, "layers.1.norm2").eps = eps
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        with probe.capture(model, tmp_path / name, steps=steps):
            for number in range(4):
                probe.step(loss=plain_step(model, optimizer, number))
        return tmp_path / name

    answer = compare(trained("a.h5", 1e-6, None), trained("b.h5", 0.1 if changed else 1e-6, [2, 3]))
    first = answer.first_divergence
    assert (first is not None) is changed
    assert sum((row.phase.label, row.step) == ("init", 2) for row in answer.slots) == 39
    assert first is None or (first.phase.label, first.step, first.path) == ("init", 2, "")


# ---- Comparisons of next to nothing.


def test_a_mapping_that_leaves_out_everything(tmp_path: Path) -> None:
    """Inputs alone are no comparison, however equal they are."""

    class Silent(nn.Module):
        def forward(self, ids: Tensor) -> None:
            self.gpt(ids)

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> float:
        model(batch(number))
        return 0.0

    a, b = (record(tmp_path / f"{name}.h5", Silent(gpt=gpt()), step=step) for name in "ab")
    found = probe.compare(a, b, mapping={"ignore": ["*"]})
    assert found.verdict is Verdict.UNDECIDED
    text = "nothing but what the model is given was compared: see what the mapping leaves out, and what was recorded"
    assert text in found.doubts


def test_recordings_of_whole_runs_are_compared_as_curves(tmp_path: Path) -> None:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        return plain_step(model, optimizer, number + 1)

    a = record(tmp_path / "a.h5", steps=3, task="norms")
    b = record(tmp_path / "b.h5", steps=3, task="norms", step=step)
    text = "nothing was compared: no pair of tensors with numbers on both sides; "
    holds = "losses and norms over steps (task='norms'): compare two such recordings with probe curves"
    found = probe.compare(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert found.doubts[1:] == (f"{text}A and B hold {holds}",)
    assert found.doubts[0].startswith("step 0: the loss differs (")
    full = record(tmp_path / "full.h5", steps=3)
    assert f"{text}B holds {holds}" in probe.compare(full, b).doubts


# ---- What was not recorded, not compared or not judged stands beside ALIGNED: a pair that differs there is never a bare one.

PHASES = [phase.label for phase in Phase if phase is not Phase.LOSS]
SOME_PHASES = [list(each) for n in range(1, 5) for each in itertools.combinations(PHASES, n)]
MODULES = [None, ["layers.0*"], ["!layers.1*"], ["Linear"]]
STEPS = [None, [0], [1], "every 2"]


def trained(fault: str) -> Any:
    """Return two training steps without a loss that is given; what is wrong is wrong in the second one, or in its backward."""

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> None:
        loss = loss_of(model(batch(number)), batch(number))
        (loss * (7.0 if fault == "loss" and number else 1.0)).backward()
        if fault == "gradient" and number:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data[...] *= 1.5
        if fault == "update" and number:
            optimizer.param_groups[0]["lr"] = 5.0
        optimizer.step()
        optimizer.zero_grad()

    return step


def weights_of(fault: str) -> nn.Module:
    """Return the model; one weight that nothing uses may be another one."""
    model = gpt(layers=2)
    module(model, "layers.0").spare = nn.Parameter(np.full((3, 4), 2.0 if fault == "init" else 1.0, np.float32))
    module(model, "layers.0").spare.requires_grad = False
    return model


class Runs:
    """Recordings of the small model, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, {}

    def of(self, fault: str, copy: int, **options: Any) -> Path:
        """Return a recording; of the same one, another copy is another run."""
        key = repr((fault, copy, sorted(options.items())))
        if key not in self._made:
            path = self._folder / f"{len(self._made)}.h5"
            model = weights_of(fault)
            with probe.capture(model, path, **options):
                optimizer = nn.AdamW(model.parameters(), lr=1e-3)
                for number in range(2):
                    trained(fault)(model, optimizer, number)
                    probe.step()
            self._made[key] = path
        return self._made[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def is_bare(found: probe.answer.comparison.Comparison) -> bool:
    """Tell whether a pair is said to be aligned, and nothing else."""
    return found.verdict is Verdict.ALIGNED and not found.left_out


@settings(max_examples=24, deadline=None, derandomize=True)
@given(
    fault=st.sampled_from(["loss", "gradient", "update", "init"]),
    sides=st.sampled_from(["A", "B", "AB"]),
    phases=st.sampled_from([None, *SOME_PHASES]),
    modules=st.sampled_from(MODULES),
    steps=st.sampled_from(STEPS),
)
def test_filters_that_hide_a_fault_are_said(
    runs: Runs, fault: str, sides: str, phases: list[str] | None, modules: list[str] | None, steps: object
) -> None:
    options = {"phases": phases, "modules": modules, "steps": steps}
    chosen = {name: each for name, each in options.items() if each is not None}
    files = [runs.of(which, copy, **(chosen if side in sides else {}))
             for copy, (side, which) in enumerate([("A", ""), ("B", fault)])]  # fmt: skip
    found = probe.compare(*files)
    assert not is_bare(found)
    if found.verdict is Verdict.ALIGNED:
        wanted = {What.PHASES: phases, What.MODULES: modules, What.STEPS: steps}
        assert {what for what, each in wanted.items() if each is not None} <= {left.what for left in found.left_out}
        assert " ".join(str(found).split()).startswith(f"ALIGNED{but_for(found.left_out)}")


@pytest.mark.parametrize("fault", ["loss", "gradient", "update", "init"])
def test_all_of_these_are_seen_where_all_was_recorded(runs: Runs, fault: str) -> None:
    assert probe.compare(runs.of("", 0), runs.of(fault, 1)).verdict is Verdict.DIVERGED


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_the_default_options_leave_a_bare_answer(run: Recorder, task: str) -> None:
    found = probe.compare(run(gpt(), steps=2, task=task), run(gpt(), steps=2, task=task))
    assert is_bare(found) and str(found).startswith("ALIGNED  A ")


def test_an_evaluation_has_no_loss_to_miss(tmp_path: Path) -> None:
    def evaluate(model: nn.Module, optimizer: nn.Optimizer, number: int) -> None:
        model(batch(number))

    files = [record(tmp_path / f"{name}.h5", step=evaluate) for name in "ab"]
    assert is_bare(probe.compare(*files))


def test_a_loss_that_one_side_has(runs: Runs, tmp_path: Path) -> None:
    with_loss = record(tmp_path / "a.h5", weights_of(""), steps=2)
    (left,) = probe.compare(with_loss, runs.of("", 1)).left_out
    assert (left.what, left.why, left.side) == (What.LOSS, Why.NOT_RECORDED, "B")
    (left,) = probe.compare(runs.of("", 0), runs.of("", 1)).left_out
    assert (left.what, left.why, left.side) == (What.LOSS, Why.NOT_RECORDED, "")


def test_a_chosen_step_of_a_run_of_one_step_leaves_nothing_out(run: Recorder) -> None:
    assert is_bare(probe.compare(run(gpt()), run(gpt())))
    files = [record_of_steps(run, [0], 1), record_of_steps(run, [0], 1)]
    assert is_bare(probe.compare(*files))
    files = [record_of_steps(run, [0], 3), record_of_steps(run, [0], 3)]
    assert but_for(probe.compare(*files).left_out) == " but for 2 of 3 steps (not recorded)"


def record_of_steps(run: Recorder, chosen: list[int], count: int) -> Path:
    """Record some of a run's steps."""
    path = run(gpt())
    path.unlink()
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, steps=chosen):
        for number in range(count):
            loss = loss_of(model(batch(number)), batch(number))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def test_steps_before_those_that_are_paired_are_nothing_to_miss(run: Recorder) -> None:
    resumed, whole = record_of_steps(run, [0], 1), record_of_steps(run, [2], 3)
    found = probe.compare(whole, resumed, steps="2:0")
    assert not any(left.what is What.STEPS for left in found.left_out), found.left_out


def with_table(values: np.ndarray) -> nn.Module:
    """Return the model with a buffer that nothing uses."""
    model = gpt()
    model.table = nn.Buffer(values)
    return model


@pytest.mark.parametrize("phases", [None, ["init", "forward"]], ids=["all", "init and forward"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_permuted_buffer_is_not_called_noise(run: Recorder, task: str, phases: list[str] | None) -> None:
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    files = [run(with_table(each), task=task, phases=phases) for each in (values, values[::-1].copy())]
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED
    (left,) = [each for each in found.left_out if each.what is What.BUFFERS]
    assert (left.why, left.names) == (Why.DIFFERS, ("table",))
    assert "buffer table (differs)" in " ".join(str(found).split())  # however the headline breaks
    assert {slot.verdict for slot in found.slots if slot.slot_a == "table"} == {"not judged"}
    assert found.flip is None or found.flip.closest is None or found.flip.closest.limit < 1
    assert but_for(probe.compare(files[0], run(with_table(values), task=task, phases=phases)).left_out) == (
        "" if phases is None else " but for backward, gradient, update (not recorded)"
    )


def test_a_buffer_that_one_side_has(run: Recorder) -> None:
    found = probe.compare(run(with_table(np.ones(4, np.float32))), run(gpt()))
    assert found.verdict is Verdict.ALIGNED
    assert but_for(found.left_out) == " but for buffer table of the root (only in A)"


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_the_sign_of_zeros_is_no_divergence(run: Recorder, task: str) -> None:
    def with_zeros(zero: float) -> nn.Module:
        def change(model: nn.Module) -> None:
            module(model, "layers.1.mlp.up").bias.data[...] = zero

        return changed(change)

    found = probe.compare(run(with_zeros(0.0), task=task), run(with_zeros(-0.0), task=task))
    assert is_bare(found)
    bias = [slot for slot in found["layers.1.mlp.up"] if slot.slot_a == "bias" and slot.phase is Phase.INIT]
    assert [slot.verdict for slot in bias] == ["equal"]


def test_the_headline_stays_short(run: Recorder) -> None:
    options = {"phases": ["forward"], "modules": ["!layers.1*"]}
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    found = probe.compare(run(with_table(values), **options), run(gpt(), **options))
    assert len(str(found).partition("  A ")[0]) <= 110


# ---- What is recorded and takes part in no comparison is said, with what it is; so are flags that differ where the numbers agree.

ALONE = "recorded, and not compared for want of a counterpart: "
Results = Callable[[Tensor], dict[str, Any]]


def _returning(beside: Results, layers: tuple[int, ...] = (1,)) -> GPT:
    """Make a model of which attention returns more than what is used."""
    model = gpt()

    def attention(self: Any, x: Tensor) -> Any:
        y = nn.Attention.forward(self, x)
        return {"y": y, **beside(y)}

    def block(self: Any, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))["y"]
        return x + self.mlp(self.norm2(x))

    for number in layers:
        replaced(model, f"layers.{number}.attn", forward=attention)
        replaced(model, f"layers.{number}", forward=block)
    return model


def _twice(y: Tensor) -> Tensor:
    return Tensor(2 * y.data)


def _highest(y: Tensor) -> np.ndarray:
    return y.data.argmax(-1)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (lambda y: {"more": _twice(y)}, lambda y: {}, (f"{ALONE}output more of layers.1.attn in A",)),
        (lambda y: {}, lambda y: {"more": _twice(y)}, (f"{ALONE}output more of layers.1.attn in B",)),
        (lambda y: {}, lambda y: {"same": Tensor(y.data.copy())}, ()),
        (lambda y: {}, lambda y: {"empty": Tensor(y.data[:0])}, ()),
        (
            lambda y: {"which": Tensor(_highest(y))},
            lambda y: {"which": Tensor(3 * _highest(y).astype(np.float32))},
            ("could not be compared: output which of layers.1.attn (int64 against float32)",),
        ),
    ],
    ids=["in A", "in B", "what was compared", "nothing in it", "integers against floats"],
)
def test_what_a_call_returns_beside(run: Recorder, a: Results, b: Results, said: tuple[str, ...]) -> None:
    found = probe.compare(run(_returning(a)), run(_returning(b)))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == said


def test_several_are_named_together(run: Recorder) -> None:
    layers = (0, 1, 2)
    found = probe.compare(
        run(_returning(lambda y: {}, layers), steps=2),
        run(_returning(lambda y: {"more": _twice(y)}, layers), steps=2),
    )
    assert found.warnings == (f"{ALONE}output more of layers.*.attn ×3 in B",)


class Table(nn.Module):
    """Returns what is handed to all layers."""

    def forward(self, x: Tensor) -> Tensor:
        return Tensor(np.arange(7, dtype=np.float32))


@pytest.mark.parametrize("is_made_by_a_module", [False, True])
def test_what_is_handed_to_several_is_named_once(run: Recorder, is_made_by_a_module: bool) -> None:
    model = gpt()
    if is_made_by_a_module:
        model.table = Table()

    def attention(self: Any, x: Tensor, mask: Tensor) -> Tensor:
        return nn.Attention.forward(self, x)

    def block(self: Any, x: Tensor) -> Tensor:
        mask = model.table(x) if is_made_by_a_module else Tensor(np.arange(7, dtype=np.float32))
        x = x + self.attn(self.norm1(x), mask=mask)
        return x + self.mlp(self.norm2(x))

    for number in range(3):
        replaced(model, f"layers.{number}.attn", forward=attention)
        replaced(model, f"layers.{number}", forward=block)
    found = probe.compare(run(), run(model))
    assert found.verdict is Verdict.ALIGNED
    named = [text for text in found.warnings if text.startswith(ALONE)]
    assert named == ([] if is_made_by_a_module else [f"{ALONE}input mask of layers.0.attn in B"])
    assert ("table" in (*found.only_b, *found.unneeded_b)) is is_made_by_a_module


def test_behind_a_finding_nothing_is_said_of_it(run: Recorder) -> None:
    wrong = _returning(lambda y: {"more": _twice(y)})
    wrong.norm.eps = 1e-2
    found = probe.compare(run(_returning(lambda y: {})), run(wrong))
    assert found.verdict is Verdict.DIVERGED and found.warnings == ()


def test_what_the_other_side_was_not_to_record_is_not_missed(run: Recorder) -> None:
    found = probe.compare(run(gpt(), modules=["layers.0.*"]), run(_returning(lambda y: {"more": _twice(y)})))
    assert not any(text.startswith(ALONE) for text in found.warnings)


def _logging(count: int) -> Step:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        for n in range(count):
            probe.log("seen", Tensor(np.full(3, n + 0.5, np.float32)))
        return plain_step(model, optimizer, number)

    return step


@pytest.mark.parametrize(("a", "b", "side"), [(1, 0, "A"), (0, 1, "B"), (1, 2, "B")])
def test_what_was_logged_more_often_on_one_side(run: Recorder, a: int, b: int, side: str) -> None:
    found = probe.compare(run(step=_logging(a)), run(step=_logging(b)))
    assert found.warnings == (f"{ALONE}value seen of the root in {side}",)


def _with_buffer(array: np.ndarray | None, by: int = 0) -> GPT:
    """Make a model with a buffer, to which each call of the model adds something."""
    model = gpt()

    def forward(self: Any, ids: Tensor) -> Tensor:
        if by:
            self.table.data = self.table.data + by
        return GPT.forward(self, ids)

    replaced(model, "norm")
    model.__class__ = type("GPT", (GPT,), {"forward": forward})
    if array is not None:
        model.table = nn.Buffer(array)
    return model


SIX = np.arange(6)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (_with_buffer(SIX * 1.0), _with_buffer(None), f"{ALONE}buffer table of the root in A"),
        (
            _with_buffer(SIX * 1.0),
            _with_buffer(SIX[:4] * 1.0),
            "could not be compared: buffer table of the root (shape [6] against [4])",
        ),
        (
            _with_buffer(SIX, by=1),
            _with_buffer(SIX, by=2),
            "",
        ),
    ],
    ids=["one side only", "another shape", "other integers"],
)
def test_buffers(run: Recorder, a: GPT, b: GPT, said: str) -> None:
    found = probe.compare(run(a, steps=2), run(b, steps=2))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == ((said,) if said else ())
    assert said or "buffer table (differs)" in but_for(found.left_out)


class Kept(nn.AdamW):
    """Keeps something beside its states."""

    kept: np.ndarray | None = None

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        super().update(p, g, group, state)
        if self.kept is not None and p.ndim == 1:
            state["kept"] = Tensor(self.kept)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ((SIX, None), f"{ALONE}state weight.kept of layers.*.norm* ×6, state bias.kept of layers.*.mlp.gate ×3"),
        ((SIX, SIX[:4]), "could not be compared: state weight.kept of layers.*.norm* ×6, "),
    ],
)
def test_states_of_optimizers(run: Recorder, kept: tuple[np.ndarray | None, np.ndarray | None], said: str) -> None:
    def recorded(array: np.ndarray | None) -> Any:
        model = gpt()
        optimizer = Kept(model.parameters(), lr=1e-3)
        optimizer.kept = array
        return run(model, optimizer=optimizer)

    found = probe.compare(*map(recorded, kept))
    assert found.verdict is Verdict.ALIGNED
    assert len(found.warnings) == 1 and found.warnings[0].startswith(said)


def test_a_weight_that_needs_a_gradient_on_one_side_only(run: Recorder) -> None:
    models = gpt(), gpt()
    for model, learns in zip(models, (True, False), strict=True):
        model.unused = nn.Parameter(np.ones(3, np.float32), requires_grad=learns)
    found = probe.compare(*map(run, models))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == ("weights that need a gradient (requires_grad) on one side only: unused in A",)


def test_a_weight_that_one_optimizer_alone_was_given(run: Recorder) -> None:
    def recorded(is_given: bool, learns: bool = True) -> Any:
        model = gpt()
        model.unused = nn.Parameter(np.ones(3, np.float32), requires_grad=learns)
        given = [each for each in model.parameters() if is_given or each is not model.unused]
        return run(model, optimizer=nn.AdamW(given, lr=1e-3))

    found = probe.compare(recorded(True), recorded(False))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == (
        "weights that need a gradient on both sides, and one side's optimizer alone was given: unused in A",
    )
    assert probe.compare(recorded(True, False), recorded(False, False)).warnings == ()


# ---- Modules that a mapping ignores are said to be left out by it, everywhere.

BLOCK = {"ignore": ["layers.1"]}


@pytest.fixture
def found(clean: Clean, run: Recorder) -> Comparison:
    def louder(model: Model) -> None:
        module(model, "layers.1.mlp").up.weight.data *= 1.5

    return probe.compare(clean("statistics"), run(changed(louder)), BLOCK)


def test_a_fault_in_what_is_ignored_leads_to_what_the_mapping_leaves_out(found: Comparison) -> None:
    first = found.first_divergence
    assert first is not None
    assert "look at layers.1, left out by the mapping (ignore): nothing in there was compared" in first.hint
    assert "nothing to compare with" not in first.hint


def test_the_summary_names_what_is_left_out(found: Comparison) -> None:
    assert "\nLeft out by the mapping: layers.1 on both sides\n" in render(found).plain
    assert found.as_json()["ignored_a"][:2] == ["layers.1", "layers.1.norm1"]


@pytest.mark.parametrize(
    ("path", "text"),
    [("layers.1.mlp", "'layers.1.mlp' is left out by the mapping (ignore) in A and B: nothing of it was compared"),
     ("layers.2.attm", "'layers.2.attm' is in neither recording, or nothing of it was recorded; did you mean 'layers.2.attn'?")],
)  # fmt: skip
def test_asking_for_a_module_says_why_nothing_of_it_was_compared(found: Comparison, path: str, text: str) -> None:
    with pytest.raises(NotRecordedError) as error:
        found[path]
    assert str(error.value) == text


def test_what_one_side_alone_has_is_no_misspelled_name(clean: Clean, run: Recorder) -> None:
    options = {"direction": "a-to-b", "min_confidence": 1}
    found = probe.compare(clean("statistics"), run(), {"GPT": {"layers.2": "layers.7"}}, **options)
    with pytest.raises(
        NotRecordedError, match="'layers.2' has no counterpart on either side; a layer mapping can give"
    ):
        found["layers.2"]


# ---- What was logged otherwise on the two sides, where every tensor agrees.

SQUARED = (
    "step 0: grad_norm was logged as 1.5 in A and 2.25 in B (B's is the square of A's: a norm of which the root was not taken); what was "
    "logged is judged by probe curves alone"
)


def test_a_norm_without_its_root_is_told_once(tmp_path: Path) -> None:
    files = []
    for power in (1, 2):
        model = gpt()
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        files.append(tmp_path / f"{power}.h5")
        with probe.capture(model, files[-1]):
            for step in range(2):
                probe.step(loss=plain_step(model, optimizer, step), grad_norm=1.5**power, seconds=power)
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED
    assert [text for text in found.warnings if "logged" in text] == [SQUARED]


def test_behind_a_finding_nothing_is_said_of_it_logged(tmp_path: Path) -> None:
    files = []
    for value in range(2):
        model = gpt()
        if value:
            module(model, "layers.1.norm2").eps = 1e-2
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        files.append(tmp_path / f"{value}.h5")
        with probe.capture(model, files[-1]):
            probe.step(loss=plain_step(model, optimizer, 0), aux_loss=1.0 + value)
    found = probe.compare(*files)
    assert found.verdict is Verdict.DIVERGED and not any("logged" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("name", "x", "y", "is_said"),
    [
        ("global_norm", 1.0, 1.05, False),
        ("global_norm", 1.0, 1.2, True),
        ("aux_loss", 1.0, 1.005, False),
        ("aux_loss", 1.0, 1.02, True),
        ("train/lr", 3e-5, 3.1e-5, True),
        ("learning_rate", 0.0, 0.0, False),
        ("loss", 1.0, 2.0, False),
        ("tokens per second", 1.0, 2.0, False),
        ("grad_norm", float("nan"), 1.0, True),
        ("grad_norm", float("nan"), float("nan"), False),
        ("accuracy", 0.5, 0.6, True),
        ("tokens", 128.0, 64.0, True),
        ("step_time", 1.0, 2.0, False),
        ("tokens_per_sec", 1.0, 2.0, False),
        ("samples/s", 1.0, 2.0, False),
    ],
)
def test_what_is_said(name: str, x: float, y: float, is_said: bool) -> None:
    assert bool(logged_otherwise(0, {name: x}, {name: y})) is is_said
    assert logged_otherwise(0, {name: x}, {}) == []


def test_either_side_may_lack_the_root() -> None:
    said = logged_otherwise(3, {"grad_norm": 9.0}, {"grad_norm": 3.0})
    assert list(map(str, said)) == [
        "step 3: grad_norm was logged as 9 in A and 3 in B (A's is the square of B's: a norm of which the root was not taken); what was "
        "logged is judged by probe curves alone"
    ]


def test_what_one_side_alone_logged_is_told_once() -> None:
    logged = Logged()
    found = [
        logged.said(step, {"loss": 1.0, "seconds": 2.0}, {"lr": 1.0, "loss": 1.0} if step < 2 else {})
        for step in range(4)
    ]
    assert [list(map(str, each)) for each in found] == [
        ["step 0: logged in B only, and not compared: lr"],
        [],
        ["step 2: logged in A only, and not compared: loss"],
        [],
    ]


def test_a_loss_that_one_side_alone_was_given(tmp_path: Path) -> None:
    files = []
    for name in "ab":
        model = gpt()
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        files.append(tmp_path / f"{name}.h5")
        with probe.capture(model, files[-1]):
            loss = plain_step(model, optimizer, 0)
            probe.step(**({"loss": loss} if name == "a" else {"seconds": 1.0}))
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == ("step 0: logged in A only, and not compared: loss",)


# ---- What was recorded of some phases or modules only: what is missing is no fault, and no fault is blamed on what is there.

PHASES_FILTERS = [
    ["forward"],
    ["backward"],
    ["gradient"],
    ["update"],
    ["init"],
    ["init", "forward"],
    ["forward", "backward"],
]


MODULES_FILTERS = [["layers.2*"], ["layers.1.mlp*"], ["Linear"], [""], ["!layers.0*"]]


@pytest.mark.parametrize(
    "option", [{"phases": p} for p in PHASES_FILTERS] + [{"modules": m} for m in MODULES_FILTERS], ids=str
)
def test_what_was_filtered_on_either_side_is_no_fault(
    clean: Clean, run: Recorder, option: dict[str, list[str]]
) -> None:
    one, two = run(**option), run(**option)
    found = probe.compare(one, two)
    assert found.verdict is Verdict.ALIGNED and found.coverage.compared > 0
    full = clean("statistics")
    for pair, sides in (((full, one), "all in A, {} in B"), ((one, full), "{} in A, all in B")):
        found = probe.compare(*pair)
        assert found.first_divergence is None, found.first_divergence
        assert found.verdict in (Verdict.ALIGNED, Verdict.UNDECIDED)
        assert found.verdict is Verdict.ALIGNED or not found.coverage.compared
        ((name, filters),) = option.items()
        text = f"the {name} that were recorded are not the same: {sides.format(', '.join(filters))}"
        assert said(found, text)


ALONE_FILTERS = {
    ("init",): "forward, backward, gradient, update",
    ("update",): "init, forward, backward, gradient",
    ("forward",): "init, backward, gradient, update",
    ("init", "forward", "backward", "gradient"): "update",
}


@pytest.mark.parametrize("phases", ALONE_FILTERS, ids=",".join)
def test_the_headline_says_which_phases_one_side_alone_recorded(
    clean: Clean, run: Recorder, phases: tuple[str, ...]
) -> None:
    full, less = clean("statistics"), run(steps=2, phases=list(phases))
    for side, pair in (("B", (full, less)), ("A", (less, full))):
        found = probe.compare(*pair)
        (left,) = found.left_out
        assert (found.verdict, left.what, left.why, left.side) == (
            Verdict.ALIGNED,
            What.PHASES,
            Why.NOT_RECORDED,
            side,
        )
        assert " ".join(str(found).split()).startswith(
            f"ALIGNED but for {ALONE_FILTERS[phases]} (not recorded in {side}) A "
        )
    both = probe.compare(less, run(steps=2, phases=list(phases)))
    assert " ".join(str(both).split()).startswith(f"ALIGNED but for {ALONE_FILTERS[phases]} (not recorded) A ")


def test_phases_that_were_asked_for_by_name_or_not_at_all(clean: Clean, run: Recorder) -> None:
    every = [phase.label for phase in Phase]
    assert probe.compare(clean("statistics"), run(steps=2, phases=every)).left_out == ()
    apart = probe.compare(run(phases=["init", "forward"]), run(phases=["forward", "gradient"]))
    text = "backward, update (not recorded), gradient (not recorded in A), init (not recorded in B)"
    assert but_for(apart.left_out) == f" but for {text}"


@pytest.mark.parametrize(
    ("phases", "verdict"),
    [
        (["forward"], "layers.1.norm2"),
        (["init", "forward"], "layers.1.norm2"),
        (["backward"], "the gradient that comes back to the model's output 0 differs"),
        (["gradient"], ""),
        (["update"], "the gradients that the optimizer used differ"),
        (["init"], "the loss differs ("),
        (["loss"], "the loss differs ("),
    ],
    ids=str,
)
def test_a_forward_fault_is_never_blamed_on_what_was_recorded_instead(
    run: Recorder, phases: list[str], verdict: str
) -> None:
    found = probe.compare(run(phases=phases), run(changed(MODEL_FAULTS["eps"][0]), phases=phases))
    first = found.first_divergence
    if "forward" in phases:
        assert first is not None and first.path == verdict
        return
    assert not verdict or said(found, verdict)
    if phases == ["gradient"]:
        assert first is not None and (first.path, first.phase) == ("", Phase.GRADIENT)
    else:
        assert (found.verdict, first) == (Verdict.UNDECIDED, None)


@pytest.mark.parametrize("phases", [["forward"], ["forward", "backward"]], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_weights_that_one_side_did_not_record_are_not_missing(
    clean: Clean, run: Recorder, phases: list[str], turned: bool
) -> None:
    files = [clean("statistics"), run(changed(MODEL_FAULTS["eps"][0]), phases=phases)]
    first = probe.compare(*(files[::-1] if turned else files)).first_divergence
    assert first is not None
    assert (first.phase, first.kind, first.path, first.a[0].slot) == (
        Phase.FORWARD,
        Kind.INTRODUCED,
        "layers.1.norm2",
        "0",
    )
    assert first.evidence[0].endswith("output differs")
    with_weights = run(changed(MODEL_FAULTS["eps"][0]), phases=["init", "forward"])
    seen = probe.compare(clean("statistics"), with_weights).first_divergence
    assert seen is not None and not any("not compared: its parameters" in text for text in seen.evidence)


@pytest.mark.xfail(
    strict=True, reason="named by what it computes: weights that no side recorded are not held against each other"
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_that_a_model_lacks_is_missing_though_it_recorded_none(
    clean: Clean, run: Recorder, turned: bool
) -> None:
    files = [clean("statistics"), run(changed(MODEL_FAULTS["no bias"][0]), phases=["forward"])]
    first = probe.compare(*(files[::-1] if turned else files)).first_divergence
    assert first is not None
    assert (first.phase, first.kind, first.path) == (Phase.INIT, Kind.MISSING, "layers.1.mlp.up")
    there, other = "BA" if turned else "AB"
    assert first.evidence[0] == f"the parameter bias exists on {there} only and is not zero"
    assert first.hint == f"bias is missing on {other}"


@pytest.mark.parametrize(
    ("modules", "kind", "path"),
    [
        (["layers.2*"], Kind.INTRODUCED, ""),
        (["layers.1.mlp*"], Kind.INTRODUCED, "layers.1"),
        (["Linear"], Kind.INTRODUCED, "layers.1.mlp"),
        (["layers.1*"], Kind.INTRODUCED, "layers.1.norm2"),
        ([""], Kind.INTRODUCED, ""),
    ],
    ids=str,
)
def test_a_fault_in_a_module_that_was_not_recorded_is_charged_to_none_inside(
    run: Recorder, modules: list[str], kind: Kind, path: str
) -> None:
    wrong = changed(MODEL_FAULTS["eps"][0])
    first = probe.compare(run(modules=modules), run(wrong, modules=modules)).first_divergence
    assert first is not None and (first.kind, first.path) == (kind, path)


def _scaled_in_step_1(model: Any, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = loss_of(model(batch(number)), batch(number))
    loss.backward()
    for parameter in model.parameters() if number == 1 else ():
        parameter.grad.data[...] *= 1.5
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_gradients_that_backward_left_in_another_step_say_nothing(run: Recorder) -> None:
    a, b = (run(steps=2, phases=["update"], step=step) for step in (plain_step, _scaled_in_step_1))
    found = probe.compare(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert found.doubts[0].startswith(
        "step 1: the gradients that the optimizer used differ (rel 3.3e-01), and those that "
    )


@pytest.mark.parametrize("phases", [["forward"], ["init", "forward", "backward", "gradient"]])
def test_where_no_update_was_recorded_a_later_step_is_less_sure_of_its_place(run: Recorder, phases: list[str]) -> None:
    models = gpt(), gpt()
    files = [
        run(model, steps=2, phases=phases, optimizer=nn.AdamW(model.parameters(), lr=rate))
        for model, rate in zip(models, (1e-3, 5e-2), strict=True)
    ]
    first = probe.compare(*files).first_divergence
    assert first is not None and first.step == 1 and first.confidence < 0.5
    assert first.evidence[-1].startswith("updates were not recorded in A and B: ")
