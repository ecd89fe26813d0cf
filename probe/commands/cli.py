"""The commands ``probe`` and ``probe-compare``.

Only what every command needs is imported here. A command imports the rest when it runs, so that ``--help`` and shell
completion are there at once; `tests/house/test_startup.py` holds this.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from probe._version import __version__
from probe.commands import shared
from probe.defaults import EXIT, FORMATS, FRAMEWORKS, METRICS, MIN_COVERAGE, PRESET_NAMES
from probe.errors import ProbeError

if TYPE_CHECKING:
    from rich.table import Table

    from probe.answer.comparison import Comparison
    from probe.conversion.plan import Plan

_EXIT_OF_TABLE = {"accepted": 0, "not accepted": 1, "undecided": 2}
"""exit status by the answer of an acceptance table, where one was asked for"""
_TROUBLE = 3
"""exit status of an error"""
_DEBUG = "PROBE_DEBUG"
"""environment variable"""
_NEW_OBJECTS = 100_000
"""containers that may be added before the next look for unreachable cycles; 700 by default"""
_TABLE_WIDTH = 200


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn the errors of probe, and of files that cannot be used, into a line on stderr and exit status 3.

    What nobody expected too: 1 would mean diverged. Its traceback comes where PROBE_DEBUG is set.
    """
    for stream in (sys.stdout, sys.stderr):
        _replace_what_it_lacks(stream)
    try:
        yield
    except ProbeError as error:
        raise _Failure(str(error)) from error
    except click.ClickException as error:
        error.exit_code = _TROUBLE
        raise
    except (click.exceptions.Exit, click.Abort):
        raise
    except OSError as error:
        if error.errno == errno.EPIPE:  # click ends quietly where nobody reads what is printed
            raise
        if error.filename is None:
            raise _unexpected(error) from error
        raise _Failure(f"cannot use {error.filename}: {error.strerror}") from error
    except Exception as error:
        raise _unexpected(error) from error


def _as_program(command: click.Command, name: str) -> None:
    """Run a command as what this process is for: it looks for unreachable cycles rarely, and not at its end.

    That is a fifth of a small comparison.
    """
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)
    command(prog_name=name)


def _replace_what_it_lacks(stream: Any) -> None:
    """Print ? for what a terminal's or pipe's encoding lacks, such as ≈ in ASCII, in the place of an error."""
    if getattr(stream, "errors", "") == "strict" and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


class _Telling(click.Command):
    """A command that tells what is wrong in a line, its usage too."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _told():
            return super().make_context(*args, **kwargs)

    def invoke(self, context: click.Context) -> Any:
        with _told():
            return super().invoke(context)


class _LazyGroup(_Telling, shared.Group):
    """Commands of other modules, each of which is imported when its command is called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places: dict[str, tuple[str, str]] = {}

    def add_later(self, name: str, module: str, attribute: str, help_line: str) -> None:
        """Add a command of a module; the line stands in this group's help."""
        self._places[name] = (module, attribute)
        self.add_command(click.Command(name, help=help_line))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in self._places:
            module, attribute = self._places.pop(name)
            self.add_command(getattr(importlib.import_module(module), attribute), name)
        return super().get_command(context, name)


def _unexpected(error: Exception) -> _Failure:
    """Return what is said of an error in probe itself; print its traceback where that was asked for."""
    import traceback

    if os.environ.get(_DEBUG):
        traceback.print_exception(type(error), error, error.__traceback__)
        return _Failure("this is an error in probe itself: please report it with the traceback above")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return _Failure(
        f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})\n"
        f"this is an error in probe itself, not in the recordings: please report it with the traceback, which {_DEBUG}=1 prints"
    )


