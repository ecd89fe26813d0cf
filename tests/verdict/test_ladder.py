"""Which rung judges: floors from further runs and from a reference, what is said of them, and values that are compared ahead."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import probe
from probe.answer.result import Verdict
from probe.commands.cli import compare_command
from probe.comparing import compare
from probe.errors import ConfigError
from probe.records import Phase, Role
from probe.report.text import render
from probe.verdict.noise.measured import robust_floor, spread_factor
from tests.fusing import apart, mapping, together
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import MLP, WIDTH, gpt, module, plain_step, record, replaced, rounding_otherwise
from tests.verdict.planted import Clean, Faulty, Recorder

# ---- Floors from further runs and from a reference, on small models of the numpy framework.

FAULT = "layers.1.norm2"
WIDE = "layers.1.mlp.up"
"""returns so many elements that rounding, up and down, leaves their norm as it is"""


def noisy(size: float, seed: int, path: str = "layers.1.mlp.down") -> nn.Module:
    """Return the model with random errors of a relative size behind one module."""
    rng = np.random.default_rng(seed)

    def forward(self: nn.Linear, x: object) -> object:
        y = nn.Linear.forward(self, x)
        return y + (size * np.sqrt(np.mean(y.data**2)) * rng.standard_normal(y.shape)).astype(np.float32)

    model = gpt()
    replaced(model, path, forward=forward)
    return model


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_what_legitimate_runs_differ_by_is_noise(run: Recorder, task: str) -> None:
    """The kernels of one module round a hundred times worse than the built-in model allows: two runs show it."""
    a, b = run(task=task), run(noisy(1e-4, 1), task=task)
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.path == "layers.1.mlp.down"
    one = run(noisy(1e-4, 2), task=task)
    found = probe.compare(a, b, noise=one)
    assert (found.verdict, found.noise) == (Verdict.ALIGNED, f"1 further run of A ({one.name})")
    more = [one, run(noisy(1e-4, 3), task=task), run(noisy(1e-4, 4), task=task)]
    found = probe.compare(a, b, noise=more)
    assert found.verdict is Verdict.ALIGNED and found.noise.startswith("3 further runs of A (")


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_what_is_ten_times_as_much_is_none(run: Recorder, task: str) -> None:
    a, noise = run(task=task), run(noisy(1e-4, 2), task=task)
    found = probe.compare(a, run(noisy(1e-3, 1), task=task), noise=noise)
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.mlp.down")
    assert any(text.startswith("the further run of A differs there by ") for text in first.evidence)
    assert len(found.divergences) == 1, "the rest inherits"


def test_a_floor_at_one_module_excuses_no_other_one(run: Recorder) -> None:
    a, noise = run(task="tensor"), run(noisy(1e-4, 2, "layers.2.mlp.down"), task="tensor")
    first = probe.compare(a, run(noisy(1e-4, 1, "layers.0.mlp.down"), task="tensor"), noise=noise).first_divergence
    assert first is not None and first.path == "layers.0.mlp.down"


def test_a_fault_is_found_beside_the_floor(clean: Clean, faulty: Faulty, run: Recorder) -> None:
    noise = run(rounding_otherwise(gpt()), task="tensor")
    first = probe.compare(clean("tensor"), faulty("eps", "tensor"), noise=noise).first_divergence
    assert first is not None and first.path == FAULT


def scaled(size: float, factor: float, seed: int) -> nn.Module:
    """Return the model with random errors of a relative size, and a factor, behind one module."""
    model = noisy(size, seed, WIDE)
    noisy_forward = module(model, WIDE).forward
    replaced(model, WIDE, forward=lambda self, x: noisy_forward(x) * np.float32(factor))
    return model


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_factor_within_the_errors_of_further_runs_is_found_unless_they_have_it_too(run: Recorder, task: str) -> None:
    """Rounding has no direction: a run that is off by as much, up and down, does not show that a factor is noise."""
    a, b = run(task=task), run(scaled(0, 1 + 2e-6, 1), task=task)
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.path == WIDE
    assert probe.compare(a, b, noise=run(scaled(2e-6, 1, 2), task=task)).first_divergence == first
    found = probe.compare(a, b, noise=run(scaled(0, 1 + 2e-6, 3), task=task))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def rounded(dtype: type, seed: int = 0, scale: float = 1.0) -> nn.Module:
    """Return the model with every Linear's output off by random errors of a narrow dtype's size."""
    size = {np.float32: 0.0, np.float16: 2e-3}[dtype]
    rng = np.random.default_rng(seed)

    def forward(self: nn.Linear, x: object) -> object:
        y = nn.Linear.forward(self, x)
        return y + (scale * size * np.sqrt(np.mean(y.data**2)) * rng.standard_normal(y.shape)).astype(np.float32)

    model = gpt()
    for path, found in list(model.modules()):
        if type(found) is nn.Linear:
            replaced(model, path, forward=forward)
    return model


def test_two_runs_as_far_from_the_truth_are_aligned(run: Recorder) -> None:
    """A and B are both off by 2e-3, each in its own way: only against the truth can that be told from a fault."""
    a, b = run(rounded(np.float16, 1), task="tensor"), run(rounded(np.float16, 2), task="tensor")
    truth = run(task="tensor")
    assert probe.compare(a, b).verdict is Verdict.DIVERGED
    found = probe.compare(a, b, reference=truth)
    assert [d for d in found.divergences if d.phase is Phase.FORWARD] == []
    assert found.noise == f"reference {truth.name}"


def test_a_run_that_is_twice_as_far_is_suspicious(run: Recorder) -> None:
    a, b = run(rounded(np.float16, 1), task="tensor"), run(rounded(np.float16, 2, 3.0), task="tensor")
    first = probe.compare(a, b, reference=run(task="tensor")).first_divergence
    assert first is not None and first.path == "layers.0.attn.q"
    text = next(text for text in first.evidence if "from the reference" in text)
    assert text.startswith("B is ") and " times as far from the reference as A is: " in text
    assert first.measure == "of B to the reference" and first.error > 1.5 * 2e-3


class Mix(nn.Module):
    """A call that A has no counterpart of; it adds noise."""

    def __init__(self, size: float, seed: int) -> None:
        super().__init__()
        self.size, self.seed = size, seed

    def forward(self, x: Tensor) -> Tensor:
        noise = np.random.default_rng(self.seed).standard_normal(x.shape)
        return x + (self.size * np.sqrt(np.mean(x.data**2)) * noise).astype(np.float32)


def mixing(size: float, seed: int, *, apart: bool) -> nn.Module:
    """Return the model with noise in one MLP's own code, or in a module that is called there."""
    model, mix = gpt(), Mix(size, seed)

    def forward(self: MLP, x: Tensor) -> Tensor:
        return self.down(mix.forward(self.act(self.gate(x)) * self.up(x)) if not apart else
                         self.mix(self.act(self.gate(x)) * self.up(x)))  # fmt: skip

    found = replaced(model, "layers.1.mlp", forward=forward)
    if apart:
        found.mix = mix
    return model


