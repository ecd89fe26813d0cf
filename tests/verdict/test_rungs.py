"""What was planted, which rung judges, and what is said; values that are compared ahead."""

from __future__ import annotations

import json

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.errors import ConfigError
from probe.verdict import ahead
from probe.verdict.distance import measure
from probe.verdict.run import compare
from tests.toys import MLP, WIDTH, gpt, module, plain_step, record, replaced

NORM, DOWN, HEAD = "layers.1.norm2", "layers.1.mlp.down", "head"


def plain():
    """Return the model."""
    return gpt()


def eps():
    """Return the model with another eps in one norm."""
    model = gpt()
    module(model, NORM).eps = 1e-3
    return model


def louder():
    """Return the model with a head that returns one per cent more."""
    model = gpt()
    replaced(model, HEAD, forward=lambda self, x: nn.Linear.forward(self, x) * np.float32(1.01))
    return model


def noisy(size, seed):
    """Return a maker of the model with random errors of a relative size behind one layer."""

    def made():
        rng, model = np.random.default_rng(seed), gpt()

        def forward(self, x):
            y = nn.Linear.forward(self, x)
            return y + (size * np.sqrt(np.mean(y.data**2)) * rng.standard_normal(y.shape)).astype(np.float32)

        replaced(model, DOWN, forward=forward)
        return model

    return made


def with_more_modules():
    """Return the noisy model with a module that nothing calls, before all others."""
    model = noisy(1e-4, 3)()
    members = dict(vars(model))
    vars(model).clear()
    vars(model).update({"spare": nn.SiLU(), **members})
    return model