class _Failure(click.ClickException):
    exit_code = _TROUBLE

    def __init__(self, message: str) -> None:
        from probe.report.layout import LONGEST_LIST, plain

        super().__init__("\n".join(plain(line, LONGEST_LIST) for line in message.split("\n")))

    def show(self, file: IO[str] | None = None) -> None:
        """Write it as click does, in a terminal with what it is in red."""
        click.echo(f"{click.style('Error:', fg='red', bold=True)} {self.format_message()}", file=file, err=file is None)


@click.group(cls=_LazyGroup, context_settings=shared.HELP)
@click.version_option(__version__, package_name="probe-align", prog_name="probe")
def main() -> None:
    """Two runs of the same model disagree: where is the first place that is really wrong?

    Record both runs with probe.start(model, "a.h5") and probe.step(loss=loss), then

        probe compare a.h5 b.h5

    To see an answer first: probe demo
    """


_OF_COMPARISONS = (
    click.argument("a", type=click.Path(), required=False, metavar="A"),
    click.argument("b", type=click.Path(), required=False, metavar="B"),
    click.option("-i", "--input", "named", type=click.Path(), metavar="FILE",
                 help="In the place of A and B: mindstudio-probe's compare.json; A is its bench_path, B its npu_path."),
    shared.MAPPING, shared.DIRECTION, shared.STRICT,
    click.option("--noise", multiple=True, type=click.Path(), metavar="A2",
                 help="A further legitimate run of A: what it differs by is noise (repeatable)."),
    click.option("--reference", type=click.Path(), metavar="REF",
                 help="A run of A's model in higher precision: how much further from it is B than A?"),
    click.option("--steps", metavar="A:B", help="Which step of B is a step of A: 100:0 where B resumed at A's step 100."),
    click.option("--atol", type=float, help="Absolute tolerance of every tensor, in the place of what is known of noise."),
    click.option("--rtol", type=float, help="Relative tolerance of every tensor."),
    click.option("--metric", type=click.Choice(list(METRICS)), help="What they are held against; default allclose."),
    click.option("--rules", type=click.Path(), metavar="FILE",
                 help="Tolerances for some modules, or leaving them unjudged."),
    click.option("--preset", metavar="NAME",
                 help=f"Whether the runs meet an acceptance table, beside the verdict: {', '.join(PRESET_NAMES)}."),
    click.option("--scheduler", metavar="WHERE",
                 help="Who reads and compares: processes, processes:4, or a Dask scheduler, tcp://host:8786. Default: this process."),
    click.option("--resume", type=click.Path(dir_okay=False), metavar="FILE",
                 help="Keep what was found of values in FILE, and go on from what it has."),
    click.option("--min-coverage", default=MIN_COVERAGE, show_default=True, type=click.FloatRange(0, 1),
                 help="Below this share of paired module calls nothing is called aligned."),
    shared.CONFIDENCE,
)  # fmt: skip
"""what to compare, and how"""