def test_a_finding_at_a_module_of_one_side_has_the_limit_that_judged_it(run: Recorder) -> None:
    """Its error is five times what the further run explains, and not a thousand times what rounding does."""
    a, further = run(task="tensor"), run(mixing(1e-4, 1, apart=False), task="tensor")
    found = probe.compare(a, run(mixing(1e-3, 2, apart=True), task="tensor"), noise=further)
    first, flip = found.first_divergence, found.flip
    assert first is not None and flip is not None and [ref.path for ref in first.b] == ["layers.1.mlp"]
    row = next(slot for slot in found["layers.1.mlp.down"] if slot.role is Role.INPUT)
    assert (first.limit, first.error) == (row.limit, row.error) and 1e-4 < first.limit < 3e-4
    assert any(text.startswith("the further run of A differs there by ") for text in first.evidence)
    assert flip.first == pytest.approx(first.error / first.limit) and flip.first < 10


# What one, two, three runs tell


def test_chance_widens_a_floor_the_more_the_less_is_known() -> None:
    by_runs = [spread_factor(1000, runs) for runs in (1, 2, 3, 30)]
    assert by_runs == sorted(by_runs, reverse=True) and 1.3 < by_runs[0] < 1.4 and 1.15 < by_runs[-1] < 1.25
    by_size = [spread_factor(size, 1) for size in (16, 64, 256)]
    assert by_size == sorted(by_size, reverse=True) and by_size[0] > 3
    assert math.isinf(spread_factor(1, 1)) and math.isinf(spread_factor(15, 100))


