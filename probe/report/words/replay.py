"""What a replay says."""

from __future__ import annotations

from collections.abc import Callable

from probe.report.words.hints import listed

_FORWARD = {"input", "output"}


def _own_error(role: str, slot: str, inside: str, is_missing: bool) -> str:
    if is_missing:
        what = f"what {inside} returns" if inside else "its arguments"
        return f"given A's tensors and gradients, no gradient comes back to {what} (A's {role} {slot})"
    if role == "input":
        return f"given A's tensors, its own code hands {inside} another {role} {slot}"
    if role == "output":
        return f"given A's inputs and weights, {role} {slot} differs"
    if inside:
        return f"given A's tensors and gradients, its own code passes another gradient back to {inside} ({role} {slot})"
    return f"given A's inputs and gradients, {role} {slot} differs"


def _weight(role: str, slot: str, phase: str, is_missing: bool) -> str:
    if phase == "init":
        return f"{role} {slot} itself differs from A's"
    if phase == "update":
        return f"given A's inputs, {role} {slot} is left otherwise"
    if is_missing:
        return f"given A's inputs and gradients, {slot} gets no gradient"
    return f"given A's inputs and gradients, the gradient of {slot} differs"


def _reference(a: float, b: float) -> str:
    nearer = "A is further from it" if a > b else "B is further from it"
    return f"B's code in float64: A is off by {a:.1e}, B by {b:.1e}; {nearer}"


def _call(path: str, micro: int, call: int) -> str:
    more = f" (call {call})" if call else ""
    return f"{path or 'the model'}{more}"


def _left(text: str) -> Callable[..., str]:
    def words(path: str, micro: int, call: int, error: str, slots: tuple[str, ...]) -> str:
        return f"{_call(path, micro, call)} {text.format(error=error, slots=listed(slots))}"

    return words


def _decides(file: str) -> str:
    name = file.replace("\\", "/").rpartition("/")[2]
    return f'To decide it: probe replay {name} --model MODULE:FUNCTION (makes B; A recorded with task="tensor")'


WORDS: dict[str, str | Callable[..., str]] = {
    "replay-own-error": _own_error,
    "replay-weight": _weight,
    "replay-decides": _decides,
    "replay-reference": _reference,
    "replay-no-reference": "{framework} makes no copy of the model in float64: which side is further from it is not known",
    "replay-own-weights": lambda names: f"B's own weights without a counterpart in A stayed in place: {listed(names)}",
    "replay-nothing": "no module of B could be run with what A recorded",
    "replay-not-called": _left("was not replayed: B's code around it does not call its counterpart"),
    "replay-no-values": _left('was not replayed: A recorded no values of {slots} (task="tensor")'),
    "replay-no-arguments": _left(
        "could not be called alone: A recorded no {slots}, which its counterpart wants (inputs=)"
    ),
    "replay-raised": _left("could not be replayed alone: {error}"),
    "replay-no-gradient": _left("was replayed forwards only: A recorded no gradient of what it returned"),
    "replay-backward-raised": _left("was replayed forwards only: {error}"),
    "replay-more-returned": _left(
        "was replayed forwards only: gradients come back through what B's alone returns (its {slots})"
    ),
    "replay-no-counterpart": _left(
        "was replayed as part of the code around it: B's is given the terms of what A's is given, and returns their sum too"
    ),
}