def _comparing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments and options of a comparison."""
    for option in reversed(_OF_COMPARISONS):
        command = option(command)
    return command


@main.command("compare", cls=_Telling, context_settings=shared.HELP)
@_comparing
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "csv", "parquet", "html"]),
    help="Default: text, or by the name of -o.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="Write the report to a file (.html, .txt, .json), or all rows (.csv, .parquet).",
)
@click.option("--top", default=5, show_default=True, help="How many further divergences to list.")
@click.option("--why", metavar="PATH", help="How this module was judged, tensor by tensor, in the place of the report (text or JSON).")  # fmt: skip
@shared.VERBOSE
def compare_command(
    a: str | None, b: str | None, named: str | None, style: str | None, output: str | None, top: int, why: str | None,
    verbose: bool, **chosen: Any,
) -> None:  # fmt: skip
    """Name the first place where recording B really diverges from recording A.

    \b
    Exit status: 0 aligned, 1 diverged, 2 could not tell, 3 error;
                 with --preset: 0 accepted, 1 not accepted, 2 could not tell.
    Example:     probe compare a.h5 b.h5 -lm megatron-core/qwen2
                 probe compare a.h5 b.h5 --noise a2.h5
                 probe compare a.h5 b.h5 --preset p-forward
    """
    a, b = _sides(a, b, named)
    style = style or _style_of(output)
    if style == "parquet" and output is None:
        raise _Failure("Parquet is no text: say with -o to which file it goes")
    result = _compared(a, b, **chosen)
    if why is not None:
        _show_why(result, why, style, output)
    elif output is None:
        _show(result, style, top, verbose)
    else:
        from probe.report.formats.saving import save

        save(result, output, style, top)
        _say_where(result, output)
    sys.exit(_status(result))


def _status(result: Comparison) -> int:
    """Return the exit status: by the acceptance table where one was asked for, else by the verdict."""
    return EXIT[result.verdict] if result.acceptance is None else _EXIT_OF_TABLE[result.acceptance.decision]


def _sides(a: str | None, b: str | None, named: str | None) -> tuple[str, str]:
    """Return the two recordings that were given, or that a compare.json names."""
    if named is None:
        if a is None or b is None:
            raise click.MissingParameter(param_hint="'A'" if a is None else "'B'", param_type="argument")
        return a, b
    if a is not None:
        raise _Failure(f"-i {named} names both recordings: expected it, or A and B")
    from probe.compat.compare_json import read_compare_json

    found = read_compare_json(named)
    if found.ignored:
        click.echo(f"{named}: ignored: {', '.join(found.ignored)}", err=True)
    return str(found.a), str(found.b)


def _show_why(result: Comparison, path: str, style: str, output: str | None) -> None:
    """Show how a module was judged."""
    if style not in ("text", "json") or output is not None:
        raise _Failure("--why is shown here, as text or with --format json")
    why = result.why(path)
    if style == "json":
        shared.printed_json(why.as_json())
        return
    from probe.report.why import styled

    shared.printed(styled(str(why).rstrip()))


def _compared(a: str, b: str, mapping: str | None, **options: Any) -> Comparison:
    """Compare two recordings, with progress on a terminal."""
    _start_no_threads_of_blas()
    from probe.comparing import compare

    with shared.progress("comparing") as shown:
        return compare(a, b, mapping, **options, **shown)


def _start_no_threads_of_blas() -> None:
    """Let numpy start none of the threads of OpenBLAS: products here are of vectors that stay in a cache, and idle threads spin.

    So an answer does not depend on the number of cores either: threads add up in another order.
    """
    if "numpy" not in sys.modules:  # else they are there already
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _say_where(result: Comparison, output: str) -> None:
    from probe.report.layout import harmless
    from probe.report.left_out import qualification

    table = result.acceptance
    accepted = "" if table is None else f", {table.decision.value} by {table.preset.name}"
    but = qualification(result.verdict, result.left_out)
    click.echo(f"{result.verdict.value}{but}{accepted}; the report is in {harmless(output)}", err=True)


def _style_of(output: str | None) -> str:
    """Return the format that a file's name asks for."""
    suffix = Path(output or "").suffix.lower()
    style = FORMATS.get(suffix) if suffix else "text"
    if style is None:
        raise _Failure(f"cannot tell the format of {output}: expected {', '.join(FORMATS)}, or --format")
    return style


def _show(result: Comparison, style: str, top: int, verbose: bool) -> None:
    if style == "text":
        from probe.report import text

        shared.printed(text.render(result, top, shared.columns(), verbose=verbose))
    else:
        from probe.report.formats.saving import rendered

        click.echo(rendered(result, style, top), nl=False)


@main.command("view")
@_comparing
@click.option("-o", "--output", type=click.Path(dir_okay=False),
              help="Where to keep the page; default: a new folder. Of one recording, a name that ends in .svg, .png or .pdf: its graph as a picture.")  # fmt: skip
