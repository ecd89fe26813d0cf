"""Dumps that somebody made to harm: each is refused by one line, nothing runs, nothing outside of the folder is read."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.dumps.files import files_in
from probe.dumps.importing import import_dump
from probe.errors import FormatError, ProbeError, StoreError
from tests.cli.running import run
from tests.dumps.making import Runs, as_msprobe, as_padiff, hostile_torch, torch_file, trained


def msprobe(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        place = as_msprobe(folder, trained(), "statistics") / "step0" / "proc1" / "dump.json"
        told = json.loads(place.read_text())
        change(told["data"]["Module.up.Linear.forward.0"]["output"][0])
        place.write_text(json.dumps(told))

    return make


def deep(folder: Path) -> None:
    as_msprobe(folder, trained(), "statistics")
    (folder / "step0" / "proc1" / "dump.json").write_text('{"data":' + "[" * 100_000 + "]" * 100_000 + "}")


def chain(folder: Path) -> None:
    as_msprobe(folder, trained(), "statistics")
    names = [f"Module.x{n}.X.forward.0" for n in range(300)]
    construct = dict(zip(names[1:], names, strict=False))
    (folder / "step0" / "proc1" / "construct.json").write_text(json.dumps(construct))


def outside_link(folder: Path) -> None:
    folder.mkdir()
    np.save(folder.parent / "secret.npy", np.ones(3))
    (folder / "a.npy").symlink_to(folder.parent / "secret.npy")


def bomb(folder: Path) -> None:
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 25,)})
        for _ in range(128):
            file.write(bytes(1 << 20))


def claims(folder: Path) -> None:
    folder.mkdir()
    with (folder / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})


def padiff_outside(folder: Path) -> None:
    place = as_padiff(folder, trained()) / "net" / "step_0" / "rank_0" / "report.json"
    told = json.loads(place.read_text())
    told["tree"][0]["fwd_outputs"][0]["path"] = "../.."
    place.write_text(json.dumps(told))


def written(name: str, data: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / name).write_bytes(data)

    return make


def objects(folder: Path) -> None:
    folder.mkdir()
    with (folder / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
        pickle.dump(Runs(), file, 2)


def long_path(folder: Path) -> None:
    place = as_msprobe(folder, trained(), "statistics") / "step0" / "proc1" / "dump.json"
    place.write_text(place.read_text().replace("Module.up.", f"Module.{'up.' * 100_000}"))


def lines_of(*lines: str) -> Callable[[Path], None]:
    return written("api_stack_dump.pkl", "".join(f"{line}\n" for line in lines).encode())


def tree(**root: Any) -> Callable[[Path], None]:
    return written("N_debug_tree_FULL_TENSORS.json", json.dumps({"module_path": "N", **root}).encode())


def stored(value: object) -> dict[str, object]:
    return {"inputs": {"args": [{"shape": "torch.Size([3])", "dtype": "torch.float32", "value": value}]}}


def deep_tree(folder: Path) -> None:
    node: dict[str, Any] = {"module_path": "N.y", **stored("./a.safetensors")}
    for at in range(150):
        node = {"module_path": f"N.x{at}", "children": [node]}
    tree(children=[node])(folder)


_TAGS = "step=0___rank=0___dump_index={}___name={}.pt"


def two_runs(folder: Path) -> None:
    for name in "ab":
        (folder / name).mkdir(parents=True)
        (folder / name / _TAGS.format(1, "x")).write_bytes(torch_file(np.ones(3), is_value=True))


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle-in-pt": (written("a.pt", hostile_torch()), "which a pickle can use to run any program"),
    "pickle-in-npy": (objects, "which a pickle can use to run any program"),
    "path-outside": (msprobe(lambda each: each.update(data_name="../../../../secret.pt")), "lies outside of it"),
    "absolute-path": (msprobe(lambda each: each.update(data_name="/etc/passwd")), "lies outside of it"),
    "padiff-outside": (padiff_outside, "lies outside of it"),
    "link-outside": (outside_link, "lies outside of it"),
    "deep-json": (deep, "nested too deeply"),
    "deep-calls": (chain, "calls lie inside one another"),
    "long-path": (long_path, "modules lie inside one another"),
    "shape-of-text": (msprobe(lambda each: each.update(shape=["x"])), "as no tensor"),
    "shape-without-end": (msprobe(lambda each: each.update(shape=[1 << 40, 1 << 40])), "as no tensor"),
    "norm-below-0": (msprobe(lambda each: each.update(Norm=-1.0)), "as no tensor"),
    "numbers-of-text": (msprobe(lambda each: each.update(Max="7" * 1000)), "as no tensor"),
    "no-data": (written("dump.json", b'{"data": 3}'), "is damaged"),
    "no-json": (written("dump.json", b"\x80"), "no JSON"),
    "zip-bomb": (bomb, "for which the file has no room"),
    "shape-of-terabytes": (claims, "for which the file has no room"),
    "no-array": (written("a.npy", b"\x93NUMPY\x01\x00"), "is damaged"),
    "no-header": (written("a.npy", b"\x93NUMPY\x01\x00\x0a\x00{'descr': \n"), "is damaged"),
    "no-archive": (written("a.npz", b"PK"), "is damaged"),
    "no-safetensors": (written("a.safetensors", b"\xff" * 8), "no safetensors file"),
    "pickle-for-lines": (written("api_stack_dump.pkl", pickle.dumps(Runs())), "is damaged"),
    "deep-line": (lines_of("[" * 100_000 + "]" * 100_000), "nested too deeply"),
    "line-of-no-list": (lines_of("3"), "is damaged"),
    "line-without-numbers": (lines_of('["x_0_forward_output", 0, [], "torch.float32", [3], 7]'), "is damaged"),
    "line-with-shape-of-text": (lines_of('["x_0_forward_output", 0, [], "torch.float32", "x", [1, 1, 1]]'), "as no tensor"),
    "ptdbg-outside": (lines_of('["../../x_0_forward_output", 0, [], "torch.float32", [3], [1, 1, 1]]'), "lies outside of it"),
    "pickle-in-sglang": (written(_TAGS.format(1, "x"), hostile_torch()), "which a pickle can use to run any program"),
    "other-bytes": (written("a.pt", torch_file(np.ones(8)).replace(b"\x80?\0\0", b"\x80@\0\0")), "is not what was written"),
    "two-runs": (two_runs, "dumps of several runs"),
    "deep-tree": (deep_tree, "calls lie inside one another"),
    "tree-outside": (tree(**stored("./../secret.safetensors")), "lies outside of it"),
    "tree-of-text": (tree(**stored(["tensor([1.0000e+00])"])), "dump with use_repr=False"),
    "tree-without-files": (tree(**stored("./a.safetensors")), "a.safetensors"),
    "nothing": (written("notes.txt", b"x"), "no dump that probe reads"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_by_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, text = HOSTILE[name]
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "dump")
    with pytest.raises(ProbeError, match=text.replace("(", r"\(")) as told:
        import_dump(tmp_path / "dump", tmp_path / "a.h5")
    assert "\n" not in str(told.value) and len(str(told.value)) < 700
    assert not (tmp_path / "a.h5").exists() and not (tmp_path / "hacked").exists()


def test_a_folder_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = tmp_path / "dump"
    for at in range(4):
        (dump / f"step{at}").mkdir(parents=True)
        (dump / f"step{at}" / "a.npy").touch()
    assert len(files_in(dump, most=4)) == 4
    with pytest.raises(StoreError, match="has more than 3 files"):
        files_in(dump, most=3)
    monkeypatch.setattr("probe.dumps.files.MOST_FILES", 3)
    for words in (["import", dump, "-o", tmp_path / "a.h5"], ["compare", dump, dump], ["info", dump], ["show", dump]):
        done = run(*words)
        assert done.exit_code == 3 and done.stderr.count("\n") == 1 and "has more than 3 files" in done.stderr


def test_no_more_of_a_folder_is_listed_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million names would take seconds and hundreds of MiB before they are counted."""
    for at in range(50):
        (tmp_path / str(at)).touch()
    listed, scandir = [], os.scandir

    @contextlib.contextmanager
    def counted(path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as entries:
            yield (listed.append(entry) or entry for entry in entries)  # type: ignore[func-returns-value]

    monkeypatch.setattr(os, "scandir", counted)
    with pytest.raises(StoreError, match="has more than 3 files"):
        files_in(tmp_path, most=3)
    assert len(listed) == 4


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """Nobody writes to the pipe: reading it would wait for ever."""
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(FormatError, match="no dump that probe reads"):
        import_dump(tmp_path, tmp_path / "a.h5")


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    deep(tmp_path / "dump")
    dump = tmp_path / "dump"
    for words in (["import", dump, "-o", tmp_path / "a.h5"], ["compare", dump, dump]):
        done = run(*words)
        assert done.exit_code == 3 and done.stderr.count("\n") == 1 and done.stderr.startswith("Error: ")
