"""Log-probabilities of a trainer and of rollout engines that make one mistake each: which is named, at which position; what is noise."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.checks.logprobs import LogProbs, check_logprobs
from probe.checks.logprobs.reading import sequences_of
from probe.checks.outcome import State, Status
from probe.errors import ConfigError, FormatError
from tests.checks.engines import BFLOAT16, CLEAN, LENGTH, TRAINER, VOCABULARY, Array, Engine, text
from tests.cli.running import run as run_command
from tests.golden_files import golden
from tests.toy import nn
from tests.toy.tensor import Tensor

ROWS, PROMPT, TILE = 8, 40, 128
IDS = [text(seed) for seed in range(ROWS)]
BORDERS = np.array([0, 110, 205])
PACKED = np.arange(LENGTH) - BORDERS[np.searchsorted(BORDERS, np.arange(LENGTH), side="right") - 1]
MASK = (np.arange(LENGTH) >= PROMPT) & ~((np.arange(LENGTH) >= 120) & (np.arange(LENGTH) < 140))
NUMBERS = re.compile(r" *[+-]?\d[\d.]*(e[+-]\d+)?")
"""other kernels have others"""
Records = list[dict[str, Any]]


def computed(engine: Engine, ids: Sequence[Array] = IDS, borders: Array = BORDERS[:1], **more: Any) -> Records:
    """Return what an engine writes of sequences."""
    return [{"ids": each, "logprobs": engine.logprobs(each, borders), "prompt_length": PROMPT, **more} for each in ids]


def changed(change: Callable[[Array], Array], rows: Sequence[int] = range(ROWS), **more: Any) -> Records:
    """Return what the right engine writes, its log-probabilities changed."""
    found = computed(CLEAN, **more)
    return [
        {**each, "logprobs": change(each["logprobs"].copy())} if row in rows else each for row, each in enumerate(found)
    ]


def put(at: slice, value: float) -> Callable[[Array], Array]:
    def change(logprobs: Array) -> Array:
        logprobs[at] = value
        return logprobs

    return change


def saved(path: Path, records: Records) -> Path:
    plain = [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in each.items()}
        for each in records
    ]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in plain), encoding="utf-8")
    return path


def held(folder: Path, b: Records, a: Records | None = None, **options: Any) -> LogProbs:
    return check_logprobs(saved(folder / "a.jsonl", a or computed(TRAINER)), saved(folder / "b.jsonl", b), **options)


ENDED = [np.append(each, 2) for each in IDS]
RETOLD = [np.append(each[:180], (each[180:] + 7) % VOCABULARY) for each in IDS]
CAUSES: dict[str, tuple[Callable[[], Records], Callable[[], Records] | None, str, dict[str, Any]]] = {
    "temperature": (lambda: computed(replace(CLEAN, temperature=0.9)), None, "factor", {"slope": pytest.approx(1 / 0.9, rel=0.02)}),
    "another tokenizer's tail": (lambda: computed(CLEAN, RETOLD), None, "ids-differ", {"rows": ROWS, "position": 180}),
    "off by one": (lambda: changed(lambda each: np.append(each[1:], each[-1])), None, "shifted", {"at": 1}),
    "float8 cache": (lambda: computed(replace(CLEAN, narrow_from=TILE)), None, "begins", {"position": pytest.approx(TILE, abs=8), "tile": TILE}),
    "stale weights": (lambda: computed(replace(CLEAN, stale=0.02)), None, "wide", {}),
    "stale in one sequence": (lambda: [*computed(CLEAN)[:5], *computed(replace(CLEAN, stale=0.02), IDS[5:6]), *computed(CLEAN)[6:]], None, "sequences", {"numbers": (5,), "position": PROMPT}),
    "head in bfloat16": (lambda: computed(replace(CLEAN, head=BFLOAT16)), None, "grid", {"side": "B", "dtype": "bfloat16"}),
    "packing leak": (lambda: computed(replace(CLEAN, leaks=True), borders=BORDERS), lambda: computed(TRAINER, borders=BORDERS, position_ids=PACKED), "documents", {"position": 110}),
    "last chunk dropped": (lambda: computed(CLEAN, [each[:256] for each in IDS]), None, "ends-earlier", {"side": "B", "least": 44, "most": 44, "position": 256, "tile": 256}),
    "last chunk not filled": (lambda: changed(put(slice(255, None), 0.0)), None, "filled", {"side": "B", "position": 256, "tile": 256}),
    "no end of the sequence": (lambda: computed(CLEAN), lambda: computed(TRAINER, ENDED), "ends-earlier", {"side": "B", "least": 1, "most": 1, "id": 2}),
    "constant offset": (lambda: changed(lambda each: each - 0.2), None, "constant", {"offset": pytest.approx(-0.2, abs=0.01)}),
    "NaN": (lambda: changed(put(slice(200, 230), np.nan), [3]), None, "not-finite", {"side": "B", "count": 30, "row": 3, "position": 201}),
    "mask moved": (lambda: computed(CLEAN, mask=np.roll(MASK, 1)), lambda: computed(TRAINER, mask=MASK), "masks-differ", {"rows": ROWS, "shift": 1, "position": PROMPT}),
    "last token": (lambda: changed(lambda each: np.append(each[:-1], each[-1] - 1)), None, "last", {"count": ROWS, "position": LENGTH - 1}),
    "growth": (lambda: changed(lambda each: each + np.linspace(0, 0.4, len(each)) * np.random.default_rng(1).standard_normal(len(each))), None, "grows", {}),
    "behind turns": (lambda: changed(put(slice(139, 149), -9.0), mask=MASK), lambda: computed(TRAINER, mask=MASK), "borders", {"position": 140}),
    "one value": (lambda: changed(put(slice(100, 101), -99.0), [2]), None, "single", {"row": 2, "position": 101, "count": 1}),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_named_with_its_place(tmp_path: Path, cause: str) -> None:
    b, a, code, facts = CAUSES[cause]
    found = held(tmp_path, b(), None if a is None else a())
    said = [note for note in found.found if note.code != "logprobs-apart"]
    assert [note.code for note in said] == [f"logprobs-{code}"] and found.status is Status.FOUND
    assert {name: said[0].facts[name] for name in facts} == facts
    assert len(found.next) == 1 and str(found)


CLEAN_PAIRS: dict[str, tuple[Engine, Engine, list[Array], dict[str, Any]]] = {
    "float32 and bfloat16": (TRAINER, CLEAN, IDS, {}),
    "bfloat16 and float32": (CLEAN, TRAINER, IDS, {}),
    "other weights": (replace(TRAINER, seed=4), replace(CLEAN, seed=4), IDS, {}),
    "few short sequences": (TRAINER, CLEAN, [text(seed, 90) for seed in (30, 31)], {}),
    "packed": (CLEAN, TRAINER, IDS, {"borders": BORDERS, "position_ids": PACKED}),
    "easy, then hard": (TRAINER, CLEAN, [np.append(np.resize(text(40, 6), 150), text(seed, 150)) for seed in range(41, 47)], {}),
    "the same": (TRAINER, TRAINER, IDS, {"mask": MASK}),
}  # fmt: skip


@pytest.mark.parametrize("pair", CLEAN_PAIRS)
def test_the_noise_of_16_bits_is_none(tmp_path: Path, pair: str) -> None:
    a, b, ids, more = CLEAN_PAIRS[pair]
    found = held(tmp_path, computed(b, ids, **more), computed(a, ids, **more))
    assert found.status is Status.CLEAN and found.form == "" and found.next == () and found.first is None


def test_atol_is_what_counts_as_noise(tmp_path: Path) -> None:
    assert held(tmp_path, changed(lambda each: each - 0.2), atol=2.0).status is Status.CLEAN
    assert held(tmp_path, computed(CLEAN), atol=0.01).form == "wide"
    with pytest.raises(ConfigError, match="above 0"):
        held(tmp_path, computed(CLEAN), bounds=[0.0])


def test_measures_are_those_of_their_sources(tmp_path: Path) -> None:
    found = held(tmp_path, computed(replace(CLEAN, stale=0.02)), bounds=(0.3,))
    a, b = (np.concatenate([engine.logprobs(each, BORDERS[:1])[PROMPT - 1 :] for each in IDS]).astype(np.float64) for engine in (TRAINER, replace(CLEAN, stale=0.02)))  # fmt: skip
    ratio = np.exp(a - b)
    wanted = {"KL k1": (b - a).mean(), "KL k3": (ratio - 1 - np.log(ratio)).mean(), "token_mult_prob_error": np.exp(np.abs(a - b)).mean(), "mean |B - A|": np.abs(a - b).mean()}  # fmt: skip
    assert {name: found.measures[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)
    assert found.beyond == {"0.3": pytest.approx((np.abs(a - b) > 0.3).mean())} and found.tokens == a.size
    at = int(np.flatnonzero(np.abs(a - b) > 30 / 256)[0])
    assert found.first is not None and (found.first.sequence, found.first.token, found.first.position) == (0, at, at + PROMPT)  # fmt: skip
    assert found.first.id == IDS[0][at + PROMPT] and found.first.a == pytest.approx(a[at])


# Files

PROMPT_IDS, ANSWER, OWN, PADDING = [7, 8, 9], [11, 12, 13, 14], [-1.0, -2.0, -3.0, -4.0], [0, 0]
RECORDS: dict[str, Any] = {
    "own": {"response_ids": ANSWER, "logprobs": OWN, "prompt_ids": PROMPT_IDS},
    "own, whole": {"ids": PROMPT_IDS + ANSWER, "logprobs": [-0.5, -0.5, *OWN], "prompt_length": 3},
    "verl": {"responses": [ANSWER + PADDING], "rollout_log_probs": [OWN + PADDING], "response_mask": [[1] * 4 + PADDING], "prompts": [PADDING + PROMPT_IDS], "attention_mask": [PADDING + [1] * 7 + PADDING]},
    "slime": {"tokens": PROMPT_IDS + ANSWER, "response_length": 4, "rollout_log_probs": OWN, "loss_mask": [1] * 4},
    "NeMo RL": {"token_ids": [PROMPT_IDS + ANSWER + PADDING], "generation_logprobs": [PADDING + [0] + OWN + PADDING], "prev_logprobs": [[0] * 9], "token_loss_mask": [[0] * 3 + [1] * 4 + PADDING], "input_lengths": [7]},
    "TRL": {"completion_ids": [ANSWER + PADDING], "sampling_per_token_logps": [OWN + PADDING], "completion_mask": [[1] * 4 + PADDING], "prompt_ids": [PADDING + PROMPT_IDS], "prompt_mask": [PADDING + [1] * 3]},
    "vLLM": {"prompt_token_ids": PROMPT_IDS, "outputs": [{"token_ids": ANSWER, "logprobs": [{"5": {"logprob": -0.1}, str(each): {"logprob": own}} for each, own in zip(ANSWER, OWN, strict=True)]}]},
    "vLLM, completions": {"choices": [{"prompt_token_ids": PROMPT_IDS, "token_ids": ANSWER, "logprobs": {"token_logprobs": OWN}}]},
    "vLLM, chat": {"prompt_token_ids": PROMPT_IDS, "choices": [{"token_ids": ANSWER, "logprobs": {"content": [{"token": "x", "logprob": own} for own in OWN]}}]},
    "SGLang": {"meta_info": {"input_token_logprobs": [[None, each, None] for each in PROMPT_IDS], "output_token_logprobs": [[own, each, None] for each, own in zip(ANSWER, OWN, strict=True)]}},
}  # fmt: skip


FILES = [(form, suffix) for form in RECORDS for suffix in (".jsonl", ".json", ".npz") if suffix != ".npz" or form[:2] not in ("vL", "SG")]  # fmt: skip


@pytest.mark.parametrize(("form", "suffix"), FILES)
def test_each_form_of_file_gives_the_same_tokens(tmp_path: Path, form: str, suffix: str) -> None:
    file = tmp_path / f"b{suffix}"
    if suffix == ".npz":
        np.savez(file, **RECORDS[form])
    else:
        file.write_text(json.dumps(RECORDS[form]), encoding="utf-8")
    (found,) = sequences_of(file, "engine")
    counted = found.counts
    assert (found.ids[counted].tolist(), found.logprobs[counted].tolist()) == (ANSWER, OWN)
    assert found.start is not None and found.start + int(counted.argmax()) == len(PROMPT_IDS)


def test_one_file_may_have_both_sides_and_orders_may_differ(tmp_path: Path) -> None:
    both = [{"tokens": each["ids"], "log_probs": each["logprobs"], "rollout_log_probs": each["logprobs"] - 0.2} for each in computed(CLEAN)]  # fmt: skip
    assert check_logprobs(saved(tmp_path / "both.jsonl", both)).form == "constant"
    assert held(tmp_path, computed(CLEAN)[::-1]).status is Status.CLEAN
    answers = [{"response_ids": each["ids"][PROMPT:], "logprobs": each["logprobs"][PROMPT - 1 :]} for each in computed(CLEAN)]  # fmt: skip
    found = held(tmp_path, answers)
    assert found.status is Status.CLEAN and found.tokens == ROWS * (LENGTH - PROMPT)
    assert [note.code for note in held(tmp_path, computed(CLEAN)[:-1]).found] == ["logprobs-sequences-missing"]


def test_ids_that_are_moved_are_said_to_be(tmp_path: Path) -> None:
    moved = [{**each, "ids": np.append(1, each["ids"][:-1])} for each in computed(CLEAN)]
    (said,) = (note for note in held(tmp_path, moved).found if note.code == "logprobs-ids-differ")
    assert said.facts["shift"] == 1 and "moved by +1" in str(said)


class Model(nn.Module):
    """Looks ids up, and gives logits."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(30, 4), head=nn.Linear(4, 30))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.embed(input_ids))


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_the_logits_of_a_recording(tmp_path: Path, task: str) -> None:
    ids = np.array([[3, 5, 7, 9, 11]])
    nn.manual_seed(0)
    with probe.capture(model := Model(), tmp_path / "a.h5", task=task):
        z = model(Tensor(ids))
        z.sum().backward()
        probe.step()
    if task == "statistics":
        with pytest.raises(FormatError, match="task='tensor'"):
            sequences_of(tmp_path / "a.h5", "trainer")
        return
    (found,) = sequences_of(tmp_path / "a.h5", "trainer")
    wide = np.asarray(z.data, np.float64)[0, :-1]
    wanted = wide[np.arange(4), ids[0, 1:]] - np.log(np.exp(wide).sum(axis=1))
    assert (found.start, found.ids.tolist()) == (1, [5, 7, 9, 11]) and found.logprobs == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("x.jsonl", '{"text": "a"}', "it has text"), ("x.jsonl", "{", "cannot be read"), ("x.pt", "", r"expected .jsonl"), ("y.npz", None, "there is no"),
     ("x.json", '{"ids": [1], "logprobs": [-1, -1]}', "2 log-probabilities of 1 tokens"), ("x.jsonl", "", "holds no sequence"), ("x.npz", "PK", "cannot be read"), ("x.json", '{"ids": "ab", "logprobs": [-1]}', "cannot be read")],
)  # fmt: skip
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(FormatError, match=said):
        sequences_of(tmp_path / name, "trainer")


