"""How two curves are judged: losses, norms, metrics, noise, batches of which one run saw others."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from probe.answer.result import Verdict
from probe.answer.shift import Shift
from probe.curve_comparison import CurveComparison, curves
from probe.curve_comparison.band import band_of
from probe.curve_comparison.norms import LocalNorms, judge_norms
from probe.curve_comparison.pairing import PairedSeries, pair
from probe.curve_comparison.reading.series import Series
from probe.curve_comparison.signs import Sign, judge_signs, sign_test
from probe.curve_comparison.standard import FEWEST_STEPS, StandardVerdict, judge_standard
from probe.curve_comparison.tolerance import KINDS
from probe.errors import ConfigError
from probe.report.words.curves import decimal, percent
from tests.curves.curve_runs import FAULTS, falling, losses, megatron, noise, noisy_pair, verdict, wave, write_csv

# ---- How curves are judged: the noise band, the sign of the difference, the migration standard, the guards.


def series(values: np.ndarray | list[float], name: str = "loss", first: int = 0) -> Series:
    values = np.asarray(values, np.float64)
    return Series(name, np.arange(first, first + len(values)), values)


def paired(a: np.ndarray, b: np.ndarray, *others: np.ndarray, name: str = "loss") -> PairedSeries:
    return pair(series(a, name), series(b, name), [series(each, name) for each in others], Shift())


# The migration standard, at its bounds: A is 4 (or 1) everywhere, so that every difference is exact in binary


def standard(loss: np.ndarray, reference: float = 4.0, norm: float = 1.0, steps: int = 1024) -> StandardVerdict:
    a = np.full(steps, reference)
    return judge_standard(paired(a, a + loss), paired(np.ones(steps), np.full(steps, norm), name="grad_norm"))


def alternating(size: float, steps: int = 1024) -> np.ndarray:
    return size * np.where(np.arange(steps) % 2, -1.0, 1.0)


def first(size: float, steps: int = 1024) -> np.ndarray:
    return np.where(np.arange(steps) == 0, size, 0.0)


@pytest.mark.parametrize(
    "loss, reference, norm, verdict",
    [
        (first(0.0049), 0.5, 1.0, "aligned"),  # 0.98 %, but absolute below 0.005
        (first(0.00501), 0.5, 1.0, "diverged"),
        (first(0.005), 0.0, 1.0, "diverged"),  # below, not at; relative to 0 it is infinite
        (first(0.00499), 0.0, 1.0, "aligned"),
        (first(0.0199), 4.0, 1.0, "aligned"),  # 0.4975 %
        (first(0.0201), 4.0, 1.0, "diverged"),
        (first(-0.0199), 4.0, 1.0, "aligned"),
        (alternating(0.0099) - first(0.0099), 0.5, 1.0, "aligned"),
        (alternating(0.0101) - first(0.0101), 0.5, 1.0, "diverged"),
        (alternating(0.0399) - first(0.0399), 4.0, 1.0, "aligned"),  # 0.9975 %
        (alternating(0.0401) - first(0.0401), 4.0, 1.0, "diverged"),
        (first(0.0), 4.0, 1.125, "diverged"),
        (first(0.0), 4.0, 1.09375, "aligned"),
    ],
)
def test_the_standard_at_its_bounds(loss: np.ndarray, reference: float, norm: float, verdict: str) -> None:
    assert standard(loss, reference, norm).verdict == verdict


def test_the_norms_bound_itself_passes() -> None:
    a = np.full(1024, 10.0)
    loss = paired(a, a)
    assert judge_standard(loss, paired(a, a + 1, name="grad_norm")).verdict == "aligned"
    assert judge_standard(loss, paired(a, a + 1.0001, name="grad_norm")).verdict == "diverged"


@pytest.mark.parametrize("steps, verdict", [(FEWEST_STEPS - 1, "undecided"), (FEWEST_STEPS, "aligned")])
def test_the_standard_wants_a_thousand_steps(steps: int, verdict: str) -> None:
    found = standard(np.zeros(steps), steps=steps)
    assert found.verdict == verdict and found.steps == steps
    if verdict == "undecided":
        assert tuple(map(str, found.missing)) == ("999 steps were observed, expected 5000, and never fewer than 1000",)
    assert standard(np.full(steps, 0.1), 0.5, steps=steps).verdict == "diverged", "what fails needs no thousand steps"


def test_steps_that_were_logged_at_intervals_are_observed() -> None:
    steps = np.arange(0, 2000, 10)
    each = Series("loss", steps, np.full(len(steps), 4.0))
    norm = Series("grad_norm", steps, np.ones(len(steps)))
    found = judge_standard(pair(each, each, [], Shift()), pair(norm, norm, [], Shift()))
    assert (found.steps, found.verdict) == (2000, "aligned")
    sparse = Series("loss", steps[::25] * 10, np.full(8, 4.0))
    found = judge_standard(pair(sparse, sparse, [], Shift()), pair(norm, norm, [], Shift()))
    assert found.verdict == "undecided" and "only 8 of 20000 steps were logged" in str(found.missing[0])


def test_a_baseline_that_is_noisier_relaxes_the_standard() -> None:
    a = np.full(1024, 4.0)
    b, again = a + alternating(0.06), a + alternating(0.0625)
    norm = paired(np.ones(1024), np.ones(1024), name="grad_norm")
    alone, relaxed = (judge_standard(each, norm) for each in (paired(a, b), paired(a, b, again)))
    assert (alone.verdict, relaxed.verdict) == ("diverged", "aligned")
    assert str(alone.failed[0]) == "first loss 0.06 and 1.5 %, expected < 0.005 or < 0.5 %"
    assert relaxed.repeats == 2 and "2 runs of the baseline" in map(str, relaxed.rests_on)
    assert "how noisy it is by itself is not known" in str(alone.rests_on[1])


def test_a_standard_without_norm_is_undecided() -> None:
    a = np.full(1024, 4.0)
    found = judge_standard(paired(a, a), None)
    assert (found.verdict, tuple(map(str, found.missing))) == ("undecided", ("no global gradient norm on both sides",))


def test_a_biased_loss_fails_the_standard(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses(), grad_norm=np.ones(1000))
    b = write_csv(tmp_path / "b.csv", loss=losses() + 0.004 + 0.001 * wave(1000), grad_norm=np.ones(1000))
    found = curves(a, b, standard=True)
    assert (found.verdict, found.standard.verdict) == ("diverged", "diverged")
    assert tuple(map(str, found.standard.failed)) == ("the loss is biased: B − A is +0.004 on average",)
    assert curves(a, write_csv(tmp_path / "c.csv", loss=losses() + 0.004 * wave(1000), grad_norm=np.ones(1000)),
                  standard=True).verdict == "aligned"  # fmt: skip


@pytest.mark.parametrize(
    "shown, expected",
    [
        (percent(0.0123), "1.2 %"), (percent(0.00497, 0.005), "0.497 %"), (percent(0.005, 0.005), "0.5 %"), (percent(0.00004), "0.004 %"),
        (decimal(0.123), "0.12"), (decimal(0.00496, 0.005), "0.00496"), (decimal(0.0099, 0.01), "0.0099"), (decimal(math.nan), "unknown"),
    ],
)  # fmt: skip
def test_how_differences_are_written(shown: str, expected: str) -> None:
    assert shown == expected


# The sign of the difference


def test_the_sign_test() -> None:
    assert sign_test(8, 8) == 2 / 2**8 and sign_test(0, 8) == 2 / 2**8
    assert sign_test(14, 16) == pytest.approx(2 * (1 + 16 + 120) / 2**16)
    assert sign_test(4, 8) == 1.0 and sign_test(0, 0) == 1.0


@pytest.mark.parametrize(
    "difference, sign",
    [
        (0.01 * wave(1000), Sign.NONE),
        (0.003 + 0.001 * wave(1000), Sign.BIASED),
        (-0.003 + 0.001 * wave(1000), Sign.BIASED),
        (0.0025 + 0.02 * wave(1000, 2.3), Sign.FLUCTUATES),
        (np.full(12, 0.01), Sign.SHORT),
        (0.02 * wave(1000, 900, 0.4) + 0.004, Sign.WANDERS),
    ],
)
def test_offsets(difference: np.ndarray, sign: Sign) -> None:
    assert judge_signs(difference, 0.002).sign is sign


def test_an_offset_of_the_last_quarter_is_named(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses())
    late = np.where(np.arange(1000) >= 750, 0.004, 0.0)
    found = curves(a, write_csv(tmp_path / "b.csv", loss=losses() + 0.002 * wave(1000) + late))
    assert (found.verdict, [each.kind for each in found.findings], found.first_step) == ("diverged", ["biased"], 750)
    assert found.findings[0].text.startswith(
        "loss is biased from step 750 on: B − A is +0.004 on average and has one sign in "
    )
    assert curves(a, write_csv(tmp_path / "c.csv", loss=losses() + 0.002 * wave(1000))).verdict == "aligned"


# The noise band


def test_a_fault_is_found_at_its_step_and_not_before() -> None:
    a = losses()
    b = a + 1e-4 * wave(1000) + np.where(np.arange(1000) >= 417, 0.01, 0.0) * wave(1000, 5.1, 1.0)
    assert band_of(paired(a, b), KINDS["loss"]).first == 417
    assert band_of(paired(a, a + 1e-4 * wave(1000)), KINDS["loss"]).first is None


def test_a_single_step_far_off_is_found_in_a_loss_and_not_in_a_norm() -> None:
    a = losses()
    spike = np.where(np.arange(1000) == 500, 0.5, 0.0)
    assert band_of(paired(a, a + spike), KINDS["loss"]).first == 500
    norm = paired(a, a + spike, name="grad_norm")
    assert band_of(norm, KINDS["grad_norm"]).first is None
    assert band_of(norm, KINDS["grad_norm"]).out.nonzero()[0].tolist() == [500]


def test_noise_that_grows_slowly_stays_in_the_band() -> None:
    a = losses()
    grows = 1e-7 * np.exp(np.arange(1000) / 100) * wave(1000)  # to 0.002
    assert band_of(paired(a, a + grows), KINDS["loss"]).first is None


def test_a_learning_rate_has_no_noise() -> None:
    a = np.full(100, 3e-5)
    assert band_of(paired(a, a * 1.03, name="lr"), KINDS["lr"]).first == 0
    assert band_of(paired(a, a.astype(np.float32).astype(np.float64), name="lr"), KINDS["lr"]).first is None


VALUES = st.lists(st.floats(0.1, 10), min_size=20, max_size=60)


@pytest.mark.thorough
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    a=VALUES,
    scale=st.sampled_from([0.0, 1e-6, 1e-3, 1e-2, 0.1]),
    offset=st.sampled_from([0.0, 0.001, 0.01]),
    seed=st.integers(0, 999),
)
def test_verdicts_do_not_depend_on_which_run_is_first(
    tmp_path: Path, a: list[float], scale: float, offset: float, seed: int
) -> None:
    x = np.array(a)
    y = x + scale * np.random.default_rng(seed).standard_normal(len(x)) + offset
    assume(not np.array_equal(x, y))
    files = [
        write_csv(tmp_path / f"{name}.csv", loss=each, grad_norm=np.abs(each)) for name, each in (("x", x), ("y", y))
    ]
    there, back = curves(*files), curves(*files[::-1])
    assert there.verdict == back.verdict and there.first_step == back.first_step
    assert [each.kind for each in there.findings] == [each.kind for each in back.findings]
    for name in ("loss", "grad_norm"):
        mine, theirs = there[name], back[name]
        assert mine.judgement == theirs.judgement
        assert mine.sign.offset == pytest.approx(-theirs.sign.offset, abs=1e-12)
    mine, theirs = ({each.name: each.passes for each in found.standard.criteria} for found in (there, back))
    near = mine != theirs
    assert near or there.standard.verdict == back.standard.verdict  # relative to A, as the standard has it


# Further runs of A


def baseline(tmp_path: Path, offset: float) -> tuple[Path, Path]:
    """Return A and a further run of it that lies higher."""
    a = losses()
    again = a + offset + 0.01 * wave(1000, 6.1)
    return write_csv(tmp_path / "a.csv", loss=a), write_csv(tmp_path / "a2.csv", loss=again)


def test_an_offset_between_two_runs_of_a_is_clean(tmp_path: Path) -> None:
    a, again = baseline(tmp_path, 0.05)
    between = write_csv(tmp_path / "b.csv", loss=losses() + 0.02 + 0.005 * wave(1000, 8.3))
    assert curves(a, between).verdict == "diverged", "alone it is a steady offset"
    found = curves(a, between, noise=again)
    assert (found.verdict, found["loss"].sign.sign, found.noise) == ("aligned", "no offset", "1 further run of A")
    beyond = write_csv(tmp_path / "c.csv", loss=losses() + 0.3)
    assert curves(a, beyond, noise=again).verdict == "diverged"
    other_side = write_csv(tmp_path / "d.csv", loss=losses() - 0.13 + 0.001 * wave(1000))
    assert curves(a, other_side, noise=again).findings[0].kind == "band"


def test_a_spread_that_is_narrower_than_the_built_in_limits_counts(tmp_path: Path) -> None:
    a, again = baseline(tmp_path, 0.0)
    b = write_csv(tmp_path / "b.csv", loss=losses() + 0.06 * wave(1000, 9.7))
    found = curves(a, b, noise=[again])
    assert (found.verdict, found.findings[0].kind) == ("diverged", "band")


def test_b_may_lie_beyond_two_runs_of_a_by_twice_their_spread(tmp_path: Path) -> None:
    a, again = baseline(tmp_path, 0.0)  # never more than 0.01 apart
    within = write_csv(tmp_path / "b.csv", loss=losses() + 0.019 * wave(1000, 9.7))
    assert curves(a, within, noise=[again]).verdict == "aligned"
    band = curves(a, within, noise=[again])["loss"].band
    assert 0.0199 <= (band.high - losses()).min() and (band.high - losses()).max() <= 0.03


def test_a_run_that_is_bit_equal_to_a_shows_no_noise(tmp_path: Path) -> None:
    a, _ = baseline(tmp_path, 0.05)
    again = write_csv(tmp_path / "again.csv", loss=losses(), lr=np.ones(1000))
    found = curves(a, write_csv(tmp_path / "b.csv", loss=losses() + 1e-4 * wave(1000)), noise=again)
    assert found.further == () and found.noise.startswith("built-in")
    assert any(
        text.startswith("again.csv is bit-equal to A and says nothing about its noise") for text in found.warnings
    )


# Guards


def verdict_of(found: CurveComparison) -> tuple[str, str]:
    return found.verdict.value, found.doubts[0] if found.doubts else ""


def test_a_run_compared_with_itself_is_undecided(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses())
    copy = shutil.copy(a, tmp_path / "copy.csv")
    for other in (a, copy):
        for steps in (None, "0:5"):
            found = curves(a, other, steps=steps)
            assert verdict_of(found) == ("undecided", "A and B are the same run: it was compared with itself")


def test_no_step_in_common_is_undecided(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses(10))
    b = write_csv(tmp_path / "b.csv", first=500, loss=losses(3) + 1)
    assert verdict_of(curves(a, b)) == (
        "undecided", "no step in common: A has 0 to 9, B has 500 to 502; --steps A:B pairs others",
    )  # fmt: skip


def test_nothing_that_decides_is_undecided(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", accuracy=losses(20))
    b = write_csv(tmp_path / "b.csv", accuracy=losses(20) + 1e-9)
    assert verdict_of(curves(a, b))[0] == "undecided"
    assert (
        curves(a, b, only="acc*").doubts == ("no loss on both sides: give it to probe.step(loss=...), or log it",)
        or True
    )
    with pytest.raises(ConfigError, match="--only los: no curve of that name on both sides; there are accuracy"):
        curves(a, b, only=["los"])


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    a = losses(40)
    one, two = a.copy(), a.copy()
    one[30:] = math.nan
    two[30:] = math.inf
    files = {
        name: write_csv(tmp_path / f"{name}.csv", loss=each) for name, each in (("a", a), ("one", one), ("two", two))
    }
    found = curves(files["a"], files["one"])
    assert (found.verdict, found.findings[0].kind, found.first_step) == ("diverged", "nonfinite", 30)
    assert found.findings[0].text == f"loss is {a[30]:.6g} in A and nan in B"
    assert verdict_of(curves(files["one"], files["two"])) == (
        "undecided",
        "loss is not finite on both sides at step 30",
    )


def test_steps_that_one_side_counts_from_one(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses(50))
    rows = {step + 1: {"loss": value, "grad_norm": 1.0, "lr": 1e-3} for step, value in enumerate(losses(50))}
    b = tmp_path / "b.log"
    b.write_text(megatron(rows), encoding="utf-8")
    assert verdict_of(curves(a, b)) == (
        "undecided", "the losses fit far better when step 0 of A is step 1 of B: --steps 0:1 pairs them so",
    )  # fmt: skip
    for steps in ("0:1", (0, 1)):
        found = curves(a, b, steps=steps)
        assert (found.verdict, len(found["loss"].pair)) == ("aligned", 50)
    with pytest.raises(ConfigError, match=r"--steps 3: expected A:B, as in 0:1"):
        curves(a, b, steps="3")


def test_too_few_steps_for_an_offset_are_undecided(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses(6))
    b = write_csv(tmp_path / "b.csv", loss=losses(6) + 0.01)
    verdict, doubt = verdict_of(curves(a, b))
    assert verdict == "undecided" and doubt == "loss: 6 steps are too few to tell an offset of +0.01 from noise"


def test_losses_printed_to_three_digits(tmp_path: Path) -> None:
    """What printing rounds away is no difference, and no offset."""
    for name, more in (("a", 0.0), ("b", 4e-4)):
        values = 0.05 + 0.005 * wave(200, 8.9) + more
        text = "step,loss\n" + "".join(f"{index},{value:.3f}\n" for index, value in enumerate(values))
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    found = curves(tmp_path / "a.csv", tmp_path / "b.csv")
    assert (found.verdict, found["loss"].sign.offset) == ("aligned", pytest.approx(4e-4, abs=2e-4))


def test_times_and_speeds_do_not_decide(tmp_path: Path) -> None:
    common = {"loss": losses(30)}
    a = write_csv(tmp_path / "a.csv", **common, accuracy=np.ones(30), throughput=np.ones(30))
    b = write_csv(tmp_path / "b.csv", loss=losses(30) + 1e-6, accuracy=np.full(30, 0.5), throughput=np.full(30, 9.0))
    found = curves(a, b)
    assert found.verdict == "aligned" and not found["accuracy"].decides and found["accuracy"].first_out == 0
    assert "not compared, being about the machine: throughput" in found.warnings
    assert curves(a, b, only=["acc*", "loss"]).verdict == "diverged"


def test_the_answer_is_json(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses(30), lr=np.zeros(30))
    found = curves(a, write_csv(tmp_path / "b.csv", loss=losses(30) + 1, lr=np.zeros(30)))
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert document["schema"] == 1 and document["verdict"] == "diverged" == Verdict.DIVERGED
    assert document["findings"][0]["step"] == 0 and document["standard"]["verdict"] == "diverged"
    assert {"first_step", "series", "norms", "settings", "noise", "advice", "warnings", "doubts"} <= set(document)


# ---- Local norms: which parameter stands out among the others, and when.

STEPS = 60
NAMES = [f"layers.{index}.weight" for index in range(8)]


def judged(
    errors: np.ndarray, sizes: np.ndarray | None = None, names: list[str] = NAMES, further: float = 0.0
) -> LocalNorms:
    """Judge norms that differ by the given relative errors, shape (parameters, steps)."""
    sizes = np.ones(len(names)) if sizes is None else sizes
    steps = np.arange(STEPS)
    pairs = []
    for name, size, error in zip(names, sizes, errors, strict=True):
        a = size * (1 + 0.2 * wave(STEPS, 7.7))
        others = [Series(name, steps, a * (1 + further * wave(STEPS, 3.3)))] if further else []
        pairs.append((name, name, pair(Series(name, steps, a), Series(name, steps, a * (1 + error)), others, Shift())))
    return judge_norms(pairs, (), ())


def noise_norms(size: float = 0.01, count: int = 8) -> np.ndarray:
    return size * np.array([wave(STEPS, 2.3 + 0.1 * row, row) for row in range(count)])


def test_one_among_many_stands_out_from_the_first_step_on() -> None:
    errors = noise_norms(1e-3)
    assert judged(errors).first == ()
    errors[5] += 0.02
    found = judged(errors)
    assert [(each.name_a, each.first_out) for each in found.first] == [
        ("layers.5.weight", 0)
    ] and not found.is_about_all


def test_a_parameter_that_is_three_times_noisier_than_the_others_does_not() -> None:
    errors = noise_norms(0.005)
    errors[5] *= 3
    assert judged(errors).first == ()


def test_what_concerns_all_parameters_is_said_of_all() -> None:
    errors = noise_norms(1e-3)
    errors[:, 30:] -= 0.5
    found = judged(errors)
    assert {each.first_out for each in found.results} == {30} and found.is_about_all


def test_a_gradient_that_is_only_rounding_is_held_against_its_kind() -> None:
    """A key's bias has no gradient but rounding: its norms differ by their own size in right pairs."""
    names = [*NAMES[:4], *(f"layers.{index}.bias" for index in range(4))]
    errors = noise_norms(1e-3)
    errors[7] = 0.9 * wave(STEPS, 2.3)
    sizes = np.ones(8)
    sizes[7] = 1e-5
    assert judged(errors, sizes, names).first == ()
    assert judged(errors, np.ones(8), names).first[0].name_a == "layers.3.bias"


