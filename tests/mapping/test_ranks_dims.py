"""The language of dims, where parts lie in the whole, groups that are given, and the files of ranks."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from probe.errors import ConfigError, MappingError, StoreError
from probe.mapping import load_mapping
from probe.numbers.sketch import sketch
from probe.numbers.statistics import measure
from probe.ranks.dims.arranging import Arrangement, arranged, sketch_of
from probe.ranks.dims.defaults import of_tensor
from probe.ranks.dims.language import parsed, where
from probe.ranks.layout.files import files_of
from probe.ranks.layout.groups import groups_given
from probe.records import Role

WHOLE = np.arange(4 * 6 * 8, dtype=np.float32).reshape(4, 6, 8)


def cut(text: str, sizes: dict[str, int]) -> tuple[Arrangement, list[np.ndarray]]:
    """Return how parts of `WHOLE` lie in it, and the parts that the language's own indices give."""
    dims = parsed(text)
    shape = list(WHOLE.shape)
    for split in dims.splits:
        shape[split.axis % 3] //= sizes[split.group]
    places = [
        dict(zip(sizes, each, strict=True)) for each in itertools.product(*(range(size) for size in sizes.values()))
    ]
    made = arranged(dims, [(place, tuple(shape)) for place in places], sizes, {"heads": 2})
    assert isinstance(made, Arrangement), made
    parts = []
    for part in made.parts:
        at = [np.arange(*each.indices(1 << 30)) if isinstance(each, slice) else each for each in part.at]
        parts.append(WHOLE[np.ix_(*at)])
    return made, parts


@pytest.mark.parametrize(
    ("text", "sizes", "first"),
    [
        ("b s h[tp]", {"tp": 2}, WHOLE[:, :, :4]),
        ("... h[mp]", {"tp": 4}, WHOLE[:, :, :2]),
        ("s[cp:zigzag] b h", {"cp": 2}, WHOLE[[0, 3]]),
        ("s[tp:striped] b h", {"tp": 2}, WHOLE[::2]),
        ("b s 2·ffn[tp]", {"tp": 2}, WHOLE[:, :, [0, 1, 4, 5]]),
        ("b s heads·d[tp]", {"tp": 2}, WHOLE[:, :, [0, 1, 4, 5]]),
        ("b s 2+1+1[tp]", {"tp": 2}, WHOLE[:, :, [0, 1, 4, 6]]),
        ("b[dp] s h[tp]", {"dp": 2, "tp": 2}, WHOLE[:2, :, :4]),
        ("out[tp][fsdp] ...", {"tp": 2, "fsdp": 2}, WHOLE[:1]),
    ],
)
def test_parts_are_put_together_as_dims_say(text: str, sizes: dict[str, int], first: np.ndarray) -> None:
    made, parts = cut(text, sizes)
    np.testing.assert_array_equal(parts[0], first)
    np.testing.assert_array_equal(made.values(lambda holder: parts[holder]), WHOLE)
    assert sum(part.size for part in parts) == WHOLE.size


def test_partial_sums_are_added_in_float64() -> None:
    made = arranged(parsed("partial[tp]"), [({"tp": k}, (3,)) for k in range(2)], {"tp": 2}, {})
    assert isinstance(made, Arrangement)
    parts = [np.array([1e8, 1, 1], np.float32), np.array([1, 2, 3], np.float32)]
    whole = made.values(lambda holder: parts[holder])
    assert whole.dtype == np.float64 and whole.tolist() == [1e8 + 1, 3, 4]
    total = sketch_of(made, [(3,), (3,)], [sketch(part) for part in parts])
    assert total is not None
    np.testing.assert_allclose(total, sketch(parts[0]) + sketch(parts[1]))


@pytest.mark.parametrize(
    ("text", "shapes", "said"),
    [
        ("b h[tp]", [(2, 3), (2, 3), (2, 3)], "3 of 2 parts are there"),
        ("b h[tp]", [(2, 3)], "1 of 2 parts are there"),
        ("b h[tp]", [(2, 3), (3, 3)], "do not make one"),
        ("b 2·h[tp]", [(2, 3), (2, 3)], "cannot be divided by 2"),
        ("b groups·h[tp]", [(2, 4), (2, 4)], "nothing says how large 'groups' is"),
        ("h[tp:zigzag] b", [(3, 2), (3, 2)], "two chunks"),
    ],
)
def test_what_cannot_be_right_is_told(text: str, shapes: list[tuple[int, ...]], said: str) -> None:
    made = arranged(parsed(text), [({"tp": k}, shape) for k, shape in enumerate(shapes)], {"tp": 2}, {})
    assert isinstance(made, str) and said in made


