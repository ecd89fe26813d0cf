"""`python -m benchmarks.settings.reference_page`: docs/reference/settings.md, made from the table of settings; `--check` writes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from probe.settings.setting import Category, Dialect, Effect, Setting
from probe.settings.table import CHECKLIST, FROM_RECORDINGS, MINDFORMERS_TYPES, MODELS, TABLE
from probe.settings.table.determinism import ATTRIBUTES, LACKING, STEPS, TRAPS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
HEAD = """# The table of settings

Made from `probe/settings/table` by `python -m benchmarks.settings.reference_page`. The [guide](../guide/settings.md) shows how to use it.

| in a name | meaning |
|---|---|
| `name\\|not` | the opposite of the setting |
| `bf16\\|means:bfloat16` | sets it to bfloat16 if it is on |
| `betas\\|first` | the first element of a list |
| `section.name` | lies in a section |
| `CAPITALS` | an environment variable |
| recorded: `name`, `group.name` | a fact of the recorded environment, of its optimizers |

The first name that a configuration has counts. PaddleNLP and vLLM also have the names of transformers. Empty columns are left out. {signs}.

| effect | a difference |
|---|---|
| numbers (where none is named) | is another computation |
| precision | is the same computation in another precision |
| random | draws other random numbers, or sums in an order that changes from run to run |
| rounding | sums in another order, in the same precision |
| none | takes more or less memory or time |
| unknown | may be any of these |

`probe check config` and `probe check env` end with status 1 if a setting with one of the first three effects differs.

A default is what a missing key means in that code base; *use* says what to set. transformers and PaddleNLP have the defaults of TrainingArguments and of the model's class.
Known classes, with their defaults and fixed properties: {models}; of MindFormers {types}. Other models have no defaults.
"""
_TITLES = {
    Dialect.TRANSFORMERS: "transformers",
    Dialect.MEGATRON: "Megatron, MindSpeed",
    Dialect.MINDFORMERS: "MindFormers",
}
_SIGNS = {
    "if on_accelerator": "†",
    "if is_moe": "‡",
    "if optimizer is adam, adamw, nadam, radam, adamax, lamb, lion": "§",
}
"""conditions that many settings have"""
_FEW = 1 / 3
"""share of a section's settings that a code base names, below which it has no column of its own"""


def page() -> str:
    """Return the page."""
    head = HEAD.replace("{models}", ", ".join(f"`{name}`" for name in sorted(MODELS))).replace(
        "{types}", ", ".join(f"`{name}`" for name in sorted(MINDFORMERS_TYPES))
    )
    parts = [head.replace("{signs}", "; ".join(f"{sign}: only {only}" for only, sign in _SIGNS.items()))]
    for category in Category:
        parts.append(
            f"\n## {category.value[:1].upper()}{category.value[1:]}\n\n{_table(row for row in TABLE if row.category is category)}"
        )
    parts += [_checklist(), _steps(), _traps(), _devices()]
    return "".join(parts)


def _table(rows: Iterable[Setting]) -> str:
    rows = list(rows)
    own = [each for each in _TITLES if sum(bool(getattr(row, each.value)) for row in rows) > _FEW * len(rows)]
    titles = ["setting", "what", *(_TITLES[each] for each in own), "other names", "effect, default"]
    cells = [titles, *(_cells(row, own) for row in rows)]
    columns = [index for index in range(len(titles)) if any(row[index] for row in cells[1:])]
    lines = [_line(row[index] for index in columns) for row in cells]
    return "".join([lines[0], "|---" * len(columns), "|\n", *lines[1:]])


def _line(cells: Iterable[str]) -> str:
    """Return a row of a table, without the empty cells at its end."""
    return f"| {' | '.join(cells)}".rstrip("| ") + " |\n"


def _cells(row: Setting, own: list[Dialect]) -> list[str]:
    others = {title: getattr(row, each.value) for each, title in _TITLES.items() if each not in own}
    others |= {"PaddleNLP": row.paddlenlp, "vLLM": row.vllm, "params.json": row.meta, "recorded": row.recorded}
    named = [f"{title}: {_names(text)}" for title, text in others.items() if text]
    named += [_names(row.variables)] if row.variables else []
    values = {
        str(value): "/".join(o for o, v in row.defaults.items() if str(v) == str(value))
        for value in row.defaults.values()
    }
    defaults = [f"{owners} {value}" for value, owners in values.items()]
    defaults += [] if row.recommended is None else [f"use {row.recommended}"]
    effect = [] if row.effect is Effect.NUMBERS else [row.effect.value]
    names = [_names(str(getattr(row, each.value))) for each in own]
    return [f"`{row.name}`", _what(row), *names, "; ".join(named), ", ".join([*effect, *defaults])]


def _what(row: Setting) -> str:
    only = [_only(when.setting, when.values) for when in row.only_with]
    signs = "".join(_SIGNS[each] for each in only if each in _SIGNS)
    return "; ".join([row.what, *(each for each in only if each not in _SIGNS)]) + f" {signs}".rstrip()


def _only(setting: str, values: tuple[object, ...]) -> str:
    flags: dict[tuple[object, ...], str] = {(True,): f"if {setting}", (False,): f"unless {setting}"}
    return flags.get(values, f"if {setting} is {', '.join(map(str, values))}")


def _names(text: str) -> str:
    return " ".join(f"`{name}`" for name in text.split()).replace("|", "\\|")


def _checklist() -> str:
    lines = [
        "\n## The checklist of MindFormers\n\nEach key with its settings, or with what tells it if no configuration does.\n\n"
    ]
    for category, keys in CHECKLIST.items():
        said = []
        for key in keys:
            rows = ", ".join(f"`{row.name}`" for row in TABLE if key.replace(" ", "_") in row.checklist.split())
            said.append(f"{key} ({'; '.join(filter(None, (rows, FROM_RECORDINGS.get(key, ''))))})")
        lines.append(f"- **{category.value}**: {'; '.join(said)}\n")
    return "".join(lines)


def _steps() -> str:
    lines = [
        "\n## Determinism\n\n`probe check env` names what is missing. `probe.seed_all()` does those marked ¹.\n\n| framework | device | set | why |\n|---|---|---|---|\n"
    ]
    for step in STEPS:
        what = f"export {step.variable}={step.value}" if step.variable else step.call
        lines.append(
            f"| {step.framework or 'all'} | {step.device or 'any'} | `{what}`{' ¹' if step.by_seed_all else ''} | {step.why} |\n"
        )
    return "".join(lines)


def _traps() -> str:
    lines = ["\n## What has no effect\n\n| set | why | instead |\n|---|---|---|\n"]
    lines += [_line([f"`{trap.variable}`", trap.why, f"`{trap.instead}`" if trap.instead else ""]) for trap in TRAPS]
    lines += [_line([f"`{line}`", why]) for line, why in ATTRIBUTES.items()]
    return "".join(lines)


def _devices() -> str:
    lines = ["\n## Dtypes and devices\n\n| dtype | NVIDIA, from compute capability | not on |\n|---|---|---|\n"]
    lines += [
        _line([each.dtype, f"{each.capability} ({each.example})", ", ".join(each.devices)]).replace("*", "\\*")
        for each in LACKING
    ]
    return "".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        raise SystemExit(page() != PAGE.read_text(encoding="utf-8") and "python -m benchmarks.settings.reference_page")
    PAGE.write_text(page(), encoding="utf-8")
