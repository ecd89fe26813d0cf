"""`python -m benchmarks.settings.reference_page`: docs/reference/settings.md, made from the table of settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from probe.settings.setting import Category, Dialect, Setting
from probe.settings.table import TABLE
from probe.settings.table.checklist import CHECKLIST, FROM_RECORDINGS
from probe.settings.table.determinism import ATTRIBUTES, LACKING, STEPS, TRAPS
from probe.settings.table.models import MINDFORMERS_TYPES, MODELS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
HEAD = """# The table of settings

Made from `probe/settings/table` by `python -m benchmarks.settings.reference_page`. The [guide](../guide/settings.md) shows how to use it.

A name that ends in `|not` is the opposite of the setting; `bf16|means:bfloat16` sets it to bfloat16 if it is on; `betas|first` is the first element of a
list. Names with dots lie in a section. The first name that a configuration has counts. PaddleNLP and vLLM have the names of transformers too. An environment
variable is in capitals; `recorded` names are facts of a recording's environment, `group.` those of its optimizers.

| effect | a difference |
|---|---|
| numbers | is another computation |
| precision | is the same computation in another precision |
| random | draws other random numbers, or sums in an order that changes from run to run |
| rounding | sums in another order, in the same precision |
| none | takes more or less memory or time |
| unknown | may be any of these |

The first three count: `probe check config` and `probe check env` end with status 1 if one of them differs.

A key that is missing has the default of its code base: Megatron's, of a script or printed arguments; of transformers and PaddleNLP, that of TrainingArguments, and of
the model's class. The models whose defaults and fixed properties (normalisation, biases, gate, …) are known: {models}; MindFormers' {types}. An unknown model has no
defaults.
"""
_TITLES = {
    Dialect.TRANSFORMERS: "transformers",
    Dialect.MEGATRON: "Megatron, MindSpeed",
    Dialect.MINDFORMERS: "MindFormers",
}


def page() -> str:
    """Return the page."""
    head = HEAD.replace("{models}", ", ".join(f"`{name}`" for name in sorted(MODELS))).replace(
        "{types}", ", ".join(f"`{name}`" for name in sorted(MINDFORMERS_TYPES))
    )
    parts = [head]
    for category in Category:
        parts.append(
            f"\n## {category.value[:1].upper()}{category.value[1:]}\n\n{_table(row for row in TABLE if row.category is category)}"
        )
    parts += [_checklist(), _steps(), _traps(), _devices()]
    return "".join(parts)


def _table(rows: Iterable[Setting]) -> str:
    head = (
        "| setting | what | "
        + " | ".join(_TITLES.values())
        + " | other names | effect | missing means | recommended |\n"
        + "|---" * 9
        + "|\n"
    )
    return head + "".join(map(_row, rows))


def _row(row: Setting) -> str:
    others = [
        f"{title}: {_names(text)}"
        for title, text in (
            ("PaddleNLP", row.paddlenlp),
            ("vLLM", row.vllm),
            ("params.json", row.meta),
            ("recorded", row.recorded),
        )
        if text
    ]
    others += [_names(row.variables)] if row.variables else []
    only = "; ".join(f"only with {when.setting} {' or '.join(map(str, when.values))}" for when in row.only_with)
    names = [_names(str(getattr(row, dialect.value))) for dialect in _TITLES]
    defaults = ", ".join(f"{owner}: {value}" for owner, value in row.defaults.items())
    recommended = "" if row.recommended is None else str(row.recommended)
    what = f"{row.what}{f' ({only})' if only else ''}"
    cells = [f"`{row.name}`", what, *names, "; ".join(others), row.effect.value, defaults, recommended]
    return f"| {' | '.join(cells)} |\n"


def _names(text: str) -> str:
    return " ".join(f"`{name}`" for name in text.split()).replace("|", "\\|")


def _checklist() -> str:
    lines = [
        "\n## The checklist of MindFormers\n\nEach of its rows, and the settings that it is; what no configuration tells, and what does.\n\n| checklist | key parameter | settings |\n|---|---|---|\n"
    ]
    for category, keys in CHECKLIST.items():
        for key in keys:
            rows = [f"`{row.name}`" for row in TABLE if key.replace(" ", "_") in row.checklist.split()]
            told = [FROM_RECORDINGS[key]] if key in FROM_RECORDINGS else []
            lines.append(f"| {category.value} | {key} | {'; '.join([*([', '.join(rows)] if rows else []), *told])} |\n")
    return "".join(lines)


def _steps() -> str:
    lines = [
        "\n## Determinism\n\n`probe check env` names what of this is missing. ¹: `probe.seed_all()` does it.\n\n| framework | device | set | why |\n|---|---|---|---|\n"
    ]
    for step in STEPS:
        what = f"export {step.variable}={step.value}" if step.variable else step.call
        lines.append(
            f"| {step.framework or 'all'} | {step.device or 'any'} | `{what}`{' ¹' if step.by_seed_all else ''} | {step.why} |\n"
        )
    return "".join(lines)


def _traps() -> str:
    lines = ["\n## What has no effect\n\n| set | why | instead |\n|---|---|---|\n"]
    lines += [f"| `{trap.variable}` | {trap.why} | {f'`{trap.instead}`' if trap.instead else ''} |\n" for trap in TRAPS]
    lines += [f"| `{line}` | {why} | |\n" for line, why in ATTRIBUTES]
    return "".join(lines)


def _devices() -> str:
    lines = ["\n## Dtypes and devices\n\n| dtype | NVIDIA, from compute capability | not on |\n|---|---|---|\n"]
    lines += [
        f"| {each.dtype} | {each.capability} ({each.example}) | {', '.join(each.devices)} |\n".replace("*", "\\*")
        for each in LACKING
    ]
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
