"""What was not compared, and what keeps a comparison from an answer (`Comparison.notes`, `Comparison.reasons`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.comparison.coverage.guards import grouped
from probe.comparison.noise.interface import BUILT_IN
from probe.comparison.notes import Note
from probe.records import NEVER_STEPPED, Role, Task
from probe.report.words.tensors import INVERSES

_MOST_NAMED = 4
_MOST_STEPS = 5
_CURVES = "losses and norms over steps (task='norms'): compare two such recordings with probe curves"
_NO_NUMBERS = "no numbers (task='structure'): record with task='statistics'"
_NOT_CLOSED = " (the other was not closed: its process was ended, or is still running)"
_NO_STEP_SHOWS = "no step that was recorded shows what that does"
_VALUES = 'record with task="tensor", or use --metric rel_l2'
_BY_STATISTICS = " (without recorded values: by min, max, mean and norm alone)"


# Parts of sentences


def in_root(path: str) -> str:
    """Name a module."""
    return path or "the root"


def in_model(path: str) -> str:
    """Name a module, where the root is the model."""
    return path or "the model"


def many(count: int, noun: str) -> str:
    """Count things: ``1 state``, ``2 states``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sided(a: Sequence[str], b: Sequence[str]) -> str:
    """Name what each side alone has."""
    return "; ".join(f"{grouped(names, _MOST_NAMED)} in {side}" for side, names in (("A", a), ("B", b)) if names)


def some(texts: Sequence[str], separator: str = ", ") -> str:
    """List the first texts, and how many more there are."""
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return f"{separator.join(texts[:_MOST_NAMED])}{more}"


def _steps(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_MOST_STEPS])) + (" …" if len(numbers) > _MOST_STEPS else "")


def _tensor(phase: str, role: str, slot: str, path: str) -> str:
    return f"{phase} {role} {slot} of {in_root(path)}"


def _split(a: int, b: int) -> str:
    return f"A ran {a} {'micro-batch' if a == 1 else 'micro-batches'}, B {b}"


def percent(share: float) -> str:
    """Write a share with one digit that counts."""
    return f"{float(f'{100 * share:.1g}'):g} %"


def sure(confidence: float) -> str:
    """Write how sure a guess is: ``98 % sure``."""
    return f"{min(round(100 * confidence), 99)} % sure"


def _share(share: float) -> str:
    return f"{share:.1%}" if share < 1 else "all"


def _zeros(count: int, total: int) -> str:
    return f"with {count} of {total} tensors zeros in the place of B would pass too"


# The recordings


def _nothing_inside(side: str, path: str) -> str:
    return (
        f"{side}: nothing that runs inside {in_model(path)} was recorded: it is compiled, or calls none of its modules"
    )


def _recorded_parts(option: str, a: Sequence[str] | None, b: Sequence[str] | None) -> str:
    in_a, in_b = ("all" if each is None else ", ".join(each) for each in (a, b))
    return f"the {option} that were recorded are not the same: {in_a} in A, {in_b} in B; what one side lacks is not compared"


def _input_origins(only_a: Sequence[str], only_b: Sequence[str]) -> str:
    texts = [f"{'; '.join(each)} only in {side}" for side, each in (("A", only_a), ("B", only_b)) if each]
    return f"the inputs do not come from the same: {', '.join(texts)}"


def _no_common_step(a: Sequence[int], b: Sequence[int], shift: Sequence[int]) -> str:
    how = f", and step {shift[0]} of A is to be step {shift[1]} of B" if shift else "; --steps A:B pairs others"
    return f"no step in common: A has {_steps(a)}, B has {_steps(b)}{how}"


def _uncompared_steps(only_a: Sequence[int], only_b: Sequence[int], not_closed: Sequence[str]) -> str:
    texts = [
        f"{_steps(steps)} only in {side}{_NOT_CLOSED if other in not_closed else ''}"
        for side, other, steps in (("A", "B", only_a), ("B", "A", only_b))
        if steps
    ]
    return f"steps not compared: {', '.join(texts)}"


