"""``probe demo``: two recordings that come with probe, compared on the spot.

``scripts/demo-recordings`` makes them anew: one training step of a small Qwen2 of transformers, and of the Megatron-style port of it
in docs/examples, in which one norm has the eps of another model.
"""

from __future__ import annotations

from pathlib import Path

import click

from probe.recording import open_recording
from probe.report.layout import harmless

FOLDER = Path(__file__).resolve().parent
RECORDINGS = ("transformers.h5", "megatron.h5")
MAPPING = "megatron-core/qwen2"
_DIVERGED = 1
"""the exit status of ``probe compare``"""

_INTRODUCTION = """\
Two recordings of one training step of a Qwen2: same weights, same batch.
  A  {0:16}  the model of transformers    loss {2:.6f}
  B  {1:16}  a Megatron-style port of it  loss {3:.6f}
One module of B computes something else. Which one?

$ cd {4}
$ probe-compare {0} {1} -lm {5}
"""
_NEXT = """
That is where it was planted: this norm of B has eps 1e-5, and that of A 1e-6.

Try next, in the same folder:
  probe-compare {0} {1}  # without the layer mapping
  probe view {0} {1}     # the report in the browser

For your own two programs, add three lines to each of them:
  probe.start(model, "a.h5")  # before the first forward; "b.h5" in the other
  probe.step(loss=loss)       # after every optimizer step
  probe.stop()
Then run: probe-compare a.h5 b.h5"""


@click.command("demo")
@click.pass_context
def demo_command(context: click.Context) -> None:
    """Compare two recordings that come with probe.

    \b
    Example: probe demo
    """
    paths = [FOLDER / name for name in RECORDINGS]
    click.echo(_INTRODUCTION.format(*RECORDINGS, *map(_loss, paths), harmless(str(FOLDER)), MAPPING))
    _compare(context, paths)
    click.echo(_NEXT.format(*RECORDINGS))


def _loss(path: Path) -> float:
    with open_recording(path) as recording:
        return recording.scalars["loss"][0]


def _compare(context: click.Context, paths: list[Path]) -> None:
    """Run ``probe compare``; that it diverges is no failure of the demo."""
    assert isinstance(context.parent, click.Context) and isinstance(context.parent.command, click.Group)
    compare = context.parent.command.get_command(context.parent, "compare")
    assert compare is not None
    try:
        compare.main([*map(str, paths), "-lm", MAPPING], prog_name="probe-compare", standalone_mode=False)
    except SystemExit as ended:
        if ended.code != _DIVERGED:
            raise
