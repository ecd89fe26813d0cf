"""Rules that say by which tolerance a module's tensors are judged: in a layer mapping, or in a file of their own.

::

    rules:
      - {path: "model.layers.*.mlp", rtol: 1e-3}
      - {path: LayerNorm, phase: forward, atol: 1e-5, metric: max_abs}
      - {path: "*.router", ignore: true}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from probe.errors import MappingError
from probe.mapping.judging import JudgingRule, tolerance
from probe.mapping.nearest import did_you_mean
from probe.mapping.reading import SIZE_LIMIT, Source, kind
from probe.records import Phase, Role

RULES = "rules"
_KEYS = ("path", "phase", "role", "atol", "rtol", "metric", "ignore")
_LIMIT = 20_000


def load_rules(source: str | Path | Sequence[Mapping[str, Any]]) -> tuple[JudgingRule, ...]:
    """Read rules from a YAML file, or from a list of dicts with the same keys.

    Raises MappingError, with the line, where there is no such file, or a rule cannot be used.
    """
    if not isinstance(source, (str, Path)):
        try:
            rules = [yaml.safe_dump(dict(rule), default_flow_style=True, width=math.inf) for rule in source]
            text = "".join(f"- {rule}" for rule in rules) or "[]"  # the first is on line 1, the second on line 2
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise MappingError(f"the rules: expected a list of dicts with {', '.join(_KEYS)} ({error})") from None
        name = "the rules"
    else:
        path, name = Path(source), str(source)
        try:
            if path.stat().st_size > SIZE_LIMIT:
                raise MappingError(f"{path} has {path.stat().st_size} bytes; a file of rules has at most {SIZE_LIMIT}")
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise MappingError(f"cannot read the rules {path}: {error.strerror}") from None
    reader = Source(text, name)
    root = reader.root()
    if isinstance(root, yaml.MappingNode):
        for key, node in reader.entries(root, "rules"):
            if key.value != RULES:
                reader.fail(key, f"{key.value} is not known; expected {RULES}")
            root = node
    if not isinstance(root, yaml.SequenceNode):
        raise MappingError(
            f"{name}: expected a list of rules, each with a path, got {'nothing' if root is None else kind(root)}"
        )
    return parse_rules(reader, root)


def parse_rules(source: Source, node: yaml.SequenceNode) -> tuple[JudgingRule, ...]:
    """Return the rules of a YAML list."""
    if len(node.value) > _LIMIT:
        source.fail(node, f"more than {_LIMIT} rules")
    return tuple(_rule(source, each) for each in node.value)


def _rule(source: Source, node: yaml.Node) -> JudgingRule:
    entries = {key.value: (key, value) for key, value in source.entries(node, "a rule: path, and atol, rtol or ignore")}
    for name, (key, _) in entries.items():
        if name not in _KEYS:
            source.fail(key, f"{name} is not known; expected {', '.join(_KEYS)}{did_you_mean(name, _KEYS)}")
    texts = {name: source.text_of(value, f"a value for {name}") for name, (_, value) in entries.items()}
    if "path" not in texts:
        source.fail(node, "a rule without a path; expected a glob of paths, or a class")
    where = f"rule on line {source.line(node)} of {source.name}"
    phase, role = (_member(source, entries, name, kinds) for name, kinds in (("phase", Phase), ("role", Role)))
    if texts.pop("ignore", "false").casefold() in ("true", "yes", "on"):
        extra = [name for name in ("atol", "rtol", "metric") if name in texts]
        if extra:
            source.fail(node, f"ignore and {extra[0]}: expected one of them")
        return JudgingRule(None, texts["path"], phase, role, name=where)
    try:
        numbers = [float(texts[name]) if name in texts else None for name in ("atol", "rtol")]
        chosen = tolerance(*numbers, texts.get("metric"))
    except ValueError as error:
        source.fail(node, f"{texts['path']}: {error}")
    return JudgingRule(chosen, texts["path"], phase, role, name=where)


def _member(source: Source, entries: Mapping[str, tuple[yaml.Node, yaml.Node]], name: str, kinds: Any) -> Any:
    if name not in entries:
        return None
    node = entries[name][1]
    by_label = {each.label: each for each in kinds}
    if node.value not in by_label:
        source.fail(
            node,
            f"{name} {node.value} is not known; expected {', '.join(by_label)}{did_you_mean(node.value, by_label)}",
        )
    return by_label[node.value]
