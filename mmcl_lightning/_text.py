"""Text of strangers, such as names of files and what a record says, on a terminal and in Markdown."""

from __future__ import annotations

import re
import unicodedata
from typing import TextIO

__all__ = ["counted", "markdown", "plain", "plain_lines", "say"]

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, marks, halves of characters, ends of lines
_LONGEST = 1000  # characters
#: What Markdown reads as code, emphasis, maths, tables, HTML, entities, links, addresses, headings or lists.
_MARKUP = re.compile(
    r"[`*|$@]|~(?=~)|(?<=~)~|(?<![^\W_])_|_(?![^\W_])|\\(?=[^\w\s]|$)|&(?=[#\w])"
    r"|^\[|\](?=[(\[:])|(?<=:)/(?=/)|(?<=www)\.|^[#>]|^[-+=](?=\s|[-+=]|$)|(?<=^\d)[.)]"
)
_JOINERS = "\u200c\u200d"  # which writing needs


def plain(text: object) -> str:
    r"""Return a text in which everything that is not to be seen is written out, as ``\x1b``.

    Such are control characters, which steer a terminal, marks that turn the direction of writing, and halves
    of characters (lone surrogates), which cannot be printed: names of files that are no UTF-8 have some.

    Args:
        text: Anything.
    """
    return "".join(
        letter.encode("unicode_escape").decode()
        if unicodedata.category(letter) in _UNSEEN and letter not in _JOINERS
        else letter
        for letter in str(text)
    )


def plain_lines(text: object) -> str:
    """Return a text of several lines, each as :func:`plain` has it."""
    return "\n".join(map(plain, str(text).split("\n")))


def say(text: object = "", file: TextIO | None = None) -> None:
    """Print lines. All that the commands print goes through here: names and records are somebody else's.

    Args:
        text: Lines; of what may itself have some, such as the name of a file, :func:`plain` makes one.
        file: Where to; by default the standard output.
    """
    print(plain_lines(text), file=file, flush=True)


def counted(count: int, what: str) -> str:
    """Return ``"1 epoch"`` or ``"2 epochs"``.

    Args:
        count: How many.
        what: Of what, in the singular; the plural adds an s.
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def markdown(text: object) -> str:
    r"""Return a text in one line in which nothing is markup: Markdown shows it as it is.

    Everything that a report takes from a record goes through here; a record may be somebody else's.

    Args:
        text: Anything; of more than 1000 characters the first are shown.
    """
    line = plain(" ".join(str(text).split()))
    line = line if len(line) <= _LONGEST else line[:_LONGEST] + "..."
    # Not every reader of Markdown takes a backslash before what begins HTML.
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", _MARKUP.sub(r"\\\g<0>", line))
