"""What the answer looks like: objects, tables, JSON, text, each with its reasons; whole answers on the toy framework."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import pickle
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import probe
from probe.answer.acceptance import Outcome
from probe.answer.left_out import What, Why
from probe.answer.metrics import Relation
from probe.answer.presets import Scope
from probe.answer.result import SCHEMA, Verdict
from probe.answer.why import ANSWERS, LEFT, LIMITS
from probe.commands.cli import main
from probe.diagnosis.facts import _FACTS
from probe.errors import ConfigError, NotRecordedError, StoreError
from probe.matching import Reason
from probe.matching.changes import ChangeKind
from probe.notes import note
from probe.records import Phase, Role
from probe.report.text import render
from probe.report.why import styled
from probe.settings.setting import Category, Effect
from probe.verdict.noise.limits import widened
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import TO_SEQUENCE_FIRST, SequenceFirst, gpt
from tests.toys import module as module_toys
from tests.verdict.planted import Clean, Faulty, Recorder, module, mostly_statistics

# ---- What the answer looks like: objects, tables, JSON, text.


def test_drilling_down(clean: Clean, run: Recorder) -> None:
    found = probe.compare(clean("tensor"), run(SequenceFirst(gpt()), task="tensor"), mapping=TO_SEQUENCE_FIRST)
    here, there = found["layers.1.norm2"], found["decoder.layers.1.between"]
    assert here == there and len(here) > 5
    assert {(s.path_a, s.path_b, s.reason) for s in here} == {("layers.1.norm2", "decoder.layers.1.between", "mapped")}
    assert {s.path_a for s in found["layers.*.norm1"]} == {f"layers.{n}.norm1" for n in range(3)}
    assert {s.path_a for s in found["*self_attention"]} == {f"layers.{n}.attn" for n in range(3)}
    assert {s.path_a for s in found[""]} == {""}
    (output,) = (s for s in here if s.role is Role.OUTPUT)
    assert (output.shape_a, output.shape_b) == ((2, 6, 16), (6, 2, 16))
    assert (output.class_a, output.class_b, output.dtype_a) == ("RMSNorm", "RMSNorm", "float32")
    with pytest.raises(
        NotRecordedError,
        match="'layers.9' is in neither recording, or nothing of it was recorded; did you mean 'layers",
    ):
        found["layers.9"]
    with pytest.raises(KeyError):
        found["nothing*"]


def test_slots_stand_in_causal_order(clean: Clean, run: Recorder) -> None:
    found = probe.compare(clean("statistics"), run(steps=2))
    order = [(slot.step, slot.phase) for slot in found.slots]
    assert order == sorted(order)
    forward = [(s.path_a, s.role) for s in found.slots if s.step == 0 and s.phase is Phase.FORWARD]
    places = [forward.index(("layers.0", role)) for role in (Role.INPUT, Role.OUTPUT)]
    assert forward[0] == ("", Role.INPUT) and forward[-1] == ("", Role.OUTPUT)
    assert places[0] < forward.index(("layers.0.mlp.act", Role.OUTPUT)) < places[1]


def test_what_comes_behind_the_fault_is_inherited(clean: Clean, faulty: Faulty) -> None:
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"))
    verdicts = {(s.path_a, s.role): s.verdict for s in found.slots if s.phase is Phase.FORWARD}
    assert verdicts["layers.1.norm2", Role.INPUT] == "equal"
    assert verdicts["layers.1.norm2", Role.OUTPUT] == "introduced"
    assert verdicts["layers.1.mlp.up", Role.INPUT] == "inherited"
    assert verdicts["", Role.OUTPUT] == "inherited"
    assert verdicts["layers.0", Role.OUTPUT] == "equal"


def test_the_table(clean: Clean, faulty: Faulty) -> None:
    pytest.importorskip("pandas")
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"))
    table = found.table()
    assert len(table) == len(found.slots)
    wrong = table[table.verdict == "introduced"]
    assert list(wrong.path_a) == ["layers.1.norm2"]
    row = wrong.iloc[0]
    first = found.first_divergence
    assert first is not None and first.metrics is not None
    assert (row.rel_l2, row.limit, row.max_abs_at) == (
        first.metrics.rel_l2,
        first.limit,
        str(list(first.metrics.max_abs_at)),
    )
    assert (row.phase, row.role, row.status, row.estimated, row.matched_by) == (
        "forward", "output", "compared", False, "same path",
    )  # fmt: skip
    assert table[(table.path_a == "layers.0") & (table.phase == "forward")].rel_l2.max() == 0


NUMBER = (int, float)


NODE = {"step": int, "micro": int, "path": str, "class": str, "call": int, "slot": str, "file": str, "line": int,
        "called_from": str}  # fmt: skip


METRICS = {
    "status": str, "rel_l2": (*NUMBER, None), "cosine": (*NUMBER, None), "coherence": (*NUMBER, None),
    "norm_a": (*NUMBER, None), "norm_b": (*NUMBER, None), "norm_ratio": (*NUMBER, None), "max_abs": (*NUMBER, None),
    "max_abs_at": (list, None), "max_rel": (*NUMBER, None), "mean_abs": (*NUMBER, None), "reason": str,
}  # fmt: skip


HINT = {
    "name": str, "grade": {"verified", "strong", "weak"}, "verified": bool, "found": str, "code": str, "from": str, "check": str,
    "numbers": object,
}  # fmt: skip


NOTE = {"code": str, "facts": object, "text": str}
DIVERGENCE = {
    "phase": {"init", "forward", "loss", "backward", "gradient", "update"},
    "role": {role.label for role in Role},
    "kind": {"inputs", "init", "introduced", "missing", "nonfinite", "shape", "dtype", "update"}, "blame": str,
    "confidence": NUMBER, "a": [NODE], "b": [NODE], "metrics": (METRICS, None), "estimated": bool,
    "limit": (*NUMBER, None), "evidence": [str], "hint": str, "facts": [NOTE], "advice": (NOTE, None), "hints": [HINT],
    "settings": [str],
}  # fmt: skip


CLOSEST = {"phase": str, "role": str, "path_a": str, "slot_a": str, "error": NUMBER, "limit": NUMBER}


LEFT_OUT = {
    "what": {what.value for what in What}, "why": {why.value for why in Why}, "side": {"", "A", "B"}, "names": [str], "count": int,
    "total": int,
}  # fmt: skip


NOTE = {"code": str, "facts": object, "text": str}


WHERE = {
    "step": int, "micro": int, "phase": str, "role": str, "path_a": str, "slot_a": str, "path_b": str, "slot_b": str, "call": int,
    "index": (list, None), "rel_l2": (*NUMBER, None), "limit": (*NUMBER, None), "largest": (*NUMBER, None),
}  # fmt: skip
ACCEPTED_ITEM = {
    "item": {scope.value for scope in Scope}, "metric": str, "atol": NUMBER, "rtol": NUMBER, "bound": NUMBER, "figure": (*NUMBER, None),
    "outcome": {outcome.value for outcome in Outcome}, "relation": {relation.name.lower() for relation in Relation},
    "where": (WHERE, None), "judged": int, "open": int, "uncompared": int, "excused": int, "wide": int,
}  # fmt: skip
ACCEPTANCE = {
    "preset": str, "source": str, "text": str, "decision": {"accepted", "not accepted", "undecided"}, "items": [ACCEPTED_ITEM],
    "steps": [int], "notes": [NOTE],
}  # fmt: skip
RUN = {
    "models": [str], "modules": int, "parameters": int, "steps": int, "framework": str, "version": str,
    "is_without_gradients": bool, "losses": [object],
}  # fmt: skip
VALUE = {"name": str, "value": object, "shown": str, "from": {"given", "default", "implied", "derived"}}
SETTING = {
    "setting": str, "category": {each.value for each in Category}, "effect": {each.value for each in Effect}, "counts": bool,
    "a": VALUE, "b": VALUE, "findings": [int], "text": str,
}  # fmt: skip
DOCUMENT = {
    "schema": int, "verdict": {"aligned", "diverged", "undecided"}, "runs": {"a": RUN, "b": RUN}, "first_divergence": (DIVERGENCE, None),
    "divergences": [DIVERGENCE],
    "coverage": {"paired": int, "only_a": int, "only_b": int, "not_comparable": int, "compared": int},
    "only_a": [str], "only_b": [str], "unneeded_a": [str], "unneeded_b": [str], "ignored_a": [str], "ignored_b": [str], "left_out": [LEFT_OUT], "doubts": [str],
    "warnings": [str], "notes": [NOTE], "reasons": [NOTE], "pairs": [{"a": [str], "b": [str], "because": {reason.value for reason in Reason}, "confidence": NUMBER}],
    "noise": str, "mapping_mistakes": [str], "changes": [{"kind": {kind.value for kind in ChangeKind}, "a": [str], "b": [str], **NOTE}],
    "flip": ({"factor": (*NUMBER, None), "first_divergence": (*NUMBER, None), "closest": (CLOSEST, None)}, None),
    "unseen": ({"error": NUMBER, "text": str}, None), "cannot_show": [NOTE],
    "acceptance": (ACCEPTANCE, None),
    "settings": [SETTING],
    "inputs": {"equal": [str], "close": [str], "different": [str], "not_comparable": [str], "only_a": [str],
               "only_b": [str]},
}  # fmt: skip


def conforms(value: object, form: object, where: str = "$") -> None:
    """Check a JSON document against a form: types, sets of words, dicts of exactly these keys, lists of one form."""
    if isinstance(form, tuple):
        if value is None:
            assert None in form, where
            return
        form = form[0] if isinstance(form[0], dict) else tuple(each for each in form if each is not None)
    if isinstance(form, dict):
        assert isinstance(value, dict) and value.keys() == form.keys(), f"{where}: {value}"
        for key, inner in form.items():
            conforms(value[key], inner, f"{where}.{key}")
    elif isinstance(form, list):
        assert isinstance(value, list), where
        for item in value:
            conforms(item, form[0], f"{where}[]")
    elif isinstance(form, set):
        assert value in form, f"{where}: {value}"
    else:
        assert isinstance(value, form) and (form is bool or not isinstance(value, bool)), f"{where}: {value!r}"


@pytest.mark.parametrize(
    ("fault", "task"),
    mostly_statistics([None, "eps", "NaN", "a layer dropped", "no bias", "frozen", "one weight"], "eps"),
)
def test_json_has_the_names_of_the_design(
    clean: Clean, faulty: Faulty, run: Recorder, fault: str | None, task: str
) -> None:
    b = faulty(fault, task) if fault else run(task=task)
    found = probe.compare(clean(task), b, preset="paddlenlp/qwen2-0.5b")
    text = json.dumps(found.as_json(), allow_nan=False)
    document = json.loads(text)
    conforms(document, DOCUMENT)
    assert document["schema"] == SCHEMA == 3
    assert document["verdict"] == ("diverged" if fault else "aligned")
    assert document["first_divergence"] == (document["divergences"][0] if fault else None)
    if fault == "eps":
        first = document["first_divergence"]
        place = {"step": 0, "micro": 0, "path": "layers.1.norm2", "class": "RMSNorm", "call": 0, "slot": "0"}
        assert (
            first["a"]
            == first["b"]
            == [place | {name: first["a"][0][name] for name in ("file", "line", "called_from")}]
        )
        assert first["a"][0]["file"].endswith("nn.py") and first["a"][0]["line"] > 0
        assert first["estimated"] is (task == "statistics")
        assert (first["metrics"]["max_abs"] is None) is (task == "statistics")
        if task == "tensor":
            assert first["hints"][0]["name"] == "eps" and first["hints"][0]["verified"]
            assert first["hints"][0]["numbers"] == {"eps_a": 1e-6, "eps_b": 1e-3}
    if fault == "a layer dropped":
        assert document["first_divergence"]["b"] == []
        assert document["only_a"][0] == "layers.1"
    if fault == "NaN":
        assert document["first_divergence"]["metrics"]["rel_l2"] is None, "JSON knows no infinity"


def test_the_answer_is_frozen_and_readable(clean: Clean, faulty: Faulty) -> None:
    found = probe.compare(clean("statistics"), faulty("eps", "statistics"))
    assert "layers.1.norm2" in repr(found.first_divergence)
    assert len(repr(found)) < 5000, "the slots are not part of it"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.verdict = Verdict.ALIGNED  # type: ignore[misc]


@pytest.mark.thorough
def test_progress_is_told(run: Recorder) -> None:
    told: list[tuple[int, int]] = []
    probe.compare(run(steps=3), run(steps=3), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("direction", ["sideways", "A-to-B", ""])
def test_a_direction_that_is_none(clean: Clean, run: Recorder, direction: str) -> None:
    message = re.escape(f"direction={direction!r} is not known; expected 'a-to-b' or 'b-to-a'")
    with pytest.raises(ConfigError, match=message):
        probe.compare(clean("statistics"), run(), direction=direction)


def test_a_file_that_is_not_there(tmp_path: Path, clean: Clean) -> None:
    with pytest.raises(StoreError, match=re.escape(f"there is no file {tmp_path / 'none.h5'}")):
        probe.compare(clean("statistics"), tmp_path / "none.h5")


@pytest.mark.parametrize("verdict", [Verdict.ALIGNED, Verdict.UNDECIDED])
def test_notes_are_shown_whole(verdict: Verdict, clean: Clean, run: Recorder) -> None:
    long = "weights that were not compared: " + ", ".join(f"layers.{i}.attn.qkv.weight" for i in range(40))
    said = (note("note-of-the-recording", side="A", text=long),)
    found = dataclasses.replace(probe.compare(clean(), run()), verdict=verdict, reasons=said, notes=said)
    assert long in " ".join(render(found).plain.split())


@pytest.mark.thorough
def test_values_of_updates_are_said_to_be_kept_by_no_task(clean: Clean, run: Recorder) -> None:
    norm = probe.compare(clean("tensor"), run(steps=2, task="tensor"))["layers.1.norm2"]
    with pytest.raises(NotRecordedError, match=r"delta weight of layers.1.norm2: updates are kept as statistics only"):
        norm.delta[0].values()
    assert norm.param[0].values()[0].shape == norm.param_grad[0].values()[0].shape == (16,)


# ---- Why a module was judged as it was: verdicts with their reasons, and whole answers on the toy framework.

# ---- Why a module was judged as it was: verdicts with their reasons.

VERDICT = Path(probe.__file__).parent / "verdict"


def with_other_eps() -> nn.Module:
    model = gpt()
    module(model, "layers.1.norm2").eps = 1e-2  # type: ignore[attr-defined]
    return model


def test_where_it_is_born_and_what_inherits(run: Recorder) -> None:
    found = probe.compare(run(gpt()), run(with_other_eps()))
    why = found.why("layers.1.norm2")
    (born,) = [each for each in why.slots if (each.phase, each.role) == (Phase.FORWARD, Role.OUTPUT)]
    assert (born.verdict, born.exemption) == ("introduced", "") and born.error > born.limit > born.sources
    assert "= 16 u   " in str(why) and "introduced\n    answers: module\n" in str(why)
    assert "charged to it, step 0 · forward · introduced: module; inputs agree" in " ".join(str(why).split())
    behind = [each for each in found.why("layers.1.mlp").slots if each.phase is Phase.FORWARD]
    assert {each.verdict for each in behind} == {"inherited"} and all(each.sources > 1e-3 for each in behind)


def test_what_heals_says_why(run: Recorder) -> None:
    """One side applies the activation inside the module that makes its input, under another class."""

    class Activated(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.SiLU()(super().forward(x))

    class Nothing(nn.SiLU):
        def forward(self, x: Tensor) -> Tensor:
            return x

    model = gpt()
    for layer in model.layers:
        layer.mlp.gate.__class__, layer.mlp.act.__class__ = Activated, Nothing
    why = probe.compare(run(gpt()), run(model)).why("layers.1.mlp.gate")
    (output,) = [each for each in why.slots if (each.phase, each.role) == (Phase.FORWARD, Role.OUTPUT)]
    assert (output.verdict, output.exemption) == ("noise", "moved-border")
    assert "  healed: moved-border\n" in str(why) and "noise: " not in str(why)
    assert f"moved-border: {LEFT['moved-border']}"[:60] in str(why)
    assert why.as_json()["rules"]["moved-border"] == LEFT["moved-border"]


def test_a_finding_of_the_optimizer_shows_the_tensor_that_tells_it(run: Recorder) -> None:
    model = gpt()
    faster = run(model, optimizer=nn.AdamW(model.parameters(), lr=1.3e-3))
    why = probe.compare(run(gpt()), faster).why("")
    (delta,) = [each for each in why.slots if each.verdict == "introduced"]
    assert (delta.role, delta.blame) == (Role.DELTA, "settings")
    assert "charged to it, step 0 · update: settings; B's update is 1.3 times as long as A's" in " ".join(
        str(why).split()
    )


def test_a_limit_names_the_largest_of_its_reasons_and_each_is_explained_once(run: Recorder) -> None:
    why = str(probe.compare(run(gpt()), run(with_other_eps())).why("layers.0.mlp.gate"))
    update = next(line for line in why.splitlines() if line.startswith("  update delta bias "))
    assert update.endswith("= flips             inherited") and "    limit: " not in why
    assert why.count("\nflips: ") == 1 and "\nits-gradient: " in why and "\nkink: " not in why
    assert all(" = " in line for line in why.splitlines() if line.startswith("  update "))


def test_the_largest_limit_keeps_its_reason() -> None:
    first = widened(1.0, kink=0.5, flips=2.0, other_split=1.5)
    assert (first, first.why) == (2.0, "flips")  # type: ignore[attr-defined]
    assert widened(first, subnormal=1.0) is first and widened(3.0, kink=math.nan) == 3.0
    assert pickle.loads(pickle.dumps(first)).why == "flips"


def test_a_module_that_is_not_there(run: Recorder) -> None:
    path = run(gpt())
    with pytest.raises(NotRecordedError, match="layers.9"):
        probe.compare(path, run(with_other_eps())).why("layers.9")


def test_the_command(run: Recorder) -> None:
    files = [str(run(gpt())), str(run(with_other_eps()))]
    done = CliRunner().invoke(main, ["compare", *files, "--why", "layers.1.norm2"])
    assert done.exit_code == 1 and done.output.startswith("A  layers.1.norm2 (")
    done = CliRunner().invoke(main, ["compare", *files, "--why", "layers.1.norm2", "--format", "json"])
    found = json.loads(done.output)
    assert [row["verdict"] for row in found["tensors"] if row["role"] == "output"][0] == "introduced"
    assert {"module", *(row["limited_by"] for row in found["tensors"])} - {""} == set(found["rules"])
    refused = CliRunner().invoke(main, ["compare", *files, "--why", "layers.1.norm2", "--format", "csv"])
    assert refused.exit_code == 3 and "--format json" in refused.output


def test_every_code_of_the_judge_has_a_sentence_and_every_sentence_a_code() -> None:
    constants, named = set(), set()
    for path in (*VERDICT.rglob("*.py"), *(VERDICT.parent / "replaying").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        named |= {each.arg for node in calls if getattr(node.func, "id", "") == "widened" for each in node.keywords}
    assert set(ANSWERS) == set(_FACTS) and set(LEFT) <= constants
    limits = {code.replace("-", "_") for code in LIMITS} - {"exact", "chosen"}
    assert named - {None} <= limits <= named | constants


def test_the_row_that_answers_stands_at_the_finding_and_at_its_tensor(run: Recorder) -> None:
    answer = probe.compare(run(gpt()), run(with_other_eps()))
    first = answer.first_divergence
    assert first is not None and first.blame == "module" and first.as_json()["blame"] == "module"
    assert [slot.blame for slot in answer.why(first.path).slots if slot.verdict == "introduced"] == ["module"]


def test_a_terminal_shows_verdicts_in_colour(run: Recorder) -> None:
    """The words are the same; what is wrong by itself is red, as in the report."""
    found = probe.compare(run(gpt()), run(with_other_eps()))
    why = str(found.why("layers.1.norm2"))
    coloured = styled(why)
    assert coloured.plain == why
    red = {why[span.start : span.end] for span in coloured.spans if "red" in str(span.style)}
    yellow = {why[span.start : span.end] for span in coloured.spans if str(span.style) == "yellow"}
    assert red == {"introduced"} and yellow == {"inherited"}


# ---- Whole answers on the toy framework: what is planted is named, what is right is aligned.


def eps(path: str, value: float):
    """Return a model of which one norm has another eps."""
    model = gpt()
    module_toys(model, path).eps = value
    return model


def activation(path: str):
    """Return a model of which one layer has another activation."""
    model = gpt()
    parent, _, name = path.rpartition(".")
    setattr(module_toys(model, parent), name, nn.GELU())
    return model
