from pathlib import Path

import pytest
from bench.markdown import replace_block, table, write_block

PAGE = "# Title\n\n<!-- speed:begin -->\nold\n<!-- speed:end -->\n\nmore\n"


def test_only_the_block_changes() -> None:
    changed = replace_block(PAGE, "speed", "new\n")
    assert changed == "# Title\n\n<!-- speed:begin -->\n\nnew\n\n<!-- speed:end -->\n\nmore\n"
    assert replace_block(changed, "speed", "new") == changed


@pytest.mark.parametrize(
    "page",
    [
        "no block",
        PAGE + PAGE,
        PAGE.replace("speed:end", "speed:and"),
        "<!-- speed:end --> <!-- speed:begin -->",
        PAGE.replace("speed", "learning"),
    ],
)
def test_a_page_without_just_one_block_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="one block between <!-- speed:begin -->"):
        replace_block(page, "speed", "new")


def test_a_page_on_disk_is_replaced_whole(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    write_block(page, "speed", "new")
    assert page.read_text(encoding="utf-8") == replace_block(PAGE, "speed", "new")
    with pytest.raises(ValueError, match="one block"):
        write_block(page, "learning", "new")
    assert list(tmp_path.iterdir()) == [page]


def test_a_table_aligns_numbers_to_the_right() -> None:
    text = table(["name", "speed"], [["ours", "2"], ["theirs", "1"]], left=1)
    assert text.splitlines() == [
        "| name | speed |",
        "| :--- | ---: |",
        "| ours | 2 |",
        "| theirs | 1 |",
    ]


def test_the_benchmark_page_has_all_blocks() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "pages" / "benchmarks.md"
    text = page.read_text(encoding="utf-8")
    for name in ("speed", "replay", "learning", "comparison", "causes", "defaults", "cloning"):
        assert "sentinel" in replace_block(text, name, "sentinel")
