"""Layer mappings: which path on one side takes the place of which on the other.

A file has sections named by a module class of the side that it is written from, or ``TopLayer`` for the root;
each holds child paths relative to that class, and the path that takes their place::

    TransformerLayer:
      self_attention: self_attn

Dotted keys cross levels, the longest key wins, what is not named keeps its name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from probe.errors import MappingError

TOP = "TopLayer"
_SIZE_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a mapping: ``source`` below a module of ``section`` is ``target`` on the other side."""

    section: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    line: int = 0

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.section}: {'.'.join(self.source)}: {'.'.join(self.target)}"


@dataclass(frozen=True)
class LayerMapping:
    """A parsed mapping; empty when none was given."""

    rules: tuple[Rule, ...] = ()
    name: str = ""

    def section(self, class_name: str, is_root: bool) -> list[Rule]:
        """Return the rules for a module, those with the longest keys first."""
        names = (class_name, TOP) if is_root else (class_name,)
        found = [rule for rule in self.rules if rule.section in names]
        return sorted(found, key=lambda rule: -len(rule.source))


def load_mapping(source: str | Path | Mapping[str, Any] | None) -> LayerMapping:
    """Read a layer mapping.

    Parameters
    ----------
    source
        a YAML file, the name of a mapping that comes with probe (``megatron-core/qwen2``), a dict of sections,
        or None for the empty mapping

    Raises
    ------
    MappingError
        no such file, or it is not a mapping; with the line
    """
    if source is None:
        return LayerMapping()
    if isinstance(source, Mapping):
        return parse_mapping(_as_yaml(source), "the mapping")
    path = _found(source)
    if path.stat().st_size > _SIZE_LIMIT:
        raise MappingError(f"{path} has {path.stat().st_size} bytes; a layer mapping has at most {_SIZE_LIMIT}")
    return parse_mapping(path.read_text(encoding="utf-8", errors="replace"), str(source))


def library() -> dict[str, Path]:
    """Return the mappings that come with probe, by name."""
    folder = _library_folder()
    files = sorted(folder.rglob("*.yaml")) if folder else []
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def parse_mapping(text: str, name: str) -> LayerMapping:
    """Parse the YAML text of a layer mapping; ``name`` is what errors call it."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError as error:
        raise MappingError(f"{name}: nested too deeply for a layer mapping") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise MappingError(f"{name}{where}: not valid YAML ({getattr(error, 'problem', None) or error})") from error
    if root is None:
        return LayerMapping((), name)
    rules: list[Rule] = []
    for section, node in _entries(root, name, "sections named by a module class"):
        for key, value in _entries(node, name, f"paths below {section}"):
            if not isinstance(value, yaml.ScalarNode) or value.tag.endswith(":null"):
                raise MappingError(
                    f"{name}, line {value.start_mark.line + 1}: {section}: {key}: expected the path on the other side, "
                    f"got {_kind(value)}"
                )
            rules.append(Rule(section, tuple(key.split(".")), tuple(value.value.split(".")), value.start_mark.line + 1))
    return LayerMapping(tuple(rules), name)


def _as_yaml(sections: Mapping[str, Any]) -> str:
    try:
        return yaml.safe_dump(dict(sections), sort_keys=False)
    except yaml.YAMLError as error:
        raise MappingError(f"the mapping: not names and paths ({error.args[0]}: {error.args[-1]!r})") from error


def _entries(node: yaml.Node, name: str, expected: str) -> list[tuple[str, yaml.Node]]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise MappingError(f"{name}, line {line}: expected {expected}, got {_kind(node)}")
    entries: dict[str, yaml.Node] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":null"):
            raise MappingError(f"{name}, line {line}: expected a name, got {_kind(key)}")
        if key.value in entries:
            raise MappingError(f"{name}, line {line}: {key.value} stands here a second time")
        entries[key.value] = value
    return list(entries.items())


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if node.tag.endswith(":null") else repr(node.value)


def _found(source: str | Path) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    known = library()
    if str(source) in known:
        return known[str(source)]
    close = difflib.get_close_matches(str(source), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; those that come with probe: {', '.join(known) or 'none'}"
    raise MappingError(f"there is no layer mapping {source}: neither a file nor the name of one{hint}")


def _library_folder() -> Path | None:
    here = Path(__file__).resolve().parent
    for folder in (here / "layer_mappings", here.parent / "layer_mappings"):
        if folder.is_dir():
            return folder
    return None
