"""The size of the package: lines, files and imports by folder, circles between folders, imports that go up, repeated lines.

python scripts/house.py
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tests.house.sources import PACKAGE, modules  # noqa: E402
from tests.house.test_layers import UPWARDS, ours  # noqa: E402

REPEATED = 6
"""lines from which on a repeated place counts"""


def folder_of(module: str) -> str:
    """Return the folder below the package that a module lies in, or a module that lies in none."""
    return module.partition(".")[0]


def imports() -> dict[str, set[str]]:
    """Return which folders each folder imports; the package's own names are imported lazily."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in filter(None, modules()):
        found[folder_of(name)] |= {folder_of(other) for other in ours(name)} - {folder_of(name)}
    return found


def circles(edges: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of folders of which each reaches the other."""

    def reached(start: str) -> set[str]:
        seen, left = set(), [start]
        while left:
            for other in edges.get(left.pop(), set()) - seen:
                seen.add(other)
                left.append(other)
        return seen

    reach = {folder: reached(folder) for folder in edges}
    yield from ((a, b) for a in reach for b in reach if a < b and b in reach[a] and a in reach[b])


def repeated() -> int:
    """Return how many places repeat six or more lines of code of another place."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        code = [line for line in lines if line and not line.startswith(("#", "from ", "import "))]
        for at in range(len(code) - REPEATED + 1):
            places["\n".join(code[at : at + REPEATED])].append((str(path), at))
    starts = {place for same in places.values() if len(same) > 1 for place in same[1:]}
    return sum((path, at - 1) not in starts for path, at in starts)


def main() -> None:
    """Print the tables."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        inner = path.relative_to(PACKAGE).parts
        folder = inner[0] if len(inner) > 1 else "."
        lines[folder] += len(path.read_text(encoding="utf-8").splitlines())
        files[folder] += 1
    edges = imports()
    print(f"{'folder':20} {'lines':>6} {'files':>5}  imports")
    for folder, count in lines.most_common():
        below = sorted(each for each in edges.get(folder, ()) if each in lines)
        print(f"{folder:20} {count:6,} {files[folder]:5}  {' '.join(below)}")
    print(f"{'all':20} {sum(lines.values()):6,} {sum(files.values()):5}")
    both = sorted((a, b) for a in edges for b in edges[a] if a < b and a in edges.get(b, ()))
    print(f"folders that import each other: {', '.join(f'{a} ↔ {b}' for a, b in both) or 'none'}")
    print(f"pairs of folders in a circle: {len(list(circles(edges)))}")
    print(f"imports that go up, inside functions: {len(UPWARDS)}")
    print(f"places that repeat {REPEATED} or more lines: {repeated()}")


if __name__ == "__main__":
    main()