IGNORE_HEAD = [{"path": path, "role": "output", "ignore": True} for path in (HEAD, "")]
TABLE = {
    "a tolerance below the fault": (eps, {"rtol": 1e-6, "metric": "rel_l2"}, "diverged", ("forward", NORM), ""),
    "a tolerance beyond it": (eps, {"rtol": 0.2, "metric": "rel_l2"}, "aligned", None, ""),
    "one that lets zeros pass": (eps, {"atol": 1e3}, "undecided", None, "the tolerance is so wide"),
    "a rule that fits nothing": (
        plain,
        {"rules": [{"path": "no.such", "rtol": 1e-3}]},
        "aligned",
        None,
        "nothing that",
    ),
    "an ignored fault, seen behind it": (
        eps,
        {"rules": [{"path": NORM, "ignore": True}]},
        "diverged",
        ("forward", "layers.1"),
        "not judged, as rules say",
    ),
    "ignored logits, seen in the loss": (louder, {"rules": IGNORE_HEAD}, "diverged", ("loss", ""), ""),
    "an ignored loss": (
        louder,
        {"rules": [*IGNORE_HEAD, {"path": "*", "phase": "loss", "ignore": True}, {"path": "*", "ignore": True}]},
        "undecided",
        None,
        "the loss differs by more than rounding",
    ),
    "as noisy as a further run": (noisy(1e-4, 1), {"noise": noisy(1e-4, 2)}, "aligned", None, ""),
    "ten times as noisy": (noisy(1e-3, 1), {"noise": noisy(1e-4, 2)}, "diverged", ("forward", DOWN), ""),
    "a further run with more modules": (noisy(1e-4, 1), {"noise": with_more_modules}, "aligned", None, ""),
    "a further run that is equal": (eps, {"noise": plain}, "diverged", ("forward", NORM), "says nothing of noise"),
    "a fault beside noise": (eps, {"noise": noisy(1e-4, 2)}, "diverged", ("forward", NORM), ""),
    "twice as far from the reference": (noisy(1e-4, 1), {"reference": plain}, "diverged", ("forward", DOWN), ""),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a function that records a model with all its values, once."""
    folder, known = tmp_path_factory.mktemp("rungs"), {}

    def get(make, name=""):
        if (make, name) not in known:
            known[make, name] = record(folder / f"{len(known)}.h5", make(), task="tensor")
        return known[make, name]

    return get


@pytest.mark.parametrize("case", TABLE)
def test_what_is_said_on_a_rung(recorded, case):
    make, options, verdict, place, said = TABLE[case]
    named = {name: recorded(each, "other") if callable(each) else each for name, each in options.items()}
    answer = compare(recorded(plain, "a"), recorded(make), **named)
    first = answer.first_divergence
    found = (first.phase.label, first.path) if first is not None else None
    assert (answer.verdict, found) == (verdict, place)
    assert any(said in text for text in (*answer.warnings, *answer.doubts, ""))
    assert answer.noise != "built-in model"


def test_the_rung_and_the_measure_are_named(recorded):
    a, b, other = recorded(plain, "a"), recorded(noisy(1e-3, 1)), recorded(noisy(1e-4, 2))
    assert compare(a, b, noise=other).noise == f"1 further run of A ({other.name})"
    first = compare(b, recorded(noisy(1e-2, 4)), reference=a).first_divergence
    assert (first.measure, first.path) == ("of B to the reference", DOWN)
    assert "times as far from the reference as A is" in first.evidence[0]


WRONG = {
    "noise= and reference= judge in two ways": {"noise": "other", "reference": "other"},
    "would have nothing to judge": {"noise": "other", "atol": 1e-3},
    "names the same run twice": {"noise": ["other", "other"]},
    "is the run of A itself": {"noise": "a"},
    "has nothing to be held against": {"metric": "rel_l2"},
    "is not known; expected r-forward": {"preset": "p-foward"},
    "is not known; expected 'processes'": {"scheduler": "threads"},
    "is not known; expected 'a-to-b'": {"direction": "backwards"},
}


@pytest.mark.parametrize("said", WRONG)
def test_options_that_contradict_each_other(recorded, said):
    files = {"a": recorded(plain, "a"), "other": recorded(noisy(1e-4, 2), "other")}

    def file_of(option):
        return [files[each] for each in option] if isinstance(option, list) else files.get(option, option)

    with pytest.raises(ConfigError, match=said):
        compare(files["a"], recorded(eps), **{name: file_of(option) for name, option in WRONG[said].items()})


def test_a_run_of_other_weights_is_no_noise(recorded):
    with pytest.raises(ConfigError, match="begins with another weight of embed"):
        compare(recorded(plain, "a"), recorded(eps), noise=recorded(lambda: gpt(seed=1)))


def test_a_table_changes_nothing_of_the_verdict(recorded):
    a, b = recorded(plain, "a"), recorded(eps)
    without, with_table = (compare(a, b, preset=name).as_json() for name in (None, "paddlenlp/qwen2-0.5b"))
    assert without.pop("acceptance") is None
    assert with_table.pop("acceptance")["decision"] == "not accepted"
    assert without == with_table


# Ahead


def told(answer):
    return json.dumps(answer.as_json(), sort_keys=True, default=str)


def test_other_processes_give_the_same_answer(recorded):
    a, b = recorded(plain, "a"), recorded(eps)
    assert told(compare(a, b)) == told(compare(a, b, scheduler="processes:2"))


def test_an_interrupted_comparison_goes_on(recorded, tmp_path, monkeypatch):
    a, b, kept = recorded(plain, "a"), recorded(eps), tmp_path / "kept.jsonl"
    whole, original, read = told(compare(a, b)), measure.from_values, []
    monkeypatch.setattr(ahead.Ahead, "least", 1)  # what is read is kept tensor by tensor

    def interrupted(*args):
        read.append(args)
        if len(read) == 6:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(measure, "from_values", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(a, b, resume=kept)
    with kept.open("a", encoding="utf-8") as file:
        file.write('[["(((')  # a process that is killed may leave a part of a line
    monkeypatch.setattr(measure, "from_values", lambda *args: read.append(args) or original(*args))
    assert told(compare(a, b, resume=kept)) == whole
    count = len(read)
    assert told(compare(a, b, resume=kept)) == whole
    assert len(read) <= count + 1, "but for the factor of the first gradient"
    with pytest.raises(ConfigError, match="other A, B"):
        compare(b, a, resume=kept)


# What is judged without an error between two tensors, or beside the calls


def logging(values):
    """Return a step that logs an image beside the model."""

    def step(model, optimizer, number):
        probe.log("image", Tensor(np.float32(values)))
        return plain_step(model, optimizer, number)

    return step


def set_back(model, optimizer, number):
    """Make a step of which the weights of the head are lost."""
    kept = module(model, HEAD).weight.data.copy()
    loss = plain_step(model, optimizer, number)
    module(model, HEAD).weight.data = kept
    return loss


def other_weights():
    """Return the model with all weights a little larger."""
    model = gpt()
    for parameter in model.parameters():
        parameter.data *= np.float32(1.001)
    return model


ASIDE = {
    "logged beside": ({"step": logging([1, 2])}, {"step": logging([1, 2.1])}, "forward", {"path": ""}),
    "weights set back": ({}, {"step": set_back}, "update", {"path": HEAD, "phase": "update"}),
    "all weights": ({}, {"make": other_weights}, "init", {"path": "*", "phase": "init"}),
}


@pytest.mark.parametrize("case", ASIDE)
def test_rules_hold_for_what_is_judged_beside_the_calls(tmp_path, case):
    sides = [{"make": plain, "step": plain_step, **side} for side in ASIDE[case][:2]]
    a, b = (record(tmp_path / f"{at}.h5", each["make"](), step=each["step"]) for at, each in enumerate(sides))
    phase, rule = ASIDE[case][2:]
    assert compare(a, b).first_divergence.phase.label == phase
    for way in ({"ignore": True}, {"rtol": 1.0, "metric": "rel_l2"}):
        found = compare(a, b, rules=[{**rule, **way}]).first_divergence
        assert found is None or found.phase.label != phase


def test_weights_of_other_sizes_are_left_out_by_a_rule_not_by_a_tolerance(tmp_path):
    wide = gpt()
    module(wide, "layers.1").mlp = MLP(3 * WIDTH // 2)
    for name, there in (("gate", 1), ("up", 1), ("down", 0)):
        layer = module(wide, f"layers.1.mlp.{name}")
        layer.weight.data = layer.weight.data[:, :WIDTH] if there else layer.weight.data[:WIDTH]
    module(wide, "layers.1.mlp.down").bias.data = module(wide, "layers.1.mlp.down").bias.data[:WIDTH]
    a, b = record(tmp_path / "a.h5"), record(tmp_path / "b.h5", wide)
    wide_enough = {"path": "*", "phase": "init", "rtol": 9.0, "metric": "rel_l2"}
    rules = ([], [wide_enough], [{"path": "*", "phase": "init", "ignore": True}])
    found = [compare(a, b, rules=each).first_divergence.phase.label for each in rules]
    assert found == ["init", "init", "forward"]