def _part_of_the_batch(side: str, rank: int, ranks: int, other: str, other_ranks: int) -> str:
    theirs = "one process" if other_ranks == 1 else f"{other_ranks} ranks"
    return f"{side} is rank {rank} of {ranks} and was given a part of the batch that {other} ({theirs}) was given"


def _other_autocast(count: int, path: str, a: str, b: str) -> str:
    calls = f"{count} calls run" if count > 1 else "1 call runs"
    return f"{calls} under another autocast, first {in_root(path)}: {a or 'none'} in A, {b or 'none'} in B"


def _logged_otherwise(step: int, name: str, a: float, b: float, square: str) -> str:
    other = "B" if square == "A" else "A"
    why = f" ({square}'s is the square of {other}'s: a norm of which the root was not taken)" if square else ""
    return f"step {step}: {name} was logged as {a:.6g} in A and {b:.6g} in B{why}; what was logged is judged by probe curves alone"


# How much was compared


def _nothing_compared(task: str, sides: Sequence[str]) -> str:
    text = "nothing was compared: no pair of tensors with numbers on both sides"
    if not sides:
        return text
    what = _CURVES if task == Task.NORMS else _NO_NUMBERS
    return f"{text}; {' and '.join(sides)} {'holds' if len(sides) == 1 else 'hold'} {what}"


def _different_models(
    models: Sequence[Sequence[str]], modules: Sequence[int], paired: int, total: int, side: str, wanted: float
) -> str:
    texts = [f"{' and '.join(names)}, {count} modules" for names, count in zip(models, modules, strict=True)]
    return (
        f"These look like different models: {'; '.join(texts)}. Only {paired} of {total} module calls of {side} have a counterpart "
        f"(--min-coverage {wanted:.0%}). If they are the same model, say with -lm which modules correspond; probe map suggest drafts the file"
    )


def _mostly_not_comparable(count: int, total: int, role: str, slot: str, path: str, why: Note | None) -> str:
    return f"{count} of {total} pairs of tensors could not be compared, first: {role} {slot} of {in_root(path)}, {why or ''}"


def _later_steps(count: int, step: int) -> str:
    what = (
        "1 later step is not judged: it inherits" if count == 1 else f"{count} later steps are not judged: they inherit"
    )
    return f"{what} what is wrong in step {step}"


def _recorded_alone(a: Sequence[str], b: Sequence[str], have_buffers: bool) -> str:
    advice = (
        "; lines of params in a mapping pair what has another name (docs/reference/mapping.md)" if have_buffers else ""
    )
    return f"recorded, and not compared for want of a counterpart: {sided(a, b)}{advice}"


def _not_comparable(names: Sequence[str], why: Note | None) -> str:
    return (
        f"could not be compared: {grouped(names, _MOST_NAMED)} ({'the first: ' if len(names) > 1 else ''}{why or ''})"
    )


def _dtypes(role: str, count: int, total: int, slot: str, path: str, a: str, b: str) -> str:
    what = "outputs" if role == Role.OUTPUT.label else "parameters"
    return (
        f"{count} of {total} {what} are of another dtype, first {slot} of {in_model(path)}: {a} in A, {b} in B; what the coarser one "
        "rounds is taken for noise"
    )


def _nothing_changed(rate_is_zero: bool) -> str:
    why = "the learning rate is 0" if rate_is_zero else "the learning rate may be 0, or the gradients"
    return (
        f"no parameter is changed in any step, in A or in B ({why}): what the optimizers do was not compared; record a step that "
        "changes them"
    )


def _loss_not_finite(step: int, a: str, b: str) -> str:
    return f"step {step}: the loss is {f'{a} on both sides' if a == b else f'{a} in A and {b} in B'}"


