r"""Let formulas keep their backslashes.

Markdown turns escapes such as ``\|`` into the plain character before the formula extension sees
them. Here formulas are found first, right after code.
"""

from re import Match
from xml.etree.ElementTree import Element

from l2m4m import LaTeX2MathMLExtension, LatexPattern
from latex2mathml import converter
from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig


class _Formula(LatexPattern):
    """Know the one operator that the converter does not."""

    def handleMatch(self, m: Match[str]) -> Element:  # noqa: N802, it is Markdown's name
        r"""Convert a formula, ``\arg\max`` included."""
        formula = m.group(2).replace(r"\arg\max", r"\operatorname{argmax}")
        return converter.convert_to_element(formula)


class Formulas(Extension):
    """Find formulas before escapes (priority 180) and after code (190)."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802, it is Markdown's name
        """Register the pattern of formulas."""
        pattern = _Formula(LaTeX2MathMLExtension._RE_LATEX)
        md.inlinePatterns.register(pattern, "latex-inline", 185)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the extension; called by MkDocs."""
    config.markdown_extensions.append(Formulas())
    return config