def test_chance_as_it_is_drawn() -> None:
    """Of 20,000 pairs of errors of 64 elements none is beyond the factor, and some are beyond two thirds of it."""
    errors = np.linalg.norm(np.random.default_rng(0).standard_normal((2, 20_000, 64)), axis=-1)
    ratios = errors[0] / errors[1]
    assert ratios.max() < spread_factor(64, 1) < 1.5 * ratios.max()


def test_the_spread_of_three_runs_and_more_is_robust() -> None:
    assert robust_floor([1.0]) == 1.0 and robust_floor([1.0, 3.0]) == 3.0
    assert robust_floor([1.0, 2.0, 3.0]) == pytest.approx(2 + 3 * 1.4826)
    assert robust_floor([1.0, 1.0, 9.0]) == 9.0


# Runs that are none of A


def test_runs_that_are_none_of_a(clean: Clean, faulty: Faulty, run: Recorder) -> None:
    a, b = clean(), faulty("eps")
    for path, side in ((a, "A"), (b, "B")):
        with pytest.raises(ConfigError, match=f"is the run of {side} itself: expected a further run of A's model"):
            probe.compare(a, b, noise=path)
    with pytest.raises(
        ConfigError, match="begins with another weight of embed .*expected a run of A's model with the same"
    ):
        probe.compare(a, b, noise=run(gpt(seed=1)))
    with pytest.raises(ConfigError, match="has no module 'layers.2', and A has"):
        probe.compare(a, b, noise=run(gpt(layers=2)))
    a2 = run(rounding_otherwise(gpt()))
    with pytest.raises(ConfigError, match="noise= names the same run twice"):
        probe.compare(a, b, noise=[a2, a2])
    with pytest.raises(ConfigError, match="noise= and reference= judge in two ways"):
        probe.compare(a, b, noise=a2, reference=run())
    with pytest.raises(ConfigError, match="noise= and reference= would have nothing to judge"):
        probe.compare(a, b, noise=a2, atol=1e-3)


def in_dtype(dtype: type, *, only_outputs: bool = False) -> nn.Module:
    """Return the model in another precision; or as autocast runs it, which casts what modules return and no weight."""

    def forward(self: nn.Linear, x: object) -> object:
        y = nn.Linear.forward(self, x)
        y.data = y.data.astype(dtype)
        return y

    model = gpt()
    if only_outputs:
        replaced(model, "layers.1.attn.q", forward=forward)
        return model
    for parameter in model.parameters():
        parameter.data = parameter.data.astype(dtype)
    return model


@pytest.mark.parametrize(("only_outputs", "what"), [(False, "weight of embed"), (True, "output 0 of layers.1.attn.q")])
def test_a_coarser_run_is_no_rung(clean: Clean, faulty: Faulty, run: Recorder, only_outputs: bool, what: str) -> None:
    """Its own rounding would be the floor, and hide the wrong eps."""
    coarse = run(in_dtype(np.float16, only_outputs=only_outputs))
    told = f"{what} is float32 in A, and float16 there: expected a"
    with pytest.raises(
        ConfigError, match=f"noise=.* is a run in another precision: {told} further run of A's model in"
    ):
        probe.compare(clean(), faulty("eps"), noise=coarse)
    with pytest.raises(ConfigError, match=f"reference=.* is less precise than A: {told} run of .* in float32 or wider"):
        probe.compare(clean(), faulty("eps"), reference=coarse)


def test_a_run_in_higher_precision_is_a_reference_and_no_noise(clean: Clean, faulty: Faulty, run: Recorder) -> None:
    fine = run(in_dtype(np.float64))
    with pytest.raises(ConfigError, match="float64 there: .*; a run in higher precision is a reference=$"):
        probe.compare(clean(), faulty("eps"), noise=fine)
    first = probe.compare(clean(), faulty("eps"), reference=fine).first_divergence
    assert first is not None and first.path == FAULT


