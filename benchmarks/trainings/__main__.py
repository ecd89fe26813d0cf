"""``python -m benchmarks.trainings``: does recording disturb none of these trainings, and is what is recorded right?"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.trainings import compiled, in_loops, in_place, over_ranks
from benchmarks.trainings.judging import Outcome, judged
from benchmarks.trainings.page import page


@click.command()
@click.argument("words", nargs=-1)
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here.")
@click.option("--kept", type=click.Path(path_type=Path, dir_okay=False), help="What is in this file is not run again.")
def main(words: tuple[str, ...], markdown: Path | None, kept: Path | None) -> None:
    """Run the situations that have one of the words in their names (all); exit status 1 if something does not hold.

    Example: python -m benchmarks.trainings "FSDP2" "pipeline"
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    known = _read(kept)
    outcomes: dict[str, list[Outcome]] = {}
    for situation in [*over_ranks.situations(), *compiled.situations(), *in_place.situations(), *in_loops.situations()]:
        if words and not any(word in situation.name for word in words):
            continue
        found = known.get(situation.name) or judged(situation)
        outcomes[situation.name] = known[situation.name] = found
        if kept is not None:
            kept.write_text(json.dumps({name: [asdict(each) for each in ranks] for name, ranks in known.items()}))
        print(f"{'holds' if all(each.holds for each in found) else 'FALLS'}  {situation.name}", flush=True)
        for each in found:
            if not each.holds:
                print(f"       {each}", flush=True)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(page(outcomes), encoding="utf-8")
    fell = [name for name, ranks in outcomes.items() if not all(each.failed or each.holds for each in ranks)]
    print(f"{len(outcomes) - len(fell)} of {len(outcomes)} hold or do not run here")
    raise SystemExit(1 if fell else 0)


def _read(kept: Path | None) -> dict[str, list[Outcome]]:
    if kept is None or not kept.exists():
        return {}
    return {name: [Outcome(**each) for each in ranks] for name, ranks in json.loads(kept.read_text()).items()}


if __name__ == "__main__":
    main()
