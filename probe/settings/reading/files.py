"""Files with a configuration, told apart by their names and by what they look like."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from probe.damage import refuse_pointer
from probe.errors import ConfigError, StoreError
from probe.settings.reading.dialects import source_of
from probe.settings.reading.printed import printed_arguments
from probe.settings.reading.shell import script
from probe.settings.source import Form, Source

_RECORDINGS = (".h5", ".hdf5", ".probe")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_YAML = (".yaml", ".yml")
_SHELL = (".sh", ".bash", ".sbatch", ".slurm")
_CONFIG = "config.json"
_LARGEST = 16 << 20
"""bytes of a file that is read as text"""
_AND = "+"
_EXPECTED = "expected a recording, config.json, YAML, arguments as they were printed or as JSON, or a shell script with --options"


def read(path: str) -> Source:
    """Return what a file says; several files of one side have + between their names, the last one counts.

    Raises StoreError or FormatError where it cannot be read, ConfigError where nothing in it is a setting.
    """
    place = Path(path)
    if not place.exists() and _AND in path:
        return _together(path, [read(each) for each in path.split(_AND)])
    if place.is_dir():
        place = place / _CONFIG
    if place.suffix.lower() in _RECORDINGS or _begins_as_hdf5(place):
        from probe.settings.reading.recordings import recorded

        return recorded(place)
    return _of_text(str(place), _text_of(place))


def _begins_as_hdf5(place: Path) -> bool:
    try:
        with open(place, "rb") as file:
            return file.read(len(_HDF5)) == _HDF5
    except OSError:
        return False


def _text_of(place: Path) -> str:
    refuse_pointer(place)
    try:
        if place.stat().st_size > _LARGEST:
            raise ConfigError(f"{place} has more than {_LARGEST >> 20} MiB: {_EXPECTED}")
        return place.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"cannot read {place}: {error.strerror}") from None


def _of_text(path: str, text: str) -> Source:
    """Read a text by its file's name, and where that says nothing by what it looks like."""
    suffix = Path(path).suffix.lower()
    if suffix == ".json" or text.lstrip()[:1] == "{" and _is_json(text):
        found = _nested(path, text, "JSON", json.loads, "an object")
        return source_of(path, Form.ARGUMENTS_JSON, found)
    if suffix in _YAML:
        return source_of(path, Form.YAML, _nested(path, text, "YAML", _yaml, "sections"))
    if suffix in _SHELL or text.startswith("#!"):
        return _of_script(path, text)
    printed = printed_arguments(text)
    if printed:
        return source_of(path, Form.PRINTED, printed)
    return _of_script(path, text)


def _of_script(path: str, text: str) -> Source:
    found = script(text, Path(path).parent)
    if not found.options:
        raise ConfigError(f"{path} has no settings that can be read: {_EXPECTED}")
    return source_of(path, Form.SHELL, found.options, found.variables, found.unknown, found.is_complete)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _yaml(text: str) -> Any:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _nested(path: str, text: str, form: str, loads: Callable[[str], Any], expected: str) -> dict[str, Any]:
    try:
        found = loads(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is no {form}: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__}; expected {expected} with settings")
    return found


def _together(path: str, sources: list[Source]) -> Source:
    """Return one side's configurations as one: model and training, of one code base."""
    dialects = list(dict.fromkeys(each.dialect for each in sources))
    if len(dialects) > 1:
        raise ConfigError(
            f"{path}: {' and '.join(dialects)} name settings differently; expected files of one code base between the +"
        )
    keys = {key: value for each in sources for key, value in each.keys.items()}
    return Source(
        path,
        sources[0].form,
        dialects[0],
        keys,
        frozenset[Any]().union(*(each.parts for each in sources)),
        {name: value for each in sources for name, value in each.variables.items()},
        {name: value for each in sources for name, value in each.recorded.items()},
        any(each.knows_variables for each in sources),
        unknown=frozenset[str]().union(*(each.unknown for each in sources)) - keys.keys(),
        is_complete=any(each.is_complete for each in sources),
    )
