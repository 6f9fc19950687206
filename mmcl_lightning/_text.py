"""Text of strangers, such as names of files and what a record says, on a terminal and in Markdown."""

from __future__ import annotations

import unicodedata

__all__ = ["plain"]

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, marks, halves of characters, ends of lines
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
