"""The facts of findings (`Divergence.facts`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from probe.comparison.notes import Note
from probe.report.words.hints import joined, listed, written
from probe.report.words.notes import sure


def _call_returns_its_input(path: str, side: str) -> str:
    return f"{path or 'the model'} returns its input unchanged on {side}"


def _not_finite(counts: tuple[tuple[int, str], ...], size: int, side: str, of_finite: bool) -> str:
    what = "all that it is made from is finite" if of_finite else "its sources agree on both sides"
    elements = ", ".join(f"{count} {title}" for count, title in counts)
    return f"not finite from here on: {elements} of {size} elements in {side}, {what}"


def _caller_does_not_call(
    caller: str, there: str, other: str, side: str, path: str, where: object, is_child: bool
) -> str:
    child = "its child " if is_child else ""
    it = "it" if path == there else path
    return f"{caller or 'the model'} does not call {child}{there} on {other}: {side} calls {it} {where}"


def _next_tensor(path: str, is_input: bool, role: str, slot: str) -> str:
    return f"what comes next, A's {path}, {'gets' if is_input else 'returns'} another {role} {slot}"


def _matched(by: str, confidence: float) -> str:
    return f"matched by {by.removeprefix('same ')}, {sure(confidence)}"


def _handed_by(makers: tuple[tuple[str, str | None], ...]) -> str:
    return ", ".join(
        f"what {side} hands it no module returned" if path is None else f"{side} hands it what {path} returned"
        for side, path in makers
    )


def _made_between(start: str, end: str, paths: Sequence[str], side: str) -> str:
    places = f"{start or 'its input'} and {end or 'what it returns'}"
    return f"it is made between {places}; not compared there: {listed(paths)} (in {side} only)"


def _inputs_in_another_form(slots: Sequence[str], maker: str) -> str:
    return f"not compared: its inputs {listed(slots)}, which are in another form on the other side; {maker} makes them"


def _not_compared(where: str) -> Callable[..., str]:
    def words(paths: Sequence[str]) -> str:
        return f"not compared {where}: {listed(paths)}"

    return words


def _factor_behind(factor: float, divisor: int, path: str) -> str:
    short = f" (1/{divisor})" if divisor else ""
    return f"it is {factor:.6g}{short} times A's, in one direction: a factor behind {path}"


def _not_known_to_agree(slots: Sequence[str]) -> str:
    inputs = [f"argument {slot}" if slot[:1].isdigit() else slot for slot in slots]
    return f"inputs that are not known to agree: {', '.join(inputs)} (on one side only, or of another kind)"


def _held_in_parts(slots: Sequence[str]) -> str:
    return f"not compared: its {', '.join(slots)}, of which a rank of one side holds a part"


def _weights_on_one_side(side: str, slots: Sequence[str]) -> str:
    return f"only {side} has {', '.join(slots)}, not compared"


def _output_alone_differs(error: float, weights: Note | None) -> str:
    return f"inputs agree (rel {error:.1e}), {f'{weights}, ' if weights else ''}output differs"


def _first_to_run_differs(slot: str, path: str, error: float) -> str:
    how = "differs" if math.isnan(error) else f"differs (rel {error:.1e})"
    return f"the input {slot} of A's {path}, the first of them to run, {how}; what was there before it agrees"


def _gradients_scaled(factor: float) -> str:
    return f"B's gradients are {written(factor)} times A's"


def _scaled_by_micro_batch(factors: Sequence[tuple[int, float]], count: int) -> str:
    more = f", and so on in {count}" if count > len(factors) else ""
    each = ", ".join(f"{written(factor)} in micro-batch {micro}" for micro, factor in factors)
    return f"B's gradients are another multiple of A's in each micro-batch: {each}{more}"


def _all_by_one_factor(factor: float) -> str:
    return f"all by the same factor: B is {written(factor)} times A"


def _get_no_gradient(count: int, slot: str, path: str) -> str:
    first = f"{slot} of {path}"
    return f"{first} gets none there" if count == 1 else f"{count} parameters before it get none there, first {first}"


def _gradient_of_parameter(has_arrived: bool) -> str:
    leading = (
        "the gradients at its module's output agree"
        if has_arrived
        else "what leads to it was not compared: its module is not called, its caller uses the weight"
    )
    return f"the gradient of this parameter differs, {leading}"


def _before_step(step: int) -> str:
    return f"before step {step}; step {step - 1} was not recorded"


def _parts_without(names: Sequence[str], what: str, side: str) -> str:
    return f"{joined(names)} {'has' if len(names) == 1 else 'have'} no {what} in {side}"


def _parts_given_otherwise(names: Sequence[str], first: str, side: str) -> str:
    return f"{joined(names)} {'is' if len(names) == 1 else 'are'} not given what {first} is given in {side}"


def _which_part(names: Sequence[str]) -> str:
    return f"which of {joined(names)} it is, their values would tell: record with task='tensor'"


def _parts_differ(wrong: Sequence[tuple[str, float]], right: Sequence[str]) -> str:
    texts = [f"{label} (rel {error:.1e})" for label, error in wrong]
    agree = f"; {joined(right)} agree{'s' if len(right) == 1 else ''}" if right else ""
    return f"of its parts {joined(texts)} differ{'s' if len(wrong) == 1 else ''}{agree}"


def _order_of_parts(names: Sequence[str], side: str, path: str) -> str:
    return f"in which order {joined(names)} lie in {side}'s {path} was not compared: record with task='tensor'"


def _settings(differing: Sequence[tuple[Sequence[Note], Sequence[str]]]) -> str:
    each = sorted((group, tuple(map(str, settings))) for settings, groups in differing for group in groups)
    by_settings: dict[tuple[str, ...], list[str]] = {}
    for group, settings in each:
        by_settings.setdefault(settings, []).append(group)
    return "; ".join(
        f"{', '.join(settings)} (group{'s' if len(groups) > 1 else ''} {', '.join(groups)})"
        for settings, groups in by_settings.items()
    )


def _other_setting(name: str, a: object, b: object) -> str:
    return f"{name} {_value(a)} against {_value(b)}"


def _value(value: object) -> str:
    """Write a setting as it was recorded: several numbers are a list."""
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, tuple) else str(value)


def _setting_of_parts(setting: Note, parts: Sequence[str]) -> str:
    return f"{setting} for {', '.join(parts)}"


def _updates_of_group(names: Sequence[str], total: int, group: str) -> str:
    what = f"{len(names)} of the {total} parameters of A's group {group} that are set so"
    return f"the updates of {what} differ: {listed(names)}"


def _scaled_and_used(left: float, meaning: Note, used: float, is_clipped: bool) -> str:
    late = ": the factor was not taken out before they were clipped" if is_clipped else ""
    return (
        f"B's gradients are {written(left)} times A's as backward left them ({meaning}), {written(used)} times as the optimizer "
        f"used them{late}"
    )


def _losses_differ(a: float, b: float) -> str:
    times = f" (B is {b / a:.6g} times A)" if a and math.isfinite(b / a) else ""
    return f"the loss differs: {a:.9g} against {b:.9g}{times}"


def _sources_of_loss(of_model: bool, error: float) -> str:
    what = (
        "what it is computed from"
        if of_model
        else "the model itself was not called on both sides; what its modules returned last"
    )
    return f"{what} agrees (rel {error:.1e})"


def _updates_not_recorded(sides: Sequence[str]) -> str:
    where = " and ".join(sides)
    return f"updates were not recorded in {where}: the optimizers may have updated the weights otherwise in the steps before"


def _weights_not_compared(named: Sequence[tuple[str, str]]) -> str:
    which = "; ".join(f"{names} in {side}" for names, side in named)
    return f"weights there were not compared, and may have been updated otherwise in the steps before: {which}"


def _behind(times: float) -> str:
    far = "far more than" if math.isinf(times) else f"{times:.0f} times what"
    return f"what it is made from differs already, and its error is {far} that explains"


def _between_steps(step: int) -> str:
    return f"between the ends of steps {step - 1} and {step}"


def _further_runs(runs: int, error: float) -> str:
    which = "the further run of A differs" if runs == 1 else f"{runs} further runs of A differ"
    return f"{which} there by {error:.1e}"


def _from_reference(b: float, a: float) -> str:
    times = f"{b / a:.3g} times as far" if a else "away"
    return f"B is {times} from the reference as A is: {b:.1e} against {a:.1e}"


def _of_a_kind(what: Note, count: int, of: int, kind: Note, names: Sequence[str]) -> str:
    return f"the {what} of {count} of the {of} {kind} differ: {listed(names)}"


def _used_gradient(zeros: str) -> str:
    given = f": {zeros}'s optimizer is given zeros" if zeros else ""
    return f"the gradient that backward left agrees, the one that the optimizer used differs{given}"


def _hidden_decay(a: float, b: float, dtypes: Sequence[str]) -> str:
    return (
        f"its weight decay takes away {a:.3g} of it in A and {b:.3g} in B, and rounding to {', '.join(dtypes)} hides that: the "
        "settings tell, the numbers cannot"
    )


def _update_differs(is_seen: bool) -> str:
    which = (
        "the gradient that was used agrees"
        if is_seen
        else "the gradient that backward left agrees, the one that was used was not seen"
    )
    return f"the update differs, {which}"


def _another_length(share: float, count: int, is_longer: bool, by: float) -> str:
    longer = "longer" if is_longer else "shorter"
    return f"the updates of {share:.0%} of {count} parameters are {longer} in B, typically by {by:.2g} of A's"


WORDS: dict[str, str | Callable[..., str]] = {
    # causes
    "dropout-active-on-both-sides": (
        "this Dropout is active on both sides: it takes away {a:.0%} of its elements in A, {b:.0%} of its elements in B"
    ),
    "dropout-active-on-one-side": "this Dropout is active in {side} only: it takes away {share:.0%} of its elements in {side}",
    "dropout-called-on-one-side": "{path} is called on {side} only, and is active: it takes away {share:.0%} of its elements",
    "call-returns-its-input": _call_returns_its_input,
    "not-finite-from-here": _not_finite,
    "returns-another-dtype": "it returns {a} in A and {b} in B, of inputs and parameters of the same dtypes",
    # where in a caller's code
    "after": "after `{call}`",
    "between": "after `{call}`, before `{following}`",
    "lies": "it lies {place}",
    "given-what-another-returned": "A gives `{to}` what `{a}` returned, B what `{b}` did (equal hashes)",
    # guesses
    "seen-at-a-guessed-pair": lambda a, b, by, confidence: f"seen at {a} and {b}, {_matched(by, confidence)}",
    "guessed-pair": _matched,
    "guessed-parameter": lambda slot, name, confidence: (
        f"{slot} matched with {name} on the other side, {sure(confidence)}"
    ),
    # calls on one side
    "caller-does-not-call": _caller_does_not_call,
    "called-on-one-side": "{path} is called on {side} only, {where}: {other} has {there} and does not call it",
    "next-tensor-differs": _next_tensor,
    "input-is-no-part-of-batch": "the input {slot} of {path} differs, and is no part of the batch",
    "handed-by": _handed_by,
    "differs-first": "the {role} {slot} of {path} differs, what was there before it agrees",
    "made-between": _made_between,
    "inputs-in-another-form": _inputs_in_another_form,
    "does-more-than-its-module": "{path} does something of its own with what {inner}, the only module in it, is given or returns",
    "called-with-weights-elsewhere": "{side} calls {path}; only its weights are compared, with {there} of {other}",
    "computed-by-code-of-other-side": "{side} calls {path}; {other} does not (inlined or missing)",
    "called-with-weights-of-another": (
        "{side} calls {path} with the weights of another module; {other} may use those without a call"
    ),
    "called-without-counterpart": "{side} calls {path}, which has no counterpart in {other}",
    "model-is-given-on-one-side": "the model is given {name} on {side} only",
    "model-is-given-other-inputs": "the model is given different inputs",
    "side-is-rank": "{side} is rank {rank} of {ranks}",
    "tensor-differs-first": "the {role} {slot} of {path} differs first",
    "input-differs-already": "the input {slot} of {path} differs already, and nothing before it was compared",
    "not-compared-on-the-way": _not_compared("on the way"),
    "not-compared-inside": _not_compared("inside"),
    "logged-input-differs": "{slot}, which the program logged beside the model, differs",
    "handed-what-the-model-was-given": "{path} is handed what the model was given, and that differs",
    "loss-alone-differs": "the loss differs, what it is computed from agrees",
    "own-code-before-loss-not-compared": (
        "what the model's own code makes of the output of {path} before that was not compared: a factor or a cap, say"
    ),
    "parameter-on-one-side": "the parameter {slot} exists on {side} only and is not zero",
    "output-of-module-differs": "the module's output differs",
    "factor-behind": _factor_behind,
    # an output
    "parameters-of-other-names": "not compared: its parameters {a} in A and {b} in B, whose names differ",
    "not-known-to-agree": _not_known_to_agree,
    "held-in-parts": _held_in_parts,
    "other-mode": "it runs in {a} mode in A and in {b} mode in B",
    "other-classes": "the classes differ: {a} against {b}",
    "weights-on-one-side": _weights_on_one_side,
    "inputs-not-compared": "its inputs were not compared, its output differs",
    "output-alone-differs": _output_alone_differs,
    "parameters-equal": "parameters equal",
    "parameters-agree": "parameters agree",
    "parameters-agree-in-statistics": "parameters agree in their statistics",
    # orders
    "first-to-run-differs": _first_to_run_differs,
    "calls-are-swapped": "{one} and {other} are swapped: in B each runs where the other runs in A",
    "called-where-another-is": "B calls {b} where A calls {a}: the order differs",
    "called-inside": "B calls {path} inside {holder}, A before {before}: the two are not given the same",
    # a backward pass
    "outputs-differ-by-less": "the model's outputs differ by less than that",
    "outputs-agree": "the model's outputs agree",
    "last-outputs-agree": "the model itself was not called on both sides; what its modules returned last agrees",
    "gradient-of-output-agrees": "the gradient of its output agrees",
    "gradient-of-output-not-compared": "the gradient of its output was not compared",
    "passed-back-differs": "what it passes back to its input {slot} differs",
    "gradient-of-outputs-differs": "the gradient that comes back to them differs",
    "loss-and-other-outputs-agree": "the loss agrees, and so does what comes back to the model's other outputs",
    "gradient-differs": "the gradient of {path}'s {role} {slot} differs",
    "passed-back-before-agrees": "what every module passes back before it agrees",
    "passes-nothing-back": "{path} gets a gradient on both sides and passes nothing back in {side}",
    "gets-no-gradient": "{path} gets no gradient in {side}, though what it returned needs one",
    "needs-gradient-on-one-side": "the {role} {slot} of {path} needs a gradient on {side} only",
    "gradients-scaled": _gradients_scaled,
    "gradients-scaled-by-micro-batch": _scaled_by_micro_batch,
    "all-by-one-factor": _all_by_one_factor,
    "gradients-differ": "{count} of {judged} gradients differ",
    "backward-not-compared": "the backward pass was not compared, so which of them comes first is not known",
    "no-forward-recorded": "no forward was recorded in {side}, so neither forward nor backward was compared",
    "not-compared-under-another-split": (
        "A ran {a} micro-batches and B {b}: under another split neither forward nor backward is compared, and the fault may lie anywhere"
    ),
    "gradients-of-same-size": (
        "they are as large as A's (norm B/A {ratio:.4g} at the median): no factor of accumulation or loss scale"
    ),
    "noise-hides-in-others": "in {count} of the others noise can hide as much",
    "get-no-gradient-there": _get_no_gradient,
    "gradient-on-one-side": "{slot} gets a gradient on {side} only",
    "gradient-of-parameter-differs": _gradient_of_parameter,
    "written-before-use": "this weight is written to before a call uses it, otherwise than by an optimizer's update, and differs then",
    "of-another-size": "the {role} {slot} of {path}: {why}",
    "buffer-differs-after-step": "the buffer {slot} differs after the step, before it and at the inputs both agree",
    "step-skipped-on-one-side": (
        "the gradients of {infinite} of {judged} weights are not finite on either side: {skipping} leaves its weights as they were, "
        "{updating} updates {updated} of them all the same"
    ),
    "weights-not-finite": "{count} weights are not finite in {side} from here on, first {slot} of {path}",
    # weights
    "before-first-step": "before the first step",
    "before-step": _before_step,
    "weights-differ": "the weights differ {when}",
    "parameters-differ": "{count} of {judged} parameters differ {when}",
    "running-statistics-differ": "the running statistics differ {when}",
    # parts that lie in one tensor
    "parts-without": _parts_without,
    "parts-given-otherwise": _parts_given_otherwise,
    "which-part-values-would-tell": _which_part,
    "parts-differ": _parts_differ,
    "order-of-parts-not-compared": _order_of_parts,
    "order-of-parts-not-compared-elsewhere": "nor was the order of parts in {places} more places",
    "order-of-rows-not-compared": (
        "in which order the rows of each head lie in {side}'s {path} was not compared: record with task='tensor'"
    ),
    "places-of-elements-not-compared": (
        "whether the elements of its {slot} are where they belong was not compared ({a} in A, {b} in B): record with task='tensor'"
    ),
    "parameters-recorded-on-one-side": "not compared: its parameters, which {side} alone recorded (phase init)",
    # settings
    "settings": _settings,
    "other-optimizers": "{a} against {b}",
    "other-setting": _other_setting,
    "setting-of-parts": _setting_of_parts,
    "updates-of-group-differ": _updates_of_group,
    "used-so": "the optimizer used them so",
    "use-not-recorded": "whether the optimizer used them so was not recorded",
    "scaled-and-used-otherwise": _scaled_and_used,
    "optimizers-follow-other-rules": "the optimizers do not follow the same rule, whatever gradients they use",
    "set-otherwise": "set otherwise: {names} (of {total})",
    # losses
    "losses-differ": _losses_differ,
    "sources-of-loss-agree": _sources_of_loss,
    "padded-outputs-compared-in-part": (
        "of outputs with a padded vocabulary norm, mean and extremes are compared: whether their weight's rows stand in another order "
        "is not seen (task='tensor' compares them)"
    ),
    "loss-of-few-digits": "{side}'s has no more digits than a 16-bit number",
    "shift-of-input": "of {name}, {shift}",
    # what may be behind a finding
    "updates-not-recorded": _updates_not_recorded,
    "weights-not-compared": _weights_not_compared,
    "behind-what-differs": _behind,
    "few-calls-have-a-counterpart": "only {paired} of {total} module calls of {side} have a counterpart: is it the same model?",
    # between steps
    "both-change-weights-otherwise": (
        "both sides change weights {when} otherwise than by the optimizer's update, and not alike: {count} of {known}, by up to "
        "{largest:.1e} of the change ({slot} of {path})"
    ),
    "changes-as-long": "B's changes are {times:.3g} times as long as A's",
    "weights-stay": (
        "{side}'s weights stay as they were {when}, whatever the optimizer does: {count} of {known}, by up to {largest:.1e} of "
        "themselves ({slot} of {path})"
    ),
    "weights-change-otherwise": (
        "{side}'s weights change {when} otherwise than by the optimizer's update: {count} of {known}, by up to {largest:.1e} of "
        "themselves ({slot} of {path})"
    ),
    "changed-there-too": "{count} of them are changed so on the other side, too, by less than a quarter of that",
    "not-changed-there": "the other side's do not",
    "in-step": "in step {step}",
    "between-steps": _between_steps,
    # what an error was held against
    "norm-is-off": "its norm is off by {error:.1e}, which rounding makes no larger than {limit:.1e}",
    "further-runs-differ": _further_runs,
    "as-far-from-reference": _from_reference,
    "tolerance": "the tolerance is {wanted} ({rule})",
    # updates
    "parameters-differ-in": "the {what} of {count} of {judged} parameters differ",
    "kind-of-parameters-differs-in": _of_a_kind,
    "updates": "updates",
    "gradients-used": "gradients as the optimizer used them",
    "counts-of-steps": "counts of steps",
    "optimizer-states": "optimizer states",
    "weight-decays": "weight decays",
    "biases": "biases",
    "parameters-of-group": "parameters of {side}'s group {group}",
    "parameters-of-one-dimension": "parameters of one dimension",
    "first-of-them": "the first of them: {said}",
    "by-the-numbers": "by the numbers: {said}",
    "used-gradient-differs": _used_gradient,
    "updated-on-one-side": "only {side} updates this parameter",
    "written-on-one-side": "only {side} writes to this weight",
    "update-not-finite": "the update is not finite everywhere",
    "not-changed-at-all": "{side} does not change this parameter at all",
    "update-is-longer": "B's update is {ratio:.4g} times as long as A's",
    "update-is-about-longer": "B's update is about {ratio:.2g} times as long as A's",
    "update-of-same-bits-differs": "gradient, states and parameter are bit-equal, the update differs by more than rounding",
    "other-count-of-steps": "the optimizer's count of steps is {a} in A and {b} in B",
    "weight-differs-by-updates": (
        "the weight differs by {times:.2g} times A's update, and began alike; the updates were not compared"
    ),
    "decay-hidden-by-rounding": _hidden_decay,
    "difference-parallel-to-parameter": "the difference of the updates is parallel to the parameter ({along:+.2e} of it)",
    "state-differs": "the optimizer's {name} differs (B is {ratio:.4g} times A), gradient and update agree",
    "update-differs": _update_differs,
    "updates-differ-as-one-vector": (
        "the updates of {count} parameters, as one vector, differ by {error:.1e}, of which chance makes {limit:.1e}"
    ),
    "updates-of-another-length": _another_length,
    "not-changed-there-at-all": "{side} does not change it",
    "changed-by-as-long": "what it is changed by is {times:.3g} times as long in B as in A",
    "mapping-says-pair": "the mapping says that A's {a} is B's {b}: {line}",
}
