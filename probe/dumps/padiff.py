"""Dump folders of PaDiff: ``model/step_0/rank_0`` with a tree of calls in report.json, one of weights in params.json, and ``.npy``."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.dumps.arrays import dtype_named, load
from probe.dumps.files import inside, json_of
from probe.dumps.seen import Call, Dump, Seen, Step, Summary
from probe.errors import FormatError
from probe.records import Role

_PLACE = re.compile(
    r"(?:(?:(?P<model>.*)/)?step_(?P<step>\d{1,9})/)?(?:(?:.*/)?rank_(?P<rank>\d{1,9})/)?(?P<file>report|params|weights|grads)\.json"
)


def is_padiff(source: Path, files: list[str]) -> bool:
    """Return True for a folder with a report or weights of PaDiff."""
    return source.is_dir() and any(_PLACE.fullmatch(name) for name in files)


def read_padiff(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump of each rank. Raises FormatError where there are several models."""
    found: dict[int, dict[int, dict[str, Path]]] = defaultdict(lambda: defaultdict(dict))
    places = [(source / name, place) for name in files if (place := _PLACE.fullmatch(name))]
    models = sorted({place["model"] or "" for _, place in places})
    if len(models) > 1:
        raise FormatError(f"{source} has dumps of several models: {', '.join(models[:4])}; import one")
    for path, place in places:
        found[int(place["rank"] or 0)][int(place["step"] or 0)][place["file"]] = path
    for rank, steps in sorted(found.items()):
        framework = str(json_of(next(iter(next(iter(steps.values())).values()))).get("framework"))
        framework = framework if framework == "torch" else "paddle"
        yield Dump(framework, sorted(steps), functools.partial(_step, steps), rank)


def _step(steps: Mapping[int, Mapping[str, Path]], number: int) -> Step:
    step, counts = Step(number), Counter[tuple[str, int]]()
    for name, path in steps[number].items():
        top = json_of(path)
        model, tree = str(top.get("model_name", "")), top["tree"]
        if name == "report":
            step.calls += [_call(path, root, model, counts, micro) for micro, root in enumerate(tree)]
        else:
            _weights(path, tree, model, step, step.left if name == "weights" else step.weights)
    return step


def _call(path: Path, said: Any, model: str, counts: Counter[Any], micro: int, around: str = "") -> Call:
    """Return a call with those inside it."""
    name, is_operation = str(said.get("name", "")), said.get("type") == "api"
    own = f"{around}/{name}" if is_operation else _inner(str(said.get("route", "")), model)
    number = counts[own, micro]
    counts[own, micro] += 1
    call = Call(f"{own}.{number}", 0, micro, name, "{}") if is_operation else Call(own, number, micro, name)
    call.seen = [
        Seen(role, str(slot), _load(path, each.get("path")), Summary(dtype_named(str(each.get("dtype"))), ()))
        for key, role in (("fwd_outputs", Role.OUTPUT), ("bwd_grads", Role.GRAD_INPUT))
        for slot, each in enumerate(said.get(key) or ())
    ]
    call.inner = [_call(path, each, model, counts, micro, own) for each in said.get("children") or ()]
    return call


def _weights(path: Path, said: Any, model: str, step: Step, into: list[tuple[str, Seen]]) -> None:
    """Read the weights of a module, and of those inside it."""
    owner = _inner(str(said.get("route", "")), model)
    step.classes.setdefault(owner, str(said.get("name", "")))
    for key, role in (("weights", Role.PARAM), ("grads", Role.PARAM_GRAD)):
        named = said.get(key) or {}
        into += [(owner, Seen(role, slot, _load(path, file), learns=True)) for slot, file in named.items() if file]
    for child in said.get("children") or ():
        _weights(path, child, model, step, into)


def _inner(route: str, model: str) -> str:
    """Return the path of a module, which a route has behind the name of the model."""
    return "" if route == model else route.removeprefix(f"{model}.")


def _load(path: Path, file: object) -> Any:
    """Return what loads a file that PaDiff names by the place where it was written: here it lies beside the JSON."""
    stored = inside(path.parent, "/".join(Path(str(file)).parts[-2:]))
    if stored.exists() and not stored.is_file():
        raise FormatError(f"{path} names {stored.name}, which is no file")
    return functools.partial(load, stored)
