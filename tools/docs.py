"""Keep the documentation in step with the code.

Copies the plug-in that the tests install into the pages that explain it, and reports public names
that no reference page shows.

    python tools/docs.py [--check]
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "pages"
PLUGIN_PAGE = PAGES / "plugins.md"
PLUGIN_PAGES = (PLUGIN_PAGE, *sorted((PAGES / "plugins").glob("*.md")))
PLUGIN = ROOT / "tests" / "integration" / "plugin_package"

_DIRECTIVE = re.compile(r"^::: ([\w.]+)\n((?:[ \t]+.*\n|\n)*)", re.MULTILINE)
_MEMBER = re.compile(r"^ {8}- (\w+)$", re.MULTILINE)
_FILE_BLOCK = re.compile(r'^(```\w+ title="([^"]+)"\n)(.*?)(^```$)', re.MULTILINE | re.DOTALL)


def main() -> int:
    """Bring the pages up to date; the exit status is 1 when something is left to do."""
    parser = argparse.ArgumentParser(description="Keep the documentation in step with the code.")
    parser.add_argument("--check", action="store_true", help="only report, write nothing")
    check = parser.parse_args().check
    problems = reference_problems()
    for page in PLUGIN_PAGES:
        text = page.read_text(encoding="utf-8")
        updated = with_files(text, PLUGIN)
        if text == updated:
            continue
        if check:
            problems.append(f"{page.name} differs from {PLUGIN.relative_to(ROOT)}")
        else:
            page.write_text(updated, encoding="utf-8")
    for problem in problems:
        print(problem)
    return int(bool(problems))


def reference_problems() -> list[str]:
    """Compare the reference pages with the packages' public names."""
    sources = {module_name(path): path for path in sorted(ROOT.glob("packages/*/src/**/*.py"))}
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in sources.items()}
    shown: dict[tuple[str, str], str] = {}
    problems = []
    for page in sorted((PAGES / "reference").glob("*.md")):
        for entry in shown_names(page.read_text(encoding="utf-8")):
            if entry in shown:
                problems.append(f"{'.'.join(entry)} is on {shown[entry]} and on {page.name}")
            shown[entry] = page.name
    defined = {
        (module, name)
        for module, tree in trees.items()
        if not any(part.startswith("_") for part in module.split("."))
        for name in defined_names(tree)
    }
    public = {
        (module, name)
        for module, name in defined
        if not any(_is_facade(trees, package) for package in _enclosing(module))
    }
    public |= {
        _home(trees, *imported)
        for module, tree in trees.items()
        if "." not in module or _is_facade(trees, module)
        for imported in exported_names(tree)
    }
    problems += [f"{module}.{name} is on no page" for module, name in sorted(public - set(shown))]
    problems += [
        f"{shown[module, name]} shows {module}.{name}, which is not there"
        for module, name in sorted(set(shown) - public - defined)
    ]
    return problems


def module_name(path: Path) -> str:
    """Return the import name of a package's source file."""
    parts = path.relative_to(ROOT / "packages").with_suffix("").parts[2:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the public classes and functions of a module, and its constants with a docstring."""
    for statement, following in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        names: list[str] = []
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            names = [statement.name]
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and _is_text(following):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in names if not name.startswith("_"))


def exported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield module and name of what a package re-exports by ``from module import X as X``."""
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            for alias in statement.names:
                if alias.asname == alias.name:
                    yield statement.module, alias.name


def shown_names(page: str) -> Iterator[tuple[str, str]]:
    """Yield module and name of what a reference page shows."""
    for directive in _DIRECTIVE.finditer(page):
        for member in _MEMBER.findall(directive[2]):
            yield directive[1], member


def with_files(page: str, folder: Path) -> str:
    """Fill every block of a page that is titled with a file's path with that file.

    Args:
        page: Markdown.
        folder: what the paths are relative to.
    """

    def fill(block: re.Match[str]) -> str:
        return block[1] + (folder / block[2]).read_text(encoding="utf-8") + block[4]

    return _FILE_BLOCK.sub(fill, page)


def titled_files(page: str) -> list[str]:
    """Return the paths that a page's blocks are titled with."""
    return [block[2] for block in _FILE_BLOCK.finditer(page)]


def _origin(trees: dict[str, ast.Module], module: str, name: str) -> tuple[str, str]:
    """Follow re-exports to the module that defines a name."""
    for source, exported in exported_names(trees[module]):
        if exported == name:
            return _origin(trees, source, name)
    return module, name


def _home(trees: dict[str, ast.Module], module: str, name: str) -> tuple[str, str]:
    """Return from where a name is meant to be imported: its package, if that re-exports it."""
    origin, name = _origin(trees, module, name)
    for package in _enclosing(origin):
        if name in (exported for _, exported in exported_names(trees[package])):
            return package, name
    return origin, name


def _enclosing(module: str) -> list[str]:
    """Name the packages around a module, outermost first, but for the distribution's own."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(2, len(parts))]


def _is_facade(trees: dict[str, ast.Module], package: str) -> bool:
    """Return whether a package's names are those that it re-exports."""
    return "." in package and any(True for _ in exported_names(trees[package]))


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


if __name__ == "__main__":
    sys.exit(main())