@click.option(
    "--serve", is_flag=True, help="From a server on this machine alone: pairs that you pick are saved, and compared."
)
@click.option("--save-to", type=click.Path(dir_okay=False), metavar="FILE",
              help="With --serve, the only file that it writes: a new layer mapping; default: that of -lm, else layer_mapping.yaml.")  # fmt: skip
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="With --serve; default: a free one.")
@click.option(
    "--at",
    default="",
    metavar="PATH",
    help="Of one recording, the module that is chosen first, or that the picture is drawn around.",
)
@click.option(
    "--step", type=int, help="Of one recording, the only one that is shown; default: all, in a picture the first."
)
@click.pass_context
def view_command(
    context: click.Context, a: str | None, b: str | None, named: str | None, output: str | None, serve: bool,
    save_to: str | None, port: int, at: str, step: int | None, **chosen: Any,
) -> None:  # fmt: skip
    """Compare two recordings and look at the HTML report in the browser.

    Of one recording: look at the model as it ran, with the numbers of every module in each phase and step, and the graph.
    As a picture, the graph alone (needs matplotlib).

    \b
    Example: probe view a.h5 b.h5 -lm megatron-core/qwen2
             probe view a.h5 b.h5 -lm map.yaml --serve
             probe view a.h5 --at model.layers.3.mlp
             probe view a.h5 -o graph.svg
    """
    if a is not None and b is None and named is None:
        given = _given(context, but=("a", "output", "at", "step"))
        if given:
            raise _Failure(f"{', '.join(given)}: for two recordings, and one was given: expected probe view A B")
        _view_run(a, step, at, output)
        return
    if at or step is not None:
        raise _Failure("--at and --step are for one recording: in the report of two, choose modules and steps by mouse")
    a, b = _sides(a, b, named)
    if serve:
        if output is not None:
            raise _Failure("--serve keeps no page: expected it or -o, not both")
        _serve(a, b, save_to, port, **chosen)
    if save_to is not None or port:
        raise _Failure("--save-to and --port are for --serve")
    from probe.report.formats.saving import save

    result = _compared(a, b, **chosen)
    place = output or _new_place("report.html")
    save(result, place, "html")
    _say_where(result, place)
    _browse(place)
    sys.exit(_status(result))


def _given(context: click.Context, but: Sequence[str]) -> list[str]:
    """Return the options that were given on the command line, but for some."""
    return [
        max(each.opts, key=len)
        for each in context.command.params
        if each.name and each.name not in but and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
    ]


def _view_run(a: str, step: int | None, at: str, output: str | None) -> None:
    """Make the page of one recording, or a picture of its graph, and show it."""
    from urllib.parse import quote

    from probe.dumps.given import recording_of
    from probe.recording import Recording
    from probe.report.layout import harmless

    place = output or _new_place("run.html")
    if not Path(place).suffix:
        raise _Failure(f"{place}: expected a name that ends in .html, .svg, .png or .pdf")
    with Recording(recording_of(a)) as run:
        if Path(place).suffix.lower() == ".html":
            if at not in run.keys():
                raise _Failure(f"--at {at}: {a} has no module of that path")
            run.save(place, step=step)
            click.echo(f"the page is in {harmless(place)}", err=True)
            _browse(place, f"#{quote(at, safe='')}" if at else "")
            return
        try:
            run.plot("graph", step=step, at=at).figure.savefig(place)
        except ImportError as error:
            raise _Failure(str(error)) from None
        except OSError as error:
            raise _Failure(f"cannot write {place}: {error.strerror or error}") from None
        except ValueError as error:
            if isinstance(error, ProbeError):
                raise
            raise _Failure(f"{place}: {error}; expected a name that ends in .html, .svg, .png or .pdf") from None
    click.echo(f"the graph is in {harmless(place)}", err=True)
    _browse(place)


def _new_place(name: str) -> str:
    import tempfile

    return str(Path(tempfile.mkdtemp(prefix="probe-")) / name)


