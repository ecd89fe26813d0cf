"""Where mappings come from: files, dicts, and those that come with probe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.errors import MappingError
from probe.mapping.nearest import did_you_mean
from probe.mapping.rules import LayerMapping


def load_mapping(source: str | Path | Mapping[str, Any] | None) -> LayerMapping:
    """Read a layer mapping; None is the empty one.

    It is a YAML file, the name of a mapping that comes with probe (``megatron-core/qwen2``), or a dict of sections.
    Raises MappingError, with the line, where there is no such file, or it is not a mapping.
    """
    if source is None:
        return LayerMapping()
    # with YAML, which a comparison without a mapping does not need
    from probe.mapping.parsing import as_yaml, parse_mapping
    from probe.mapping.reading import SIZE_LIMIT

    if isinstance(source, Mapping):
        return parse_mapping(as_yaml(source), "the mapping")
    if not isinstance(source, (str, os.PathLike)):
        raise MappingError(
            f"mapping={type(source).__name__} cannot be used; expected a YAML file, the name of a mapping that comes with probe, or a dict"
        )
    path, is_library = _found(source)
    size = path.stat().st_size
    if size > SIZE_LIMIT:
        raise MappingError(f"{path} has {size} bytes; a layer mapping has at most {SIZE_LIMIT}")
    try:
        found = parse_mapping(path.read_text(encoding="utf-8", errors="replace"), str(source))
        return _for_any_model(found) if is_library else found
    except OSError as error:
        raise MappingError(f"cannot read {path}: {error.strerror}") from None


def library() -> dict[str, Path]:
    """Return the mappings that come with probe, by name."""
    folder = library_folder()
    files = sorted(folder.rglob("*.yaml")) if folder else []
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def library_folder() -> Path | None:
    """Return the folder with the mappings that come with probe, None where they were not installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "layer_mappings", package.parent / "layer_mappings"):
        if folder.is_dir():
            return folder
    return None


def _for_any_model(mapping: LayerMapping) -> LayerMapping:
    """Return a mapping of which models need not have all that it has sections for."""
    return replace(mapping, sections=tuple(replace(section, is_optional=True) for section in mapping.sections))


def _found(source: str | Path) -> tuple[Path, bool]:
    """Return a mapping's file, and whether it is one that comes with probe."""
    path = Path(source)
    try:
        if path.is_file():
            return path, False
    except (OSError, ValueError):  # a name that no file can have
        pass
    known = library()
    if str(source) in known:
        return known[str(source)], True
    hint = did_you_mean(str(source), known) or f"; those that come with probe: {', '.join(known) or 'none'}"
    raise MappingError(f"there is no layer mapping {source}: neither a file nor the name of one{hint}")
