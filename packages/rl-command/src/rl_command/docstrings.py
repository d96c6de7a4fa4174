"""Help texts of options, read from docstrings."""

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable

_SECTION = re.compile(r"(Args|Arguments|Attributes|Parameters|Options):\s*")
_ITEM = re.compile(r"\*{0,2}(\w+)(?: \([^)]*\))?:(?:\s+(.*))?")


def first_sentence(documented: object) -> str:
    """Return the first sentence of a docstring, or an empty string.

    Args:
        documented: a class or function.
    """
    paragraph = _doc(documented).split("\n\n")[0]
    return _plain(re.split(r"(?<=\.)\s", " ".join(paragraph.split()), maxsplit=1)[0])


def parameter_docs(documented: Callable[..., object]) -> dict[str, str]:
    """Return the documentation of each parameter or attribute.

    It is read from the sections ``Args`` and ``Attributes`` of docstrings, and from strings right
    under fields.

    Args:
        documented: a function, or a class, whose base classes are read too.
    """
    owners = reversed(inspect.getmro(documented)[:-1]) if inspect.isclass(documented) else ()
    docs: dict[str, str] = {}
    for owner in owners:
        docs |= _section_items(_doc(vars(owner).get("__init__")))
        docs |= _section_items(_doc(owner))
        docs |= _texts_under_fields(owner)
    if not inspect.isclass(documented):
        docs = _section_items(_doc(documented))
    return {name: _plain(text) for name, text in docs.items()}


def _doc(documented: object) -> str:
    text = getattr(documented, "__doc__", None)
    return inspect.cleandoc(text) if isinstance(text, str) else ""


def _section_items(doc: str) -> dict[str, str]:
    items: dict[str, str] = {}
    in_section, name = False, ""
    for line in doc.splitlines():
        indent = len(line) - len(line.lstrip())
        item = _ITEM.fullmatch(line.strip())
        if line.strip() and indent == 0:
            in_section, name = _SECTION.fullmatch(line) is not None, ""
        elif in_section and indent == 4 and item:
            name = item[1]
            items[name] = item[2] or ""
        elif in_section and name:
            items[name] = f"{items[name]} {line.strip()}".strip()
    return items


def _texts_under_fields(owner: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    texts = {}
    for field, text in itertools.pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            value = text.value.value
            texts.update({field.target.id: value} if isinstance(value, str) else {})
    return texts


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())