def test_the_command(tmp_path: Path) -> None:
    a, b = (
        saved(tmp_path / "a.jsonl", computed(TRAINER)),
        saved(tmp_path / "b.jsonl", changed(put(slice(255, None), 0.0))),
    )
    result = run_command("check", "logprobs", a, b, "-o", tmp_path / "t.csv", "--bound", "0.5")
    assert result.exit_code == 1 and all(len(line) <= 80 for line in result.stdout.splitlines())
    golden("check-logprobs", result.stdout, (r"^FOUND .*(\n  /.*)*", "FOUND  <files>"), (NUMBERS.pattern, "#"))
    rows = list(csv.reader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0][:5] == ["sequence", "token", "position", "id", "a"] and len(rows) == 1 + ROWS * (LENGTH - PROMPT)
    assert rows[1][:4] == ["0", "0", str(PROMPT), str(IDS[0][PROMPT])]
    document = json.loads(run_command("check", "logprobs", a, b, "--json").stdout)
    assert (document["form"], document["beyond"].keys(), document["status"]) == ("filled", {"0.1", "0.5", "1"}, "found")
    assert run_command("check", "logprobs", a, a).exit_code == 0
    assert "above 0" in run_command("check", "logprobs", a, b, "--atol", "0").stderr
    masked = saved(tmp_path / "c.jsonl", computed(TRAINER, mask=np.zeros(LENGTH, int)))
    nothing = check_logprobs(a, masked)
    assert State.UNKNOWN in {line.state for line in nothing.lines}
    assert run_command("check", "logprobs", a, tmp_path / "none.jsonl").exit_code == 3


def test_the_guide_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "inference.md").read_text(encoding="utf-8")
    command, _, shown = guide.partition("$ probe check logprobs ")[2].partition("\n```")[0].partition("\n")
    monkeypatch.chdir(tmp_path)
    a, b = command.split()
    saved(Path(a), computed(TRAINER)), saved(Path(b), CAUSES["temperature"][0]())
    printed = run_command("check", "logprobs", a, b).stdout
    plain = [" ".join(NUMBERS.sub("#", each).split()) for each in (shown, printed)]
    assert plain[0] == plain[1]