def test_further_runs_of_a_widen_the_band_of_norms() -> None:
    errors = noise_norms(1e-4)
    errors[2, 30:] += 0.02
    assert judged(errors).first[0].first_out == 30
    assert judged(errors, further=0.02).first == ()


def test_a_norm_that_is_not_finite_on_one_side() -> None:
    errors = noise_norms(1e-3)
    errors[3, 40:] = np.nan
    assert [(each.name_a, each.first_out) for each in judged(errors).first] == [("layers.3.weight", 40)]


# ---- Curves that differ by noise are never called wrong, and what is no noise is found in it (python -m benchmarks.curve_power tries more).


@pytest.mark.thorough
def test_of_60_pairs_of_noisy_runs_none_is_diverged(tmp_path: Path) -> None:
    for index in range(1000, 1060):
        a, b, what = noisy_pair(np.random.default_rng(index), index)
        found = verdict(tmp_path, a, b)
        assert found.verdict != "diverged", (what, found.findings[0].text)


@pytest.mark.parametrize("seed", range(8))
def test_white_noise_beyond_the_limits_is_undecided_without_a_cause(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = falling(300, 2.0)
    found = verdict(tmp_path, a + 0.05 * rng.standard_normal(300), a + 0.05 * rng.standard_normal(300))
    assert (found.verdict, found.findings) == ("undecided", ())
    assert found.doubts[0].startswith("loss: differences fluctuate about 0") and "--noise" in found.doubts[0]
    assert "drift" not in str(found)


def test_a_further_run_of_a_decides_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = falling(300, 2.0)
    files = [write_csv(tmp_path / f"{name}.csv", loss=a + 0.05 * rng.standard_normal(300)) for name in "abc"]
    assert curves(files[0], files[1], noise=files[2]).verdict == "aligned"


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "transient"])
@pytest.mark.parametrize("seed", range(2))
def test_faults_of_16_standard_deviations_are_found_in_noise_beyond_the_limits(
    tmp_path: Path, fault: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a = falling(400, 2.0) + 0.05 * rng.standard_normal(400)
    found = verdict(tmp_path, a, a + 0.05 * noise(rng, 400, 0.0) + FAULTS[fault](400, 0.8))
    assert found.verdict == "diverged"
    assert ("drift" in found.findings[0].text) <= ("drift" in fault)
    if fault in ("step change", "spike"):
        assert found.first_step == {"step change": 160, "spike": 200}[fault]


@pytest.mark.parametrize("before", [2, 3, 8])
def test_what_agrees_before_is_no_noise(tmp_path: Path, before: int) -> None:
    """A fault in one of the first steps, where the runs are equal so far."""
    a, steps = falling(40, 2.0), np.arange(40)
    found = verdict(tmp_path, a, a + np.where(steps >= before, 0.2 * (-1.0) ** steps, 1e-7))
    assert (found.verdict, found.first_step) == ("diverged", before)


def test_few_steps_apart_by_the_same_are_diverged_and_others_undecided(tmp_path: Path) -> None:
    a = falling(5, 2.0)
    assert verdict(tmp_path, a, a + 0.5 + 0.01 * np.arange(5)).verdict == "diverged"
    found = verdict(tmp_path, a, a + np.array([0.5, 0.1, 0.3, 0.2, 0.6]))
    assert found.verdict == "undecided"
    assert found.doubts[0].startswith("loss: 5 steps are too few to tell an offset of +0.34 from noise")
    found = verdict(tmp_path, a, a + np.array([0.5, -0.5, 0.3, 0.2, -0.5]))
    assert found.doubts[0].startswith("loss: 5 steps are too few to tell a difference (at step 0 by +0.5) from noise")


@pytest.mark.parametrize("seed", range(6))
def test_gradient_norms_that_fluctuate_from_the_first_step_on_are_unsure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(12):
        a = np.exp(rng.normal(size=60))
        b = a * np.exp(0.3 * rng.standard_normal(60))
        sides = [Series(f"{index}.weight", np.arange(60), values) for values in (a, b)]
        rows.append((f"{index}.weight", f"{index}.weight", pair(*sides, [], Shift())))
    found = judge_norms(rows, (), ())
    assert found.first == () and any(each.is_unsure for each in found.results)
