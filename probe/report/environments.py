"""Environments for the terminal: what is set, what to set, what has no effect, which dtypes a device lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.text import Text

from probe.notes import named
from probe.notes import plain as plain_json
from probe.report.layout import Page, plain
from probe.report.settings import table
from probe.settings.advising import Advice, Unread
from probe.settings.comparing import Difference
from probe.settings.table.determinism import ANY, ATTRIBUTES, Step

_TITLES = {"torch": "PyTorch", "paddle": "PaddlePaddle", "mindspore": "MindSpore", ANY: "every framework"}
_SWITCHES = (
    "deterministic_algorithms", "deterministic", "float32_matmul_precision", "matmul_tf32", "cudnn_tf32",
    "cudnn_deterministic", "cudnn_benchmark",
    "num_threads", "runtime_num_threads", "enable_graph_kernel", "mode",
)  # fmt: skip
"""what is shown of a recording without -v"""
_NO_SWITCHES = {"framework_version", "devices", "git_commit", "loss_functions", "inputs", "behind_last_step",
                "unread_variables", "not_deterministic",
                "seeded", "steps_made"}  # fmt: skip


def rendered(advices: Sequence[Advice], differences: Sequence[Difference], width: int | None, *, verbose: bool) -> Text:
    """Return what is known of one or two environments, and how they differ."""
    page = _Page(width, verbose)
    for letter, advice in zip(("A", "B") if len(advices) > 1 else ("",), advices, strict=True):
        page.environment(advice, letter)
    if len(advices) > 1:
        page.differences(differences)
    page.steps(advices)
    page.unread(advices)
    page.unfit(advices)
    return page.out


class _Page(Page):
    def __init__(self, width: int | None, verbose: bool) -> None:
        super().__init__(width)
        self.verbose = verbose

    def environment(self, advice: Advice, letter: str) -> None:
        """Say what is there and what is set."""
        found = advice.environment
        self.say(plain(found.title), f"{letter}  " if letter else "Environment of ", style="bold")
        versions = ", ".join(f"{_TITLES.get(name, name)} {version}" for name, version in found.frameworks.items())
        names = [name for name in sorted(found.recorded) if not name.startswith("group.")]
        switches = {name: str(found.recorded[name]) for name in (names if self.verbose else _SWITCHES) if name in names}
        rows = {
            "frameworks": plain(versions) or "none is installed",
            "devices": ", ".join(map(plain, dict.fromkeys(found.devices))) or "no accelerator was found",
            "variables": _pairs(found.variables) or "none that changes numbers",
            "switches": _pairs(switches),
        }
        for name, text in rows.items():
            if text:
                self.say(text, f"  {name:<12}", " " * 14)
        self.out.append("\n")

    def differences(self, differences: Sequence[Difference]) -> None:
        """Show what both sides have otherwise."""
        if not differences:
            self.say("The environments agree.", style="green")
            self.out.append("\n")
            return
        self.say("They differ", style="bold")
        rows = [(*map(plain, (each.title, each.a.shown, each.b.shown)), _effect(each)) for each in differences]
        self.out.append(table(rows, self.columns))
        self.out.append("\n")

    def steps(self, advices: Sequence[Advice]) -> None:
        """Say what to set for the same numbers in every run."""
        missing = list(dict.fromkeys(step for advice in advices for step in advice.missing))
        if not missing:
            self.say("All that the frameworks offer for determinism is set.", style="green")
            return
        self.say("To set for the same numbers in every run", style="bold")
        missing.sort(key=lambda step: (step.framework != ANY, step.framework))
        for framework, steps in groupby(missing, lambda step: step.framework):
            self.out.append(f"  {_TITLES[framework]}\n")
            for step in steps:
                self._step(step)
        if any(step.by_seed_all for step in missing):
            by = "* done by probe.seed_all(), called after the imports and before the model is made"
            self.say(by, "  ", "  ", "dim")
        self.out.append("\n")

    def _step(self, step: Step) -> None:
        what = f"export {step.variable}={step.value}" if step.variable else step.call
        star = " *" if step.by_seed_all else ""
        self.say(f"{what}{star}", "    ", "      ")
        self.say(step.why, "      # ", "        ", "dim")

    def unread(self, advices: Sequence[Advice]) -> None:
        """Name what is set and has no effect."""
        found: list[Unread] = list(dict.fromkeys(each for advice in advices for each in advice.unread))
        for each in found:
            instead = f"; instead: {each.instead}" if each.instead else ""
            text = f"{plain(each.variable)}={plain(each.value)}: {each.why}{instead}"
            self.say(text, "without effect: ", "  ", "yellow")
        if self.verbose:
            for line, why in ATTRIBUTES.items():
                self.say(f"{line} {why}", "without effect in a program: ", "  ", "dim")

    def unfit(self, advices: Sequence[Advice]) -> None:
        """Name dtypes that a device lacks."""
        for each in dict.fromkeys(each for advice in advices for each in advice.unfit):
            used = ", and it was used" if each.is_used else ""
            self.say(
                f"{plain(each.device)} does not compute in {each.dtype}{used}: it needs {each.wanted}",
                "device: ", "  ", "red" if each.is_used else "yellow",
            )  # fmt: skip


def _effect(difference: Difference) -> str:
    return difference.effect.value if difference.effect.counts else "rounding at most"


def _pairs(values: Mapping[str, str]) -> str:
    return " ".join(f"{plain(name)}={plain(value)}" for name, value in values.items())


def _is_switch(name: str) -> bool:
    return not name.startswith(("group.", "packages.", "variables")) and name not in _NO_SWITCHES


def as_json(advices: Sequence[Advice], differences: Sequence[Difference]) -> dict[str, object]:
    """Return the same for programs."""
    return {"environments": [_advice_json(each) for each in advices], "differences": plain_json(list(differences))}


def _advice_json(advice: Advice) -> dict[str, object]:
    found, of_step = advice.environment, ("framework", "variable", "value", "call", "why", "by_seed_all")
    return {
        **named(found, "title", "devices"), "frameworks": dict(found.frameworks), "variables": dict(found.variables),
        "switches": {name: value for name, value in found.recorded.items() if _is_switch(name)},
        "missing": [named(step, *of_step) for step in advice.missing],
        "without_effect": plain_json(advice.unread), "lacking": plain_json(advice.unfit),
    }  # fmt: skip
