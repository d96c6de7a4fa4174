"""Markdown tables, and the marked blocks of a page that a program writes."""

from collections.abc import Sequence
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs" / "pages"
"""Folder of all pages."""

PAGE = PAGES / "benchmarks.md"
"""With the tables of all benchmarks."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Return a Markdown table.

    Args:
        header: of each column.
        rows: cells, as many as there are columns.
        left: how many of the first columns are aligned to the left; the others hold numbers.
    """
    rule = [":---" if column < left else "---:" for column in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def folded(title: str, content: str) -> str:
    """Return a part of a page that readers open by a click on its title."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{content.strip()}\n\n</details>'


def replace_block(text: str, name: str, content: str) -> str:
    """Exchange what stands between the markers of a block.

    Args:
        text: of the page.
        name: the block stands between ``<!-- name:begin -->`` and ``<!-- name:end -->``.
        content: what is to stand there.

    Raises:
        ValueError: when the page does not have just one such block.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if text.count(begin) != 1 or text.count(end) != 1 or end in before:
        raise ValueError(f"the page needs one block between {begin} and {end}")
    return f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}"


def write_block(page: Path, name: str, content: str) -> None:
    """Exchange a block of a page on disk, whole or not at all.

    Raises:
        ValueError: when the page does not have just one such block.
    """
    text = replace_block(page.read_text(encoding="utf-8"), name, content)
    temporary = page.with_name(f".{page.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(page)
