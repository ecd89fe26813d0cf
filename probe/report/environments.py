"""Environments for the terminal: what is set, what to set, what has no effect, which dtypes a device lacks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from probe.report.layout import PLAIN_WIDTH, WIDTH, wrapped
from probe.report.names import plain
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


class _Page:
    def __init__(self, width: int | None, verbose: bool) -> None:
        self.out, self.columns, self.verbose = Text(), width, verbose
        self.width = PLAIN_WIDTH if width is None else min(width, WIDTH)

    def say(self, text: str, lead: str = "", indent: str = "  ", style: str = "") -> None:
        self.out.append(f"{wrapped(text, self.width, lead, indent, whole=self.columns is None)}\n", style=style)

    def environment(self, advice: Advice, letter: str) -> None:
        """Say what is there and what is set."""
        found = advice.environment
        versions = (
            ", ".join(f"{_TITLES.get(name, name)} {version}" for name, version in found.frameworks.items())
            or "none is installed"
        )
        self.say(plain(found.title), f"{letter}  " if letter else "Environment of ", style="bold")
        self.say(plain(versions), "  frameworks  ", "              ")
        devices = ", ".join(map(plain, dict.fromkeys(found.devices))) or "no accelerator was found"
        self.say(devices, "  devices     ", "              ")
        values = (
            " ".join(f"{plain(name)}={plain(value)}" for name, value in found.variables.items())
            or "none that changes numbers"
        )
        self.say(values, "  variables   ", "              ")
        names = (
            [name for name in sorted(found.recorded) if not name.startswith("group.")] if self.verbose else _SWITCHES
        )
        switches = " ".join(
            f"{plain(name)}={plain(str(found.recorded[name]))}" for name in names if name in found.recorded
        )
        if switches:
            self.say(switches, "  switches    ", "              ")
        self.out.append("\n")

    def differences(self, differences: Sequence[Difference]) -> None:
        """Show what both sides have otherwise."""
        if not differences:
            self.say("The environments agree.", style="green")
            self.out.append("\n")
            return
        self.say("They differ", style="bold")
        rows = [
            (
                plain(each.title),
                plain(each.a.shown),
                plain(each.b.shown),
                each.effect.value if each.effect.counts else "rounding at most",
            )
            for each in differences
        ]
        self.out.append(table(rows, self.columns))
        self.out.append("\n")

    def steps(self, advices: Sequence[Advice]) -> None:
        """Say what to set for the same numbers in every run."""
        missing = list(dict.fromkeys(step for advice in advices for step in advice.missing))
        if not missing:
            self.say("All that the frameworks offer for determinism is set.", style="green")
            return
        self.say("To set for the same numbers in every run", style="bold")
        for framework, steps in groupby(
            sorted(missing, key=lambda step: (step.framework != ANY, step.framework)), lambda step: step.framework
        ):
            self.out.append(f"  {_TITLES[framework]}\n")
            for step in steps:
                self._step(step)
        if any(step.by_seed_all for step in missing):
            self.say(
                "* done by probe.seed_all(), called after the imports and before the model is made", "  ", "  ", "dim"
            )
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
            self.say(
                f"{plain(each.variable)}={plain(each.value)}: {each.why}{instead}", "without effect: ", "  ", "yellow"
            )
        if self.verbose:
            for line, why in ATTRIBUTES:
                self.say(f"{line} {why}", "without effect in a program: ", "  ", "dim")

    def unfit(self, advices: Sequence[Advice]) -> None:
        """Name dtypes that a device lacks."""
        for each in dict.fromkeys(each for advice in advices for each in advice.unfit):
            used = ", and it was used" if each.is_used else ""
            self.say(
                f"{plain(each.device)} does not compute in {each.dtype}{used}: it needs {each.wanted}",
                "device: ", "  ", "red" if each.is_used else "yellow",
            )  # fmt: skip


def _is_switch(name: str) -> bool:
    return not name.startswith(("group.", "packages.", "variables")) and name not in _NO_SWITCHES


def as_json(advices: Sequence[Advice], differences: Sequence[Difference]) -> dict[str, object]:
    """Return the same for programs."""
    return {
        "environments": [_advice_json(each) for each in advices],
        "differences": [each.as_json() for each in differences],
    }


def _advice_json(advice: Advice) -> dict[str, object]:
    found = advice.environment
    return {
        "title": found.title, "frameworks": dict(found.frameworks), "devices": list(found.devices),
        "variables": dict(found.variables),
        "switches": {name: value for name, value in found.recorded.items() if _is_switch(name)},
        "missing": [{"framework": step.framework, "variable": step.variable, "value": step.value, "call": step.call,
                     "why": step.why,
                     "by_seed_all": step.by_seed_all} for step in advice.missing],
        "without_effect": [{"variable": each.variable, "value": each.value, "why": each.why,
                            "instead": each.instead} for each in advice.unread],
        "lacking": [{"dtype": each.dtype, "device": each.device, "wanted": each.wanted,
                     "is_used": each.is_used} for each in advice.unfit],
    }  # fmt: skip