@pytest.mark.parametrize("text", ["", "b ... h", "b h[", "b h[tp:sideways]", "b 2·h[tp]·d[tp]", "b h[tp] $"])
def test_texts_that_are_no_dims_are_refused(text: str) -> None:
    with pytest.raises(MappingError, match="dims "):
        parsed(text)


def test_indices_of_one_rank_are_all() -> None:
    assert where(parsed("h[tp]").splits[0], [5], 0, {}) == (5, slice(0, 5))


def test_the_mapping_file_says_dims() -> None:
    mapping = load_mapping({"dims": {"layers.*.fc1": "b s h[tp]", "**.qkv param weight": "3·out[tp] in"}})
    assert mapping.dims == (("layers.*.fc1", "b s h[tp]"), ("**.qkv param weight", "3·out[tp] in"))
    with pytest.raises(MappingError, match="a text such as"):
        load_mapping({"dims": {"fc1": ["b", "s"]}})


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    from probe.ranks.dims.arranging import statistics
    from probe.store.schema import RECORDS

    _, parts = cut("b s h[tp]", {"tp": 2})
    rows = np.zeros((1, 2), RECORDS)
    for k, part in enumerate(parts):
        found = measure(part)
        for name in ("min", "max", "mean", "norm", "rms", "nan", "posinf", "neginf", "zeros"):
            rows[name][0, k] = getattr(found, name)
    joined, whole = statistics(rows, np.array([[part.size for part in parts]])), measure(WHOLE)
    for name in ("min", "max", "mean", "norm", "rms", "zeros"):
        assert joined[name][0] == pytest.approx(getattr(whole, name), rel=1e-12)


# Groups


@pytest.mark.parametrize(
    ("given", "rank", "groups"),
    [
        ({"tp": 2, "dp": 2}, 3, {"tp": [2, 3], "dp": [1, 3]}),
        ({"mp": 2, "pipeline": 2}, 1, {"tp": [0, 1], "pp": [1, 3]}),
        ({"ep": [[0, 3], [1, 2]]}, 2, {"ep": [1, 2]}),
    ],
)
def test_groups_are_given_by_sizes_or_by_ranks(given: dict, rank: int, groups: dict) -> None:
    assert groups_given(given, rank, 4) == groups


@pytest.mark.parametrize(
    "given", [{"tp": 3}, {"tp": [[0, 1]]}, {"tp": [[0, 1], [1, 2, 3]]}, {"tp": "2"}, {1: 2}, ["tp"]]
)
def test_groups_that_do_not_cover_all_ranks_are_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="parallel"):
        groups_given(given, 0, 4)  # type: ignore[arg-type]


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.rank00001.h5", "a.rank00000.h5", "ab.rank00000.h5", "single.h5"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("given", ["a.h5", "a", "a.rank*.h5", "a.rank0000?.h5"])
def test_a_prefix_or_a_glob_stands_for_the_files_of_one_run(folder: Path, given: str) -> None:
    assert [path.name for path in files_of(folder / given)] == ["a.rank00000.h5", "a.rank00001.h5"]


def test_a_file_stands_for_itself_and_a_folder_for_its_only_run(folder: Path) -> None:
    assert files_of(folder / "single.h5") == (folder / "single.h5",)
    assert files_of(folder / "a.rank00001.h5") == (folder / "a.rank00001.h5",)
    assert files_of(folder / "none.h5") == (folder / "none.h5",)
    (folder / "ab.rank00000.h5").unlink()
    assert len(files_of(folder)) == 2


@pytest.mark.parametrize(("given", "said"), [("*", "several runs"), ("", "several runs"), ("x*.h5", "no file matches")])
def test_files_of_several_runs_are_named(folder: Path, given: str, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        files_of(folder / given)


@pytest.mark.parametrize(
    ("class_name", "role", "slot", "dims"),
    [
        ("ColumnParallelLinear", Role.OUTPUT, "0", "... 2·h[tp]"),
        ("ColumnParallelLinear", Role.OUTPUT, "1", "... 2·h[tp]"),  # a bias that has not been added, of gate and up
        ("ColumnParallelLinear", Role.GRAD_OUTPUT, "1", "... 2·h[tp]"),
        ("RowParallelLinear", Role.OUTPUT, "1", None),  # all have it, and each has a part of its gradient
        ("DotProductAttention", Role.INPUT, "2", "... heads[tp] d"),
        ("DotProductAttention", Role.INPUT, "3", None),  # a mask
        ("FusedScaleMaskSoftmax", Role.OUTPUT, "0", "b heads[tp] ..."),
    ],
)
def test_what_classes_say_of_their_tensors(class_name: str, role: Role, slot: str, dims: str | None) -> None:
    assert of_tensor(class_name, {}, role, slot, parts=2, in_sequence=False) == (parsed(dims) if dims else None)
