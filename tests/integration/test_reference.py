import ast
import re

import docs


def test_every_public_name_is_on_one_reference_page() -> None:
    assert docs.reference_problems() == []


def test_the_overview_names_all_that_rl_core_exports() -> None:
    source = docs.ROOT / "packages" / "rl-core" / "src" / "rl_core" / "__init__.py"
    exported = {name for _, name in docs.exported_names(ast.parse(source.read_text("utf-8")))}
    overview = (docs.PAGES / "reference" / "rl_core.md").read_text("utf-8")
    assert exported - set(re.findall(r"`(\w+)`", overview)) == set()


def test_every_page_is_in_the_navigation() -> None:
    navigation = (docs.PAGES.parent / "mkdocs.yml").read_text("utf-8")
    listed = set(re.findall(r": ([\w/]+\.md)$", navigation, re.MULTILINE))
    assert listed == {str(page.relative_to(docs.PAGES)) for page in docs.PAGES.rglob("*.md")}


def test_a_name_counts_as_shown_only_among_the_members_of_its_module() -> None:
    page = "# Page\n\n::: a.b\n    options:\n      members:\n        - C\n\nC and D\n\n::: a.e\n"
    assert list(docs.shown_names(page)) == [("a.b", "C")]


def test_public_names_are_classes_functions_and_explained_constants() -> None:
    source = 'A = 1\nB: int = 2\n"""Explained."""\ndef c(): ...\nclass D: ...\ndef _e(): ...\n'
    assert list(docs.defined_names(ast.parse(source))) == ["B", "c", "D"]