def test_a_reference_is_as_precise_as_b_too(run: Recorder) -> None:
    a, truth = (run(in_dtype(np.float16)) for _ in range(2))
    told = "is less precise than B: weight of embed is float32 in B, and float16 there"
    with pytest.raises(ConfigError, match=told):
        probe.compare(a, run(), reference=truth)


def test_a_step_that_a_further_run_lacks_is_said(clean: Clean, run: Recorder) -> None:
    noise = run(rounding_otherwise(gpt()))
    found = probe.compare(clean(), run(rounding_otherwise(gpt()), steps=2, task="tensor"), noise=noise)
    assert f"noise: {noise.name} has no step 1: the built-in model judges there" in found.warnings


def test_a_floor_that_lets_everything_pass_is_never_aligned(run: Recorder) -> None:
    def chaotic(seed: int) -> nn.Module:
        model = noisy(2.0, seed, "layers.0.mlp.down")
        return model

    a = run(task="tensor")
    found = probe.compare(a, run(chaotic(1), task="tensor"), noise=run(chaotic(2), task="tensor"))
    assert found.verdict is not Verdict.ALIGNED
    assert any(text.startswith("the floor is so wide that everything passes: half of what") for text in found.warnings)


# How it is said


def said(factor: float) -> str:
    """Return three digits, with commas."""
    return f"{float(f'{factor:.3g}'):,g}"


def test_the_report_says_the_rung_and_what_would_flip_the_verdict(clean: Clean, faulty: Faulty, run: Recorder) -> None:
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"))
    assert found.flip is not None and found.first_divergence is not None
    text = render(found).plain
    assert f"\n  {said(found.flip.first)}× above the limit" in text and found.flip.factor >= found.flip.first
    assert found.flip.first == pytest.approx(found.first_divergence.metrics.rel_l2 / found.first_divergence.limit)
    other = run(rounding_otherwise(gpt()), steps=2, task="tensor")
    aligned = probe.compare(clean("tensor"), other)
    assert aligned.flip is not None and 0 < aligned.flip.factor < 1
    assert (
        f"if all limits were divided by {said(1 / aligned.flip.factor)}, it would be a divergence"
        in render(aligned).plain
    )
    same = probe.compare(clean("tensor"), run(steps=2, task="tensor"))
    assert same.flip is None and "divided" not in render(same).plain


def test_what_is_no_matter_of_size_stands_whatever_the_tolerance(clean: Clean, run: Recorder) -> None:
    model = gpt()
    module(model, "layers.1.mlp.up").weight.data[0, 0] = np.nan
    found = probe.compare(clean("tensor"), run(model, task="tensor"))
    assert found.flip is not None and math.isinf(found.flip.first) and math.isinf(found.flip.factor)
    assert "\n  above any limit · " in render(found).plain
    assert found.as_json()["flip"] == {"factor": None, "first_divergence": None, "closest": None}


def test_the_command(clean: Clean, faulty: Faulty, run: Recorder, tmp_path: Path) -> None:
    noise = run(rounding_otherwise(gpt()))
    options = [str(clean()), str(faulty("eps")), "--noise", str(noise), "--format", "json"]
    result = CliRunner().invoke(compare_command, options)
    document = json.loads(result.output)
    assert (result.exit_code, document["noise"]) == (1, f"1 further run of A ({noise.name})")
    assert document["flip"]["first_divergence"] > 1
    result = CliRunner().invoke(compare_command, [*options, "--rtol", "1"])
    assert result.exit_code == 3 and "noise= and reference= would have nothing to judge" in result.output
    shown = CliRunner().invoke(compare_command, ["--help"]).output
    assert all(
        option in shown for option in ("--noise", "--reference", "--atol", "--rtol", "--metric", "--rules", "--preset")
    )


def test_floors_are_found_where_a_mapping_joins_modules(run: Recorder) -> None:
    """A's own rows are what a further run is looked up by: also in the backward and the update phase."""
    noise = run(rounding_otherwise(gpt()), task="tensor")
    found = probe.compare(run(task="tensor"), run(rounding_otherwise(gpt()), task="tensor", phases=None), noise=noise)
    assert found.verdict is Verdict.ALIGNED
    phases = {slot.phase for slot in found.slots if slot.role in (Role.OUTPUT, Role.GRAD_OUTPUT, Role.PARAM_GRAD)}
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT} <= phases


