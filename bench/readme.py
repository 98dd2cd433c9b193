"""``python -m bench.readme [RESULTS …]``: keep results, and write the README's table of them.

What is kept is ``results/readme.json``; the README is held to it by a test.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from bench import report

README = Path(__file__).parent.parent / "README.md"
KEPT = Path(__file__).parent / "results" / "readme.json"
START = "<!-- benchmark table: written by python -m bench.readme, kept equal to bench/results/readme.json -->\n"
END = "<!-- end of benchmark table -->\n"


def replaced(text: str, table: str) -> str:
    """Return the README with this table in place of the one that is there.

    Raises:
        ValueError: it has no place for one.
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError("the README has no place for a benchmark's table")
    return before + start + table + end + after


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path), nargs=-1)
def main(results: tuple[Path, ...]) -> None:
    """Keep RESULTS (else those that are kept already) and write the README's table of them.

    Of several, the later ones' rows are added to the first's, or take the place of those of the same names.
    """
    first, *others = [json.loads(path.read_text()) for path in results or (KEPT,)]
    content = report.merged(first, *others)
    report.write(KEPT, content)
    README.write_text(replaced(README.read_text(), report.markdown(content)))


if __name__ == "__main__":
    main()
