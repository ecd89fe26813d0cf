"""The commands that check, draft and add to mappings; weights that a mapping ignores; what has not the shape of its partner."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import probe
from probe.commands.cli import main
from probe.errors import MappingError
from probe.mapping import library
from probe.mapping.adding import Line, with_lines
from probe.mapping.parsing import parse_mapping
from probe.matching import Direction, WeightBundle
from probe.matching.checks.coverage import _lettered, _letters
from tests.published.mapped import matched, names, with_parameters
from tests.published.trees import tree
from tests.toy import nn
from tests.toy.tensor import Tensor

# ---- ``probe map list`` and ``probe map check``, and ``--strict``.


class Scale(nn.Module):
    def __init__(self, size: int = 3) -> None:
        super().__init__(weight=nn.Parameter(np.ones(size, np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Idle(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Block(nn.Module):
    def __init__(self, **children: nn.Module) -> None:
        super().__init__(**children)
        self.order = list(children.values())

    def forward(self, x: Tensor) -> Tensor:
        for child in self.order:
            x = child(x)
        return x


class Net(nn.Module):
    def __init__(self, name: str, blocks: list[Block], **others: nn.Module) -> None:
        super().__init__(**{name: nn.ModuleList(*blocks)}, **others)
        self.order = [*blocks, *others.values()]

    forward = Block.forward


def record(path: Path, model: nn.Module) -> Path:
    x = Tensor(np.array([[1.0, -2.0, 0.5]], np.float32))
    with probe.capture(model, path, task="structure"):
        probe.step(loss=model(x).sum())
    return path


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("recordings")
    mine = Net("layers", [Block(norm=Scale(), linear_fc=Scale(), act=Scale()) for _ in range(3)], head=Scale())
    theirs = Net(
        "h", [Block(norm=Scale(), gate=Scale(), up=Scale(), linear_fc1=Scale()) for _ in range(3)], top=Scale()
    )
    return record(folder / "a.h5", mine), record(folder / "b.h5", theirs)


def run(*arguments: str | Path) -> Result:
    options = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    result = CliRunner(**options).invoke(main, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def written(folder: Path, text: str) -> Path:
    file = folder / "map.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_check_counts_and_names_what_is_left(tmp_path: Path, recordings: tuple[Path, Path]) -> None:
    file = written(tmp_path, "Net:\n  layers: h\n  head: top\nignore: ['**.norm']\n")
    done = run("map", "check", file, *recordings)
    assert done.stdout.splitlines() == [
        f"A: {recordings[0]}",
        f"B: {recordings[1]}",
        "The mapping is read as written from A.",
        "",
        "                             A       B",
        "  modules                   15      18",
        "  mapped                     5       5",
        "  same path                  1       1",
        "  further parts of one       0       0",
        "  ignored                    3       3",
        "  need no partner            0       0",
        "  left                       6       9",
        "",
        "Only in A",
        "  layers.{i}.linear_fc (Scale) ×3   perhaps h.{i}.linear_fc1",
        "  layers.{i}.act (Scale) ×3   perhaps h.{i}.gate or h.{i}.up or h.{i}.linear_fc1",
        "",
        "Only in B",
        "  h.{i}.gate (Scale) ×3   perhaps layers.{i}.linear_fc or layers.{i}.act",
        "  h.{i}.up (Scale) ×3   perhaps layers.{i}.linear_fc or layers.{i}.act",
        "  h.{i}.linear_fc1 (Scale) ×3   perhaps layers.{i}.linear_fc",
    ]
    assert done.exit_code == 1


def test_check_lists_what_both_sides_have_once_and_suggests_nothing_for_itself(
    tmp_path: Path, recordings: tuple[Path, Path]
) -> None:
    file = written(tmp_path, "Block:\n  act: nothing\n")
    done = run("map", "check", file, recordings[0], recordings[0], "--map-direction", "a-to-b")
    lines = done.stdout.splitlines()
    at = lines.index("Left on both sides, at the same path")
    assert lines[at:] == ["Left on both sides, at the same path", "  layers.{i}.act (Scale) ×3"]
    assert "Only in A" not in lines and "Only in B" not in lines and "perhaps" not in done.stdout


def test_numbers_have_letters_of_their_own_where_they_differ() -> None:
    letters = _letters(["h.0.mlp.1.up.0", "h.1.mlp.1.up.2"])
    assert letters == ["{i}", "", "{j}"]
    assert _lettered("g.0.mlp.3.up.0.w", letters) == "g.{i}.mlp.3.up.{j}.w"


FUSED = "Net:\n  layers.{i}: h.{i}\nBlock:\n  fused: [gate, up]\nignore: ['/layers', /h]\n"


def fused(folder: Path, size: int) -> tuple[Path, Path]:
    folder.mkdir()
    mine = Net("layers", [Block(norm=Scale(), fused=Idle(size)) for _ in range(2)])
    theirs = Net("h", [Block(norm=Scale(), gate=Idle(4), up=Idle(2)) for _ in range(2)])
    return record(folder / "a.h5", mine), record(folder / "b.h5", theirs)


def test_what_is_compared_by_its_weights_alone_is_not_left(tmp_path: Path) -> None:
    texts = (
        "Net(\n  (norm): IdentityOp()\n  (up): TELinear(\n    (weight): Parameter containing: [torch.float32 of size 4x3]\n"
        "    (norm_weight): Parameter containing: [torch.float32 of size 3]\n  )\n)\n",
        "Net(\n  (norm): Norm(\n    (weight): Parameter containing: [torch.float32 of size 3]\n  )\n  (up): Linear(\n"
        "    (weight): Parameter containing: [torch.float32 of size 4x3]\n  )\n)\n",
    )
    files = [tmp_path / f"{name}.h5" for name in "ab"]
    for file, text in zip(files, texts, strict=True):
        file.with_suffix(".txt").write_text(text)
        assert run("map", "tree", file.with_suffix(".txt"), "-o", file).exit_code == 0
    mapping = written(tmp_path, "Net:\n  params: {up.norm_weight: norm.weight}\nignore: ['**/IdentityOp']\n")
    done = run("map", "check", mapping, *files)
    assert done.exit_code == 0, done.stdout
    assert "  by weights alone           0       1" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-2:] == [
        "In B, compared by weights alone: what they return has no counterpart", "  norm (Norm)",
    ]  # fmt: skip


def with_own(folder: Path) -> tuple[Path, Path]:
    """Record two nets of which the second has two weights more in modules that both have, and one in one of its own."""
    nets = [Net(name, [Block(norm=Scale()) for _ in range(2)], top=Scale()) for name in ("layers", "h")]
    for block in (each for each in nets[1].order if isinstance(each, Block)):
        block.table = nn.Parameter(np.ones(2, np.float32))
    nets[1].more = Idle()
    return record(folder / "a.h5", nets[0]), record(folder / "b.h5", nets[1])


def test_weights_without_a_partner_are_listed(tmp_path: Path) -> None:
    a, b = with_own(tmp_path)
    done = run("map", "check", written(tmp_path, "Net:\n  layers: h\nignore: ['/more']\n"), a, b)
    assert done.exit_code == 1 and "  weights left               0       2" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-2:] == [
        "In B, weights without a partner, of modules that are not left", "  h.{i}.table ×2",
    ]  # fmt: skip
    done = run("map", "check", written(tmp_path, "Net:\n  layers: h\n  top: top\n"), a, b)
    assert done.stdout.splitlines()[-5:-2] == ["Only in B", "  more (Idle)", ""], "its weight is not said again"
    paired = written(tmp_path, "Net:\n  layers: h\nignore: ['/more', '**/Block']\n")
    assert run("map", "check", paired, a, b).exit_code == 0


def test_a_draft_names_weights_without_a_partner(tmp_path: Path) -> None:
    done = run("map", "suggest", *with_own(tmp_path))
    assert done.stdout.splitlines()[-2:] == [
        "# Weights of B that are not compared; a line of params would say with which:", "#   h.{i}.table ×2",
    ]  # fmt: skip
    assert "more.weight" not in done.stdout and "#   more" in done.stdout


def test_a_draft_is_not_written_over_a_file(tmp_path: Path) -> None:
    a, b = with_own(tmp_path)
    file = written(tmp_path, "Net:\n  layers: h  # by hand\n")
    done = run("map", "suggest", a, b, "-o", file)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.endswith(
        f"{file} exists already, and may have been corrected by hand: give another name or delete it\n"
    )
    assert "by hand" in Path(file).read_text()


def test_a_draft_says_of_which_files_it_is(tmp_path: Path) -> None:
    files = []
    for folder, recording in zip(("hf", "own"), with_own(tmp_path), strict=True):
        (tmp_path / folder).mkdir()
        files.append(recording.rename(tmp_path / folder / "run.h5"))
    first = run("map", "suggest", *files).stdout.splitlines()[0]
    assert sorted(word.strip(",.") for word in first.split() if "run.h5" in word) == ["hf/run.h5", "own/run.h5"]


def test_nothing_is_left(tmp_path: Path) -> None:
    file, (a, b) = written(tmp_path, FUSED), fused(tmp_path / "recordings", 6)
    for first, second, side in ((a, b, "A"), (b, a, "B")):
        done = run("map", "check", file, first, second)
        assert done.exit_code == 0
        assert f"The mapping is read as written from {side}." in done.stdout
        further = [2, 0] if side == "B" else [0, 2]
        assert done.stdout.splitlines()[-4:] == [
            "  further parts of one {:>7} {:>7}".format(*further), "  ignored                    1       1",
            "  need no partner            0       0", "  left                       0       0",
        ]  # fmt: skip


def test_sizes_that_do_not_add_up_are_an_error(tmp_path: Path) -> None:
    file, recordings = written(tmp_path, FUSED), fused(tmp_path / "recordings", 5)
    done = run("map", "check", file, *recordings)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == (
        f"Error: {file}, line 4: Block: fused: the sizes do not add up: layers.0.fused.weight has 5 along out, its parts "
        "have 6: h.0.gate.weight [4] + h.0.up.weight [2]\n"
    )


@pytest.mark.parametrize("command", [("map", "check"), ("compare",)])
def test_strict_makes_errors_of_warnings(
    tmp_path: Path, recordings: tuple[Path, Path], command: tuple[str, ...]
) -> None:
    file = written(tmp_path, "Net:\n  layers: h\n  haed: top\nBlok:\n  norm: n\n")
    warnings = [
        "the mapping's line 3: Net: haed: top names nothing that is there; did you mean head?",
        "the mapping's line 4: Blok: no module is of this class; did you mean Block?",
    ]
    inputs = [file, *recordings] if command[0] == "map" else [*recordings, "-lm", file]
    done = run(*command, *inputs)
    said = " ".join(done.stdout.split())  # a list under the verdict, and not once more as notes, has each once
    assert [said.count(text.removeprefix("the mapping's ")) for text in warnings] == [1, 1]
    done = run(*command, *inputs, "--strict")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.splitlines() == [
        f"Error: {file}: --strict makes an error of what is a warning otherwise:", *(f"  {text}" for text in warnings),
    ]  # fmt: skip


def test_check_of_files_that_are_not_there(tmp_path: Path, recordings: tuple[Path, Path]) -> None:
    done = run("map", "check", tmp_path / "no.yaml", *recordings)
    assert done.exit_code == 3 and "there is no layer mapping" in done.stderr
    done = run("map", "check", written(tmp_path, ""), recordings[0], tmp_path / "no.h5")
    assert done.exit_code == 3 and "no.h5" in done.stderr


def test_list_names_every_mapping_with_its_first_line() -> None:
    done = run("map", "list")
    assert done.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["megatron-core/qwen2"] == "Megatron-core GPTModel <-> Hugging Face transformers Qwen2ForCausalLM"


# ---- Lines of parameters that are for modules which the mapping leaves out, or of which nothing says where they are.

OWN = tree({"": "Own", "decoder": "Dec", "decoder.ln": "Norm"})
NET = tree({"": "Net", "model": "M", "model.decoder": "D", "model.decoder.embed": "E", "model.decoder.norm": "N"})
SIDES = (
    with_parameters(OWN, {"decoder.table": (8, 3), "decoder.ln.weight": (3,)}),
    with_parameters(NET, {"model.decoder.embed.weight": (8, 3), "model.decoder.norm.weight": (3,)}),
)
PLACED = "Own: {decoder: model.decoder}\n"
TABLE = "Dec:\n  params:\n    table: embed.weight\n"


def test_the_parameters_of_what_is_ignored_are_compared_alone_where_a_line_names_them() -> None:
    for ignored in ("/decoder", "/model.decoder", "**.decoder"):
        text = f"{PLACED}{TABLE}ignore: ['{ignored}']\n"
        found, other = matched(*SIDES, text), matched(*SIDES[::-1], text)
        assert found.weight_bundles == (WeightBundle("B", (1, "table"), (((3, "weight"),),)),)
        assert other.weight_bundles == (WeightBundle("A", (1, "table"), (((3, "weight"),),)),)
        assert names(found, OWN, NET) == {"": ""} and found.warnings == other.warnings == ()


def test_a_parameter_of_what_is_ignored_under_another_name_and_turned() -> None:
    b = with_parameters(NET, {"model.decoder.positions": (3, 8)})
    line = "Dec: {params: {table: {to: positions, transpose: true}}}"
    found = matched(SIDES[0], b, f"{PLACED}{line}\nignore: [/decoder]")
    assert found.weight_bundles == (WeightBundle("B", (1, "table"), (((2, "positions"),),)),)
    assert found.views_a[1, "table"].axes == (1, 0)


def test_the_long_form_of_a_line_for_what_is_ignored() -> None:
    text = "Own: {decoder: {to: model.decoder, params: {table: embed.weight}}}\nignore: [/decoder]"
    assert matched(*SIDES, text).weight_bundles == (WeightBundle("B", (1, "table"), (((3, "weight"),),)),)


def test_a_mapping_that_says_the_same_from_both_sides_needs_no_direction() -> None:
    known = with_parameters(OWN, {"decoder.table": (8, 3), "decoder.other": (8, 3)})
    assert matched(known, known, "Dec: {params: {table: table}}\nignore: [/decoder]").warnings == ()
    (warning,) = matched(known, known, "Dec: {params: {table: other}}\nignore: [/decoder]").warnings
    assert warning.startswith("the mapping fits both sides equally well; it is read as written from A")


def test_what_is_said_of_other_modules_too_is_not_said_of_those_that_are_ignored() -> None:
    a = tree({"": "Own", "x": "Dec", "y": "Dec"})
    known = with_parameters(a, {"x.table": (8, 3), "y.table": (8, 3)})
    other = with_parameters(a, {"x.weight": (8, 3), "y.weight": (8, 3)})
    found = matched(known, other, "Dec: {params: {table: weight}}\nignore: [/y]")
    assert found.weight_bundles == () and list(found.views_a) == [(1, "table")] and found.warnings == ()


def test_of_a_module_without_a_counterpart_the_warning_says_what_is_to_be_written() -> None:
    text = f"Own: {{ln: x}}\nTopLayer: {{'none?': y}}\n{TABLE}ignore: [/decoder]"
    why = (
        "the mapping's line 5: Dec: params: table: embed.weight is not used: decoder (Dec) has no counterpart; a line "
        "decoder: … in section TopLayer would say where it is; decoder.table: …, below params in TopLayer, would compare the "
        "weight alone"
    )
    assert matched(*SIDES, text, Direction.A_TO_B).warnings[-1] == why
    both = "TopLayer:\n  params:\n    decoder.table: model.decoder.embed.weight\nignore: [/decoder]"
    assert matched(*SIDES, both).weight_bundles == (WeightBundle("B", (1, "table"), (((3, "weight"),),)),)


def test_several_of_this_side_in_a_module_without_a_counterpart() -> None:
    text = (
        "TopLayer: {'none?': y}\nDec:\n  params:\n    w: {from: [table, ln.weight]}\nignore: ['**.none?', /decoder.ln]"
    )
    assert matched(*SIDES, text, Direction.A_TO_B).warnings == (
        "the mapping's line 4: Dec: params: w: {from: [table, ln.weight]} is not used: decoder (Dec) has no counterpart; a line "
        "decoder: … in section TopLayer would say where it is",
    )


@pytest.mark.parametrize("wrote", ["tabel", "tables"])
def test_what_is_not_there_has_the_nearest_name_of_the_module_that_the_line_is_for(wrote: str) -> None:
    found = matched(*SIDES, f"Own: {{decoder: {{to: model.decoder, params: {{{wrote}: embed.weight}}}}}}")
    assert found.warnings == (
        f"the mapping's line 1: Own: decoder: params: {wrote}: embed.weight names no parameter that is there; did you mean table?",
    )


class Named(nn.Module):
    """Multiplies by a weight under a name of its own."""

    def __init__(self, name: str, value: float, adds: float) -> None:
        super().__init__(**{name: nn.Parameter(np.full(3, value, np.float32) + np.arange(3, dtype=np.float32))})
        self.name, self.adds = name, adds

    def forward(self, x: Tensor) -> Tensor:
        return x * getattr(self, self.name) + self.adds


class Own(nn.Module):
    def __init__(self, part: Named) -> None:
        super().__init__(part=part)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) - self.part.adds


@pytest.mark.parametrize("value", [1.0, 2.0])
def test_a_wrong_weight_of_what_is_ignored_is_found(tmp_path: Path, value: float) -> None:
    files = tmp_path / "a.h5", tmp_path / "b.h5"
    for file, part in zip(files, (Named("gamma", 1.0, 0.0), Named("weight", value, 4.0)), strict=True):
        model = Own(part)
        with probe.capture(model, file, task="tensor"):
            probe.step(loss=model(Tensor(np.array([[1.0, -2.0, 0.5]], np.float32))).sum())
    mapping = written(tmp_path, "Named: {params: {gamma: weight}}\nignore: ['**/Named']\n")
    assert run("map", "check", mapping, *files).exit_code == 0
    done = run("compare", *files, "-lm", mapping)
    assert done.exit_code == (value != 1.0)
    assert ("init" in done.stdout) is (value != 1.0), done.stdout


# ---- Lines put into the text of a mapping.

TEXT = """\
# by hand
GPTModel:   # the root
  decoder.layers: model.layers

