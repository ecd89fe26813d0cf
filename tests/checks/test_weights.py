"""Two trained checkpoints: what was never loaded, which groups decayed otherwise, which weights stick out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.checkpoints import Stored
from probe.checkpoints.writing import write_file
from probe.checks.outcome import State, Status
from probe.checks.weights import Weights, check_weights
from probe.checks.weights.measuring import Kind, kind_of, numbers_of
from probe.demo import FOLDER, MAPPING, RECORDINGS
from probe.errors import ConversionError
from probe.store.reading.reader import Reader
from tests.cli.running import run as run_command
from tests.golden_files import golden

Arrays = dict[str, np.ndarray]
LAYERS, WIDTH = 6, 24
COUNT = 1 + 4 * LAYERS


def trained(noise: int = 0) -> Arrays:
    """Return weights as training leaves them: apart from their beginnings, and a little from those of another run."""
    start, rng = np.random.default_rng(0), np.random.default_rng(100 + noise)
    state: Arrays = {"embed.weight": start.standard_normal((60, WIDTH)) * 0.05}
    for at in range(LAYERS):
        state[f"layers.{at}.up.weight"] = start.standard_normal((2 * WIDTH, WIDTH)) * (0.05 + 0.002 * at)
        state[f"layers.{at}.mix.weight"] = start.standard_normal((WIDTH, WIDTH)) * 0.06
        state[f"layers.{at}.up.bias"] = start.standard_normal(2 * WIDTH) * 0.03
        state[f"layers.{at}.norm.weight"] = 1 + start.standard_normal(WIDTH) * 0.1
    for name, each in state.items():
        state[name] = (each * (1 + 0.02 * rng.standard_normal(each.shape))).astype(np.float32)
    return state


def saved(path: Path, state: Arrays) -> Path:
    write_file(path, [Stored(name, each.dtype, each.shape) for name, each in state.items()], state.__getitem__, "torch")
    return path


def held(folder: Path, b: Arrays, a: Arrays | None = None, **options: object) -> Weights:
    first, second = saved(folder / "a.safetensors", a or trained()), saved(folder / "b.safetensors", b)
    return check_weights(first, second, **options)  # type: ignore[arg-type]


def codes(found: Weights) -> list[str]:
    return [note.code for note in found.found]


def test_another_run_of_the_same_training_passes(tmp_path: Path) -> None:
    found = held(tmp_path, trained(1))
    assert found.status is Status.CLEAN and len(found.weights) == COUNT and not found.never_loaded


def test_the_numbers_are_numpys(tmp_path: Path) -> None:
    a, b = trained(), trained(1)
    row = next(row for row in held(tmp_path, b).weights if row.name_b == "layers.2.up.weight")
    for numbers, array in ((row.a, a[row.name_a]), (row.b, b[row.name_b])):
        wide = array.astype(np.float64)
        assert (numbers.mean, numbers.variance, numbers.norm) == pytest.approx(
            (wide.mean(), wide.var(), np.linalg.norm(wide))
        )
    wanted = np.corrcoef(a[row.name_a].reshape(-1), b[row.name_b].reshape(-1))[0, 1]
    assert row.correlation == pytest.approx(wanted) and row.norm_ratio == pytest.approx(row.b.norm / row.a.norm)


def test_numbers_leave_out_what_is_not_finite() -> None:
    found = numbers_of(np.array([1.0, np.nan, 3.0, -np.inf], np.float32))
    assert (found.count, found.bad, found.mean, found.largest) == (2, 2, 2.0, 3.0)


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("layers.0.up.weight", (4, 4), Kind.MATRIX), ("layers.0.norm.weight", (4,), Kind.SCALE), ("x.bias", (4,), Kind.BIAS),
        ("q_bias", (4,), Kind.BIAS), ("norm.beta", (4,), Kind.BIAS), ("norm.gamma", (4,), Kind.SCALE),
        ("model.embed_tokens.weight", (9, 4), Kind.EMBEDDING), ("transformer.wpe.weight", (9, 4), Kind.EMBEDDING),
        ("conv.weight", (4, 1, 3), Kind.MATRIX), ("bn.running_mean", (4,), Kind.STATISTIC), ("bn._variance", (4,), Kind.STATISTIC),
        ("embeddings.cls_token", (1, 1, 4), Kind.EMBEDDING), ("embeddings.norm.weight", (4,), Kind.SCALE),
    ],
)  # fmt: skip
def test_kinds_of_weights(name: str, shape: tuple[int, ...], kind: Kind) -> None:
    assert kind_of(name, shape) is kind


# Decay


def scaled(part: str, factor: float) -> Arrays:
    return {name: each * np.float32(factor) if part in name else each for name, each in trained(1).items()}


def scaled_matrices(factor: float) -> Arrays:
    return {
        name: each * np.float32(factor) if each.ndim == 2 and "embed" not in name else each
        for name, each in trained(1).items()
    }


@pytest.mark.parametrize(
    ("part", "kind", "factor", "is_smaller"),
    [("norm.weight", "norm weights", 0.9, True), ("norm.weight", "norm weights", 1.1, False), ("bias", "biases", 0.7, True),
     ("bias", "biases", 1.4, False)],
)  # fmt: skip
def test_a_group_that_decays_otherwise_is_named(
    tmp_path: Path, part: str, kind: str, factor: float, is_smaller: bool
) -> None:
    found = held(tmp_path, scaled(part, factor))
    assert codes(found) == ["kind-of-other-size"]
    facts = found.found[0].facts
    assert (facts["kind"], facts["is_smaller"]) == (kind, is_smaller) and facts["ratio"] == pytest.approx(
        factor, rel=0.01
    )


def moved(spread: float, factor: float, start: int) -> Arrays:
    """Return weights of norms that training has spread by so much around a factor, drawn anew."""
    rng = np.random.default_rng(start)
    return {
        name: ((1 + spread * rng.standard_normal(WIDTH)) * factor).astype(np.float32) if "norm" in name else each
        for name, each in trained(start).items()
    }


def test_norm_weights_that_decayed_a_little_are_found_where_training_moved_them_little(tmp_path: Path) -> None:
    assert held(tmp_path, moved(0.02, 1.0, 1), moved(0.02, 1.0, 0)).status is Status.CLEAN
    assert codes(held(tmp_path, moved(0.02, 0.96, 1), moved(0.02, 1.0, 0))) == ["kind-of-other-size"]
    assert held(tmp_path, moved(0.15, 0.98, 1), moved(0.15, 1.0, 0)).status is Status.CLEAN


def test_running_statistics_are_no_sizes(tmp_path: Path) -> None:
    a, b = trained(), trained(1)
    for at in range(LAYERS):
        a[f"layers.{at}.bn.running_mean"] = np.full(WIDTH, 0.1 + at, np.float32) + np.arange(WIDTH, dtype=np.float32)
        b[f"layers.{at}.bn.running_mean"] = a[f"layers.{at}.bn.running_mean"] * np.float32(1.5 + at)
    assert held(tmp_path, b, a).status is Status.CLEAN


def test_two_trainings_from_other_weights_may_be_farther_apart(tmp_path: Path) -> None:
    b = {name: each[::-1] if each.ndim == 2 else each for name, each in scaled_matrices(0.93).items()}
    assert codes(held(tmp_path, scaled_matrices(0.93))) == ["matrices-of-other-size"]
    assert held(tmp_path, b).status is Status.CLEAN


def test_a_single_embedding_needs_more(tmp_path: Path) -> None:
    assert held(tmp_path, scaled("embed", 0.95)).status is Status.CLEAN
    assert codes(held(tmp_path, scaled("embed", 0.85))) == ["kind-of-other-size"]


def test_all_matrices_of_another_size(tmp_path: Path) -> None:
    found = held(tmp_path, scaled_matrices(0.9))
    assert codes(found) == ["matrices-of-other-size"], "the other kinds are as long as in A"


def test_a_weight_that_sticks_out(tmp_path: Path) -> None:
    found = held(tmp_path, scaled("layers.3.up.weight", 1.3))
    assert codes(found) == ["weight-sticks-out"] and found.found[0].facts["names"] == ("layers.3.up.weight",)


def test_biases_that_learned_nothing_are_no_sizes(tmp_path: Path) -> None:
    """A softmax takes the bias of a key away: what is left of its gradient is rounding."""
    a, b = trained(), trained(1)
    for seed, state in enumerate((a, b)):
        for at in range(2):
            noise = np.random.default_rng(seed * 50 + at).standard_normal(WIDTH).astype(np.float32)
            state[f"layers.{at}.key.bias"] = noise * np.float32(1e-8 * (1 + 4 * seed))
    assert held(tmp_path, b, a).status is Status.CLEAN


# Never loaded


def fresh(state: Arrays) -> Arrays:
    rng = np.random.default_rng(9)
    state["layers.2.up.weight"] = (rng.standard_normal((2 * WIDTH, WIDTH)) * 0.02).astype(np.float32)
    return state


def constant(state: Arrays) -> Arrays:
    state["layers.2.up.weight"] = np.zeros((2 * WIDTH, WIDTH), np.float32)
    return state


def ones(state: Arrays) -> Arrays:
    state["layers.2.norm.weight"] = np.ones(WIDTH, np.float32)
    return state


def unlike_anything(state: Arrays) -> Arrays:
    rng = np.random.default_rng(9)
    state["layers.2.up.weight"] = (rng.standard_normal((2 * WIDTH, WIDTH)) * 0.054).astype(np.float32)
    return state


@pytest.mark.parametrize(
    ("change", "why"),
    [(fresh, "not related to A's, and like normal(0, 0.02)"), (constant, "constant 0"), (ones, "constant 1"),
     (unlike_anything, "not related to A's")],
)  # fmt: skip
def test_what_was_never_loaded(tmp_path: Path, change: Callable[[Arrays], Arrays], why: str) -> None:
    found = held(tmp_path, change(trained(1)))
    assert codes(found) == ["weights-never-loaded"] and found.found[0].facts["why"] == why
    assert len(found.never_loaded) == 1 and found.never_loaded[0].startswith("layers.2.")


def test_of_two_trainings_from_different_weights_only_a_fresh_one_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(77)
    other = {name: rng.permutation(each.reshape(-1)).reshape(each.shape) for name, each in trained().items()}
    assert held(tmp_path, dict(other)).status is Status.CLEAN
    assert held(tmp_path, fresh(dict(other))).never_loaded == ("layers.2.up.weight",)


def test_a_trained_weight_that_is_by_chance_like_a_fresh_one_is_not_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(77)
    a, b = (
        {name: rng.permutation(each.reshape(-1)).reshape(each.shape) for name, each in trained().items()}
        for _ in range(2)
    )
    for state, std in ((a, 0.0235), (b, 0.02)):
        state["layers.2.up.weight"] = (rng.standard_normal((2 * WIDTH, WIDTH)) * std).astype(np.float32)
    found = held(tmp_path, b, a)
    row = next(row for row in found.weights if row.name_b == "layers.2.up.weight")
    assert (row.like_a, row.like_b) == ("", "normal(0, 0.02)") and not found.never_loaded


def test_what_is_still_equal_to_the_fresh_initialisation(tmp_path: Path) -> None:
    init = trained(5)
    b = trained(1)
    b["layers.4.up.weight"] = init["layers.4.up.weight"]
    path = saved(tmp_path / "init.safetensors", init)
    assert held(tmp_path, dict(b)).status is Status.CLEAN
    found = held(tmp_path, dict(b), init=path)
    assert (
        found.never_loaded == ("layers.4.up.weight",)
        and found.found[0].facts["why"] == "equal to the fresh initialisation"
    )


def test_nan_is_found(tmp_path: Path) -> None:
    b = trained(1)
    b["embed.weight"][3, 3] = np.nan
    found = held(tmp_path, b)
    assert codes(found) == ["trained-weights-not-finite"] and found.found[0].facts["names"] == ("embed.weight",)


# Pairs


def test_wrappers_prefixes_and_transposed_weights(tmp_path: Path) -> None:
    b = {f"module.model.{name}": np.ascontiguousarray(each.T) for name, each in trained(1).items()}
    found = held(tmp_path, b)
    assert found.status is Status.CLEAN and len(found.weights) == COUNT
    assert all(row.correlation > 0.9 for row in found.weights)


def test_what_has_no_counterpart_is_said(tmp_path: Path) -> None:
    b = trained(1)
    b["extra.weight"] = b.pop("layers.0.norm.weight")
    b["layers.1.norm.weight"] = np.ones(WIDTH + 1, np.float32)
    found = held(tmp_path, b)
    assert (found.only_a, found.only_b) == (("layers.0.norm.weight",), ("extra.weight",))
    assert {line.said.code for line in found.lines if line.state is State.UNKNOWN} == {"parameters-without-counterpart", "weights-misshapen"}  # fmt: skip


def test_other_names_need_a_mapping(tmp_path: Path) -> None:
    found = held(tmp_path, {f"x{at}.w": each for at, each in enumerate(trained(1).values())})
    assert found.status is Status.UNCHECKED and "give a layer mapping" in str(found)


def states_of_the_demo() -> tuple[Arrays, Arrays]:
    """Return weights of the demo's two models: Megatron's packs what transformers keeps apart."""
    rng = np.random.default_rng(0)
    with Reader(FOLDER / RECORDINGS[0]) as reader:
        a = {each.names[0]: rng.standard_normal(each.shape).astype(np.float32) * 0.05 for each in reader.parameters if not each.is_buffer}  # fmt: skip
    b = probe.convert_weights(a, MAPPING, to="torch", source=FOLDER / RECORDINGS[0], like=FOLDER / RECORDINGS[1])
    return a, b


def test_packed_weights_by_a_mapping_and_recordings_of_the_structures(tmp_path: Path) -> None:
    a, b = states_of_the_demo()
    b["decoder.layers.4.self_attention.linear_qkv.weight"] *= np.float32(1.5)
    options = {"mapping": MAPPING, "source": FOLDER / RECORDINGS[0], "like": FOLDER / RECORDINGS[1]}
    found = held(tmp_path, b, a, **options)
    assert codes(found) == ["weight-sticks-out"] and not found.only_a and not found.only_b
    facts = found.found[0].facts
    assert facts["names"] == ("decoder.layers.4.self_attention.linear_qkv.weight",) and facts["norm"] == pytest.approx(
        1.5
    )
    assert sum(row.is_equal for row in found.weights) == len(found.weights) - 1


# The command


def test_the_command(tmp_path: Path) -> None:
    a, b = (
        saved(tmp_path / "a.safetensors", trained()),
        saved(tmp_path / "b.safetensors", fresh(scaled("norm.weight", 0.9))),
    )
    result = run_command("check", "weights", a, b)
    assert result.exit_code == 1 and all(len(line) <= 80 for line in result.stdout.splitlines())
    golden("check-weights", result.stdout, (r"^FOUND .*(\n  /.*)*", "FOUND  <files>"))
    assert run_command("check", "weights", a, b, "-v").stdout.count("layers.") > 10
    document = json.loads(run_command("check", "weights", a, b, "--json").stdout)
    assert document["never_loaded"] == ["layers.2.up.weight"] and len(document["weights"]) == COUNT
    assert run_command("check", "weights", a, a).exit_code == 0
    missing = run_command("check", "weights", a, tmp_path / "none.pt")
    assert missing.exit_code == 3 and "there is no" in missing.stderr
    with pytest.raises(ConversionError):
        check_weights(a, tmp_path / "none.pt")