def _padded(names: Sequence[str], side: str, a: int, b: int, by_statistics_alone: bool) -> str:
    listed = ", ".join(names[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else "")
    by = ", by norm, mean and extremes alone: rows that stand in another order are not seen (task='tensor' compares them)"
    return (
        f"{listed}: {side} has {many(abs(a - b), 'row')} more ({a} in A, {b} in B), as padding of a vocabulary makes them: the rows "
        f"that both have are compared{by if by_statistics_alone else ''}"
    )


def _padding_not_compared(count: int, first: str, a: int, b: int) -> str:
    return (
        f"the vocabulary has {a} entries in A and {b} in B: {many(count, 'tensor')} with padding which is not zeros, and without values, "
        f"{'is' if count == 1 else 'are'} not compared, first {first} (task='tensor' records values)"
    )


def _inverted(slots: Sequence[str]) -> str:
    return f"{', '.join(f'argument {slot}' if slot[:1].isdigit() else slot for slot in slots)}: {INVERSES}"


# Pairs


def _found_pairs(
    by_values: int, by_structure: int, total: int, confidence: float, a: str, b: str
) -> str:  # fmt: skip
    found = ((by_values, "values"), (by_structure, "structure"))
    parts = " and ".join(f"{count} by {how}" for count, how in found if count)
    return (
        f"{by_values + by_structure} of {total} pairs of modules matched without a mapping, {parts}; the least sure: {a} with {b}, "
        f"{sure(confidence)}"
    )


def _guessed_parameters(side: str, guesses: Sequence[tuple[str, str, str, bool, int, float]]) -> str:
    texts = [
        f"{slot} of {class_name} with {name}{', turned' if is_turned else ''} (×{count}, {sure(confidence)})"
        for slot, class_name, name, is_turned, count, confidence in guesses
    ]
    return f"parameters of {side} matched without a mapping: {some(texts, '; ')}"


# Noise


def _noise_lacks_steps(option: str, run: str, steps: Sequence[int]) -> str:
    return f"{option}: {run} has no step {', '.join(map(str, steps[:_MOST_STEPS]))}: the built-in model judges there"


def _noise_is_blunt(option: str, runs: Sequence[str], sharper: int, total: int, limit: float) -> str:
    return (
        f"{option}: {', '.join(runs)} made {sharper} of {total} limits of what modules return in 16 bits smaller: errors below about "
        f"{percent(limit)} are still not told from noise; a run whose modules all round otherwise sees more (another attention kernel or "
        "device; of probe.noise_run under autocast, dtype='bfloat16')"
    )


def _noise_is_bound(option: str, count: int, lacks_values: bool) -> str:
    what = f"{many(count, 'pair')} of tensors"
    advice = "; values would tell more (task='tensor')" if lacks_values else ""
    return (
        f"{option}: of {what} sketches tell only a bound of the error (other shapes, or several in the place of one): the built-in model "
        f"judges there{advice}"
    )


def _noise_too_wide(error: float, runs: Sequence[str]) -> str:
    return f"the floor is so wide that everything passes: half of what modules return differs by more than {error:.1e} in {', '.join(runs)}"


def _unused_rule(rule: str, path: str, is_first: bool) -> str:
    return (
        f"{rule}: nothing that was compared fits {in_root(path)}{'' if is_first else ', or a rule before it took it'}"
    )


def _hidden(count: int, place: str, share: float) -> str:
    return (
        f"the absolute tolerance is more than 1 % of the size of {count} tensors and hides as much, most at {place}: {_share(share)}; "
        "--rtol, or --metric rel_l2, hides the same share of all"
    )


def _hidden_rate(rate: float, share: float) -> str:
    return (
        f"the absolute tolerance is {_share(share)} of the learning rate {rate:g}, in which it would hide as much; settings of optimizers "
        "are compared exactly"
    )


def _hint_failed(hint: str, path: str, error: str, message: str) -> str:
    said = f"{error}: {message}".replace("\n", " ")
    return f"the hint “{hint}” failed at {path or 'the whole model'} and is left out: {said}; please report"


WORDS: dict[str, str | Callable[..., str]] = {
    # the recordings
    "behind-other-routing": (
        "{count} of {total} tensors of the forward pass lie behind tokens that rounding may route otherwise: "
        "probe replay decides it"
    ),
    "no-complete-step": "{side} has no complete step ({file}): record at least one, with its probe.step()",
    "note-of-the-recording": "{side}: {text}",
    "same-run": "both files are the same run: it was compared with itself",
    "no-call-recorded": (
        "{side}: no call of a module was recorded: give probe.start() the model object that you call, and record again"
    ),
    "nothing-inside-recorded": _nothing_inside,
    "master-weights-on-one-side": (
        "{side}'s optimizer trains copies of its weights in a wider dtype (master weights), {other}'s does not: small updates are "
        "rounded away there"
    ),
    "recorded-parts-differ": _recorded_parts,
    "seeds-differ": "the seeds are not the same: {a} in A, {b} in B",
    "input-origins-differ": _input_origins,
    "no-common-step": _no_common_step,
    "steps-not-compared": _uncompared_steps,
    "step-aborted": "{side}: step {step} was ended by an exception",
    "step-aborted-on-one-side": "{side}: step {step} was ended by an exception, on the other side it was not",
    "steps-not-told-apart": (
        f"{NEVER_STEPPED} in {{side}}: it has {{forwards}} forwards in one step, the other {{of_other}}; call it at the end of each "
        "step and record again"
    ),
    "gradients-off-on-one-side": (
        "{side} ran without gradients, the other side with them: run both with or both without torch.no_grad (or what it is called in "
        "its framework)"
    ),
    "part-of-the-batch": _part_of_the_batch,
    "part-of-batch-not-compared": (
        "{share}: forward and backward are not compared, gradients of the whole batch are; give both the same part, or compare with a "
        "run of as many ranks"
    ),
    "no-micro-batch-on-one-side": lambda step, a, b: f"step {step}: {_split(a, b)}",
    "micro-batches-joined": lambda step, count: (
        f"step {step}: {count} micro-batches of one side are joined along the batch and compared with one of the other{_BY_STATISTICS}"
    ),
    "evaluations-joined": lambda step, count: (
        f"step {step}: {count} passes without gradients of one side are joined and compared with one of the other; without recorded "
        'values (task="tensor") by min, max, mean and norm alone, and what each pass returns of its last token alone not at all'
    ),
    "micro-batches-differ": lambda step, a, b: (
        f"step {step}: {_split(a, b)}: forward and backward are not compared, sums of gradients are"
    ),
    "micro-batches-of-other-data": lambda input, a, b: (  # noqa: A006
        f"{_split(a, b)}, and their inputs {input} do not add up to the same data"
    ),
    "weights-at-step-unknown": lambda step, path, side: (
        f"step {step} differs, first at {in_root(path)}, but {side} did not record with what weights it began: record the same steps on "
        "both sides, best from 0 on"
    ),
    "order-of-calls-not-recorded": "{change}; whether they run there too was not recorded: record the phase forward",
    "setting-behind-last-step": "{name} is {a} in A and {b} in B",
    "settings-behind-last-step": lambda settings: (
        f"behind the last step, {', '.join(map(str, settings[:_MOST_NAMED]))}: {_NO_STEP_SHOWS}"
    ),
    "states-behind-last-step": lambda side, count, first: (
        f"behind the last step, {side}'s program wrote to {many(count, 'state')} of its optimizer, first {first}: {_NO_STEP_SHOWS}"
    ),
    # flags and numbers beside the tensors
    "weights-learn-on-one-side": lambda a, b: (
        f"weights that need a gradient (requires_grad) on one side only: {sided(a, b)}"
    ),
    "weights-trained-on-one-side": lambda a, b: (
        f"weights that need a gradient on both sides, and one side's optimizer alone was given: {sided(a, b)}"
    ),
    "other-autocast": _other_autocast,
    "logged-on-one-side": lambda step, side, names: (
        f"step {step}: logged in {side} only, and not compared: {', '.join(names)}"
    ),
    "logged-otherwise": _logged_otherwise,
    # how much was compared
    "nothing-compared": _nothing_compared,
    "different-models": _different_models,
    "mostly-not-comparable": _mostly_not_comparable,
    "later-steps-not-judged": _later_steps,
    "gradients-summed-over-passes": (
        "gradients came in another number of backward passes on each side: their sums are compared"
    ),
    "other-number-of-forwards": (
        "A made {a} forward passes without gradients in a step, B {b}: those that both made are compared"
    ),
    "weights-without-counterpart": lambda a, b: (
        f"weights that were not compared, for want of a counterpart: {sided(a, b)}"
    ),
    "recorded-without-counterpart": _recorded_alone,
    "tensors-not-comparable": _not_comparable,
    "vocabulary-padded": _padded,
    "padded-vocabulary-not-compared": _padding_not_compared,
    "masks-inverted": _inverted,
    "dtypes-differ": _dtypes,
    # what says less than it seems
    "nothing-but-inputs-compared": (
        "nothing but what the model is given was compared: see what the mapping leaves out, and what was recorded"
    ),
    "no-compared-parameter-changed": (
        "none of the parameters that were compared is changed in any step, in A or in B; those that are, if any, have no counterpart: "
        "what the optimizers do was not compared; give a layer mapping that pairs them (params)"
    ),
    "no-parameter-changed": _nothing_changed,
    "outputs-are-zero": "everything that the model returns is 0 on both sides: that tells nothing of what it computes",
    "gradients-are-zero": (
        "the gradients of all parameters are 0 on both sides: that tells nothing of the loss, nor of backward"
    ),
    "nan-on-both-sides": lambda step, phase, role, slot, path: (
        f"step {step}: {_tensor(phase, role, slot, path)} has NaN on both sides"
    ),
    "loss-not-finite": _loss_not_finite,
    "not-judged-behind-nan": "{nan}: what is computed from it cannot be judged",
    "not-finite-in-other-places": lambda step, phase, role, slot, path: (
        f"step {step}: {_tensor(phase, role, slot, path)} has NaN or Inf on one side, or on both in other places"
    ),
    "error-sticks-out": (
        "nothing exceeds noise, but the {event} sticks out: it is off by {error:.1e}, {growth:.1f} times as much as what it is made "
        "from; in {others} other layers at most {usual:.1f} times: if the runs part, look there first"
    ),
    "hint-failed": _hint_failed,
    # pairs
    "pairs-found-without-mapping": _found_pairs,
    "parameters-paired-by-guess": _guessed_parameters,
    # noise
    "noise-runs-equal": lambda option, runs: (
        f"{option}: {', '.join(runs)} equals A in all that it has of it, and says nothing of noise"
    ),
    "noise-run-lacks-steps": _noise_lacks_steps,
    "noise-limits-blunt": _noise_is_blunt,
    "noise-known-as-bound": _noise_is_bound,
    "noise-too-wide": _noise_too_wide,
    "gradients-hide-errors": lambda error: (
        f"judged by gradients alone, with the {BUILT_IN}: errors below about {percent(error)} of a weight's gradient are not told from "
        "noise; recordings of forward and backward with the same split of the batch show smaller ones"
    ),
    "rounding-hides-errors": lambda error: (
        f"16-bit values, judged by the {BUILT_IN}: errors below about {percent(error)} of what a module returns are not told from noise; "
        "--noise a2.h5 or --reference fp32.h5 sees smaller ones"
    ),
    "rule-fits-nothing": _unused_rule,
    "ignored-by-rules": "{count} pairs of tensors are not judged, as rules say",
    "zeros-would-pass": lambda count, total, first: f"{_zeros(count, total)}, first {first}",
    "tolerance-hides-tensors": _hidden,
    "tolerance-hides-learning-rate": _hidden_rate,
    "tolerance-too-wide": lambda count, total: (
        f"the tolerance is so wide that everything passes: {_zeros(count, total)}"
    ),
    "tolerance-needs-values": (
        "{count} pairs of tensors have no values, so that it is not known whether they are within the tolerance, first {first}: "
        + _VALUES
    ),
    "suspect-needs-values": (
        "{place} differs by more than rounding, and without values it is not known whether it is within the tolerance; what is beyond it "
        "behind that is not judged: " + _VALUES
    ),
    "sources-of-tolerance-not-judged": (
        "tensors are beyond the tolerance, and what they were computed from could not be judged"
    ),
    "loss-not-judged": "the loss differs by more than rounding, and rules leave it out",
    "outputs-ignored-by-rules": "nothing that modules return was judged: rules leave it out",
}