SelfAttention:
    linear_qkv:   # group by group
        to: [q_proj, k_proj, v_proj]
        split: {groups: 2}
    # not named: core_attention

# what is left out
ignore:
- "**.dropout"
"""


def test_a_line_stands_at_the_end_of_its_section_and_nothing_else_changes() -> None:
    found = with_lines(
        TEXT, "map.yaml", [Line("SelfAttention", "linear_proj", "o_proj"), Line("TopLayer", "out", "head")]
    )
    before, after = TEXT.splitlines(), found.splitlines()
    assert [line for line in after if line not in before] == ["    linear_proj: o_proj", "TopLayer:", "  out: head"]
    assert [line for line in after if line in before and line] == [line for line in before if line]
    assert after.index("    linear_proj: o_proj") == before.index("        split: {groups: 2}") + 1
    assert found.endswith('- "**.dropout"\n\nTopLayer:\n  out: head\n')


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", Line("TopLayer", "0", "layers.1"), 'TopLayer:\n  "0": layers.1\n'),
        ("A:\n  b: c", Line("A", "d", "e"), "A:\n  b: c\n  d: e\n"),
        ("A:\r\n  b: c # why\r\n# end\r\n", Line("A", "d", "e"), "A:\r\n  b: c # why\r\n  d: e\r\n# end\r\n"),
        ("A?:\n  b: c\n", Line("A", "d", "e"), "A?:\n  b: c\n  d: e\n"),
        ("A:\n  b: {to: [c,\n    d]}\nB:\n  x: z\n", Line("A", "e", "f"), "A:\n  b: {to: [c,\n    d]}\n  e: f\nB:\n  x: z\n"),
        ("", Line("A", "b", ("c", "d")), "A:\n  b: {to: [c, d], split: {groups: as_recorded}}\n"),
        ("", Line("A", ("c", "on"), "b"), 'A:\n  b: {from: [c, "on"], split: {groups: as_recorded}}\n'),
        ("# nothing yet\n", Line("/text.head", "on", "y"), '# nothing yet\n\n"/text.head":\n  "on": "y"\n'),
    ],
    ids=["empty", "no end of line", "carriage returns", "optional section", "over two lines", "several there", "several here", "words of YAML"],
)  # fmt: skip
def test_where_and_how(text: str, line: Line, expected: str) -> None:
    assert with_lines(text, "map.yaml", [line]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"A": {"b": "c"}}', "map.yaml, line 1: is written in braces, into which nothing can be put; write it as lines, as in d: e"),
        ("A: {b: c}\n", "map.yaml, line 1: A: is written in one line; write it as lines, as in d: e"),
        ("- A\n", "map.yaml, line 1: expected sections named by a module class"),
        ("A:\n  d: c\n", "map.yaml, line 3: d stands here a second time; the first is on line 2"),
        ("A: [\n", "map.yaml, line 1: not valid YAML"),
    ],
)  # fmt: skip
def test_what_cannot_take_a_line(text: str, message: str) -> None:
    with pytest.raises(MappingError) as raised:
        with_lines(text, "map.yaml", [Line("A", "d", "e")])
    assert str(raised.value).startswith(message)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_names_are_never_yaml(key: str, target: str) -> None:
    """Whatever they are, one entry more is there, or none and an error."""
    try:
        found = with_lines(TEXT, "map.yaml", [Line("GPTModel", key, target)])
    except MappingError:
        return
    expected = yaml.safe_load(TEXT)
    expected["GPTModel"][key] = target
    assert yaml.safe_load(found) == expected


@pytest.mark.parametrize("name", library())
def test_every_mapping_that_comes_with_probe_takes_lines(name: str) -> None:
    text = library()[name].read_text(encoding="utf-8")
    sections = [section.name for section in parse_mapping(text, name).sections]
    added = [Line(section, "of.the.test", "there") for section in sections]
    found, before = yaml.safe_load(with_lines(text, name, added)), yaml.safe_load(text)
    changed = {key: value for key, value in found.items() if before.get(key) != value}
    assert len(changed) == len(set(sections)) and all(each.pop("of.the.test") == "there" for each in changed.values())
    assert found == before