def _moved(share: float, all_of_it: bool = False) -> nn.Module:
    """Return the model with q, k and v apart, the largest element of one's weight (or all of it) longer by a share."""
    model = apart()
    values = module(model, "layers.1.attn.k").weight.data
    values[(abs(values) == abs(values).max()) | all_of_it] *= np.float32(1 + share)
    return model


def test_the_start_of_a_run_whose_weights_are_joined_is_compared_part_by_part(run: Recorder) -> None:
    """Sketches of q, k and v tell nothing of them in one; that one element is off by 1e-5 is an error of 1e-7 of them."""
    a, b = run(apart()), run(together())
    found = probe.compare(a, b, mapping(2), noise=run(_moved(1e-5)))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    with pytest.raises(ConfigError, match=r"begins with another weight of layers.1.attn.k \(rel 1.0e-05\)"):
        probe.compare(a, b, mapping(2), noise=run(_moved(1e-5, all_of_it=True)))


def test_values_are_asked_for_only_where_they_are_not_stored(run: Recorder) -> None:
    def compared(task: str) -> list[str]:
        b = together()
        faster = nn.AdamW(b.parameters(), lr=2e-3)  # updates, which a rung is asked about where they are wrong
        files = run(apart(), task=task), run(b, task=task, optimizer=faster), run(_moved(1e-7), task=task)
        found = probe.compare(*files[:2], mapping(2), noise=files[2])
        return [text for text in found.warnings if "sketches tell only a bound" in text]

    (from_statistics,), (from_values,) = compared("statistics"), compared("tensor")  # updates are never stored
    assert from_statistics.endswith("the built-in model judges there; values would tell more (task='tensor')")
    assert from_values.endswith("the built-in model judges there")


def test_nothing_of_it_is_read_where_it_is_not_asked_for(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5"), record(tmp_path / "b.h5", rounding_otherwise(gpt()))
    assert probe.compare(a, b).noise == "built-in model"


# ---- What was planted, which rung judges, and what is said; values that are compared ahead.

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


def noisy_rungs(size, seed):
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
    model = noisy_rungs(1e-4, 3)()
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
    "as noisy as a further run": (noisy_rungs(1e-4, 1), {"noise": noisy_rungs(1e-4, 2)}, "aligned", None, ""),
    "ten times as noisy": (noisy_rungs(1e-3, 1), {"noise": noisy_rungs(1e-4, 2)}, "diverged", ("forward", DOWN), ""),
    "a further run with more modules": (noisy_rungs(1e-4, 1), {"noise": with_more_modules}, "aligned", None, ""),
    "a further run that is equal": (eps, {"noise": plain}, "diverged", ("forward", NORM), "says nothing of noise"),
    "a fault beside noise": (eps, {"noise": noisy_rungs(1e-4, 2)}, "diverged", ("forward", NORM), ""),
    "twice as far from the reference": (noisy_rungs(1e-4, 1), {"reference": plain}, "diverged", ("forward", DOWN), ""),
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
    a, b, other = recorded(plain, "a"), recorded(noisy_rungs(1e-3, 1)), recorded(noisy_rungs(1e-4, 2))
    assert compare(a, b, noise=other).noise == f"1 further run of A ({other.name})"
    first = compare(b, recorded(noisy_rungs(1e-2, 4)), reference=a).first_divergence
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
    files = {"a": recorded(plain, "a"), "other": recorded(noisy_rungs(1e-4, 2), "other")}

    def file_of(option):
        return [files[each] for each in option] if isinstance(option, list) else files.get(option, option)

    with pytest.raises(ConfigError, match=said):
        compare(files["a"], recorded(eps), **{name: file_of(option) for name, option in WRONG[said].items()})


def test_a_run_of_other_weights_is_no_noise(recorded):
    with pytest.raises(ConfigError, match="begins with another weight of embed"):
        compare(recorded(plain, "a"), recorded(eps), noise=recorded(lambda: gpt(seed=1)))


# Ahead


def told(answer):
    return json.dumps(answer.as_json(), sort_keys=True, default=str)


def test_other_processes_give_the_same_answer(recorded):
    a, b = recorded(plain, "a"), recorded(eps)
    assert told(compare(a, b)) == told(compare(a, b, scheduler="processes:2"))


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
