"""Help texts come from where the options are documented."""

from dataclasses import dataclass

from rl_command.options import first_sentence, parameter_docs


@dataclass
class Base:
    """Options of many things.

    Attributes:
        rate: how fast, above 0;
            ``0`` stops it.
        size (int): how large.

    Raises:
        ValueError: never.
    """

    rate: float = 1.0
    size: int = 3


@dataclass
class Special(Base):
    """Options of one thing. It has more.

    Attributes:
        depth: How deep, at least 1.
        size: How large `it` is.
    """

    depth: int = 2
    size: int = 4


def build(width: int, *, height: int = 2) -> None:
    """Build something.

    Args:
        width: in metres.
        height: in metres: up.

    Returns:
        width: this is no parameter.
    """


class Built:
    """Built from parameters.

    Args:
        width: in feet.
    """

    def __init__(self, width: int = 3, height: int = 4) -> None:
        """Build it.

        Args:
            height: in inches.
        """


def test_sections_of_a_class_and_its_bases_are_read() -> None:
    assert parameter_docs(Base) == {
        "rate": "how fast, above 0; 0 stops it.",
        "size": "how large.",
    }
    assert parameter_docs(Special) == {
        "rate": "how fast, above 0; 0 stops it.",
        "size": "How large it is.",
        "depth": "How deep, at least 1.",
    }


def test_functions_and_constructors_are_read() -> None:
    assert parameter_docs(build) == {"width": "in metres.", "height": "in metres: up."}
    assert parameter_docs(Built) == {"width": "in feet.", "height": "in inches."}


def test_the_first_sentence_stands_for_the_whole() -> None:
    assert first_sentence(Special.__doc__ or "") == "Options of one thing."
    assert first_sentence("") == ""