def _browse(place: str, fragment: str = "") -> None:
    """Show a file in the browser, or say that there is none."""
    import webbrowser

    if not webbrowser.open(Path(place).resolve().as_uri() + fragment):
        click.echo("no browser could be started here: open that file in one", err=True)


def _serve(a: str, b: str, save_to: str | None, port: int, mapping: str | None, **chosen: Any) -> NoReturn:
    """Show the report from a server until Ctrl+C; the exit status is that of the last comparison."""
    import webbrowser

    from probe.report.layout import harmless
    from probe.report.serving import Server, Session

    session = Session(lambda used: _compared(a, b, used, **chosen), mapping, save_to)
    with Server(session, port) as server:
        click.echo(f"{server.url}\npairs are saved in {harmless(str(session.file))}; Ctrl+C ends", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            webbrowser.open(server.url)
            server.serve_forever()
    session.wait()
    sys.exit(_status(session.comparison))


@main.command()
@click.argument("file", type=click.Path())
@click.argument("other", type=click.Path(), required=False)
@click.option(
    "--diff", is_flag=True, help="Which settings two recordings hold otherwise: model, optimizers, environment."
)
@click.option("-v", "--verbose", is_flag=True, help="All routers of experts; with --diff, all settings.")
@shared.JSON
def info(file: str, other: str | None, diff: bool, verbose: bool, as_json: bool) -> None:
    """Tell what a recording holds, or which settings two of them hold otherwise.

    \b
    Example: probe info a.h5
             probe info --diff a.h5 b.h5
    """
    from rich.console import Console

    from probe.contents.experts import loads
    from probe.contents.unshown import cannot_show
    from probe.dumps.given import recording_of
    from probe.notes import as_json as as_json_of
    from probe.ranks.opening import open_reader
    from probe.report import inspect

    if diff != (other is not None) or (diff and as_json):
        raise _Failure("expected one recording, or two with --diff and without --json")
    if as_json:
        with open_reader(recording_of(file)) as reader:
            reader.require_steps()
            told = {"facts": inspect.facts(reader), "experts": [each.as_json() for each in loads(reader)]}
            shared.printed_json({**told, "cannot_show": [as_json_of(each) for each in cannot_show(reader)]})
    elif other is None:
        Console(highlight=False).print(inspect.summary(recording_of(file), verbose))
    else:
        shared.printed(inspect.difference(recording_of(file), recording_of(other), shared.columns(), verbose=verbose))


@main.command()
@click.argument("file", type=click.Path())
@click.argument("pattern", default="*")
@click.option("--step", type=int, help="Only this step.")
@click.option("--phase", help="Only this phase: init, forward, loss, backward, gradient or update.")
@click.option("--limit", default=200, show_default=True, help="At most this many records; 0 for all.")
def show(file: str, pattern: str, step: int | None, phase: str | None, limit: int) -> None:
    """List what was recorded of the modules whose path or class matches PATTERN (a glob).

    \b
    Example: probe show a.h5 "model.layers.3.*" --phase forward
    """
    from rich.console import Console

    from probe.dumps.given import recording_of
    from probe.report import inspect

    Console(highlight=False, soft_wrap=True).print(inspect.listing(recording_of(file), pattern, step, phase, limit))


@main.command("convert", cls=_Telling)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--to", required=True, type=click.Choice(FRAMEWORKS), help="Whose weights to write.")
@shared.MAPPING
@shared.DIRECTION
@click.option(
    "--from", "model", metavar="RECORDING|FRAMEWORK", help="A recording of the source's model; its structure is enough."
)
@click.option("--like", metavar="RECORDING", help="A recording of the target's model; its structure is enough.")
@click.option("--dtype", help="float32, float16 or bfloat16; default: as the source.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: SOURCE-paddle, by the framework.")
@click.option("--name-mappings", metavar="MODULE:CLASS", help="A class of PaddleNLP whose _get_name_mappings to use.")
@click.option("--allow-missing", multiple=True, metavar="NAME|GLOB", help="What the source need not have.")
@click.option("--allow-extra", multiple=True, metavar="NAME|GLOB", help="What the target need not take.")
def convert_command(
    source: Path, output: Path | None, mapping: str | None, name_mappings: str | None, **options: Any
) -> None:
    """Convert weights: a file, the index of several, or a folder with configuration and tokenizer.

    Reads safetensors, pytorch_model.bin, .pdparams and .ckpt. The names of tensors do not tell which of them to
    transpose, the classes of the modules do: a recording of either model says them (task="structure" is enough), one
    of both is needed where probe does not know a class.

    \b
    Example: probe convert bert/ --to paddle --from torch.h5 -lm bert.yaml
    """
    from rich.console import Console

    from probe.conversion import convert_checkpoint
    from probe.conversion.name_mappings import imported
    from probe.report.layout import harmless

    if name_mappings:
        mapping, options["config"] = imported(name_mappings, source)
    with shared.progress("converting") as shown:
        target, plan = convert_checkpoint(source, output, mapping, **options, **shown)
    console = Console(highlight=False)
    Console(highlight=False, width=max(_TABLE_WIDTH, console.width), soft_wrap=True).print(_conversion_table(plan))
    for text in (*plan.said, f"{len(plan.moves)} tensors are in {harmless(str(target))}"):
        click.echo(text, err=True)


def _conversion_table(plan: Plan) -> Table:
    """Return a row per tensor of the target, and one for each that was left out."""
    from rich.table import Table
    from rich.text import Text

    from probe.report.layout import plain

    table = Table(box=None, pad_edge=False)
    for heading in ("old name", "shape", "action", "new name", "shape"):
        table.add_column(heading, overflow="fold")
    rows = [
        (" + ".join(plain(part.stored.name) for part in move.parts), " + ".join(str(list(part.stored.shape)) for part in move.parts),
         move.action, plain(move.target.name), str(list(move.target.shape))) for move in plan.moves
    ]  # fmt: skip
    rows += [(plain(each.name), str(list(each.shape)), "left out", "", "") for each in plan.left_out]
    for row in rows:
        table.add_row(*map(Text, row))
    return table


main.add_later(
    "bisect", "probe.commands.bisect_command", "bisect_command",
    "Run two programs, find the first module that differs, run them again, and name the operation inside it.",
)  # fmt: skip
main.add_later(
    "check", "probe.commands.check_commands", "check_group",
    "Checks of one run, of what two runs start from, and of configurations and environments.",
)  # fmt: skip
main.add_later(
    "curves", "probe.commands.curve_command", "curves_command",
    "Compare two runs step by step: loss, gradient norm, learning rate, logged numbers, norms of single gradients.",
)  # fmt: skip
main.add_later("demo", "probe.demo", "demo_command", "Compare two recordings that come with probe.")
main.add_later(
    "export", "probe.commands.export_commands", "export_group",
    "Give a recording to other programs: TensorBoard, mindstudio-probe, or any that reads HDF5, .npy or safetensors.",
)  # fmt: skip
main.add_later(
    "import", "probe.commands.import_command", "import_command",
    "Write another tool's dump as a recording, which every other command reads.",
)  # fmt: skip
main.add_later(
    "presets", "probe.commands.preset_commands", "presets_command", "List the acceptance tables of --preset."
)
main.add_later("map", "probe.commands.map_commands", "map_group", "Layer mappings: what takes the place of what.")
main.add_later(
    "replay", "probe.commands.replay_command", "replay_command",
    "Run each module of B alone with what A's was given, and name all that are wrong by themselves.",
)  # fmt: skip


def probe_main() -> None:
    """Run ``probe``."""
    _as_program(main, "probe")


def compare_main() -> None:
    """Run ``probe compare`` as a program of its own."""
    _as_program(compare_command, "probe-compare")


if __name__ == "__main__":
    probe_main()
