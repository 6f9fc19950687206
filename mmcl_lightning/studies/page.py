"""A report as one page that needs nothing beside it: Markdown as HTML, its pictures inside."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mmcl_lightning._options import check_installed

__all__ = ["check_page", "page_of"]

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1a1a1a; --faint: #5f5f5f; --line: #d0d0d0; --band: #f5f5f5;
}
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e6e6e6; --faint: #a8a8a8; --line: #3c4048; --band: #1f2228; }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem clamp(.75rem, 4vw, 2.5rem) 4rem; max-width: 1400px;
  background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
}
h1, h2, h3 { line-height: 1.25; margin: 2em 0 .6em; }
h1 { margin-top: 0; font-size: clamp(1.1rem, 6vw, 2rem); }
h2 { font-size: clamp(1rem, 5vw, 1.5rem); border-top: 1px solid var(--line); padding-top: 1em; }
ul { color: var(--faint); font-size: .9em; padding-left: 1.2em; }
.wide { display: block; overflow-x: auto; margin: 1em 0; }
table {
  border-collapse: collapse; font-size: .9em; font-variant-numeric: tabular-nums; overflow-wrap: normal;
}
th, td {
  padding: .35em .8em; text-align: right; vertical-align: bottom; border-bottom: 1px solid var(--line);
}
th { max-width: 14em; min-width: 5em; }
td { white-space: nowrap; background: var(--paper); }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 11em; }
tbody tr:nth-child(even) td { background: var(--band); }
img { display: block; max-width: 100%; height: auto; padding: 8px; background: #fff; border-radius: 6px; }
@media (max-width: 700px) { img { max-width: none; width: 640px; } }
"""
#: Nothing from elsewhere is loaded and nothing runs, whatever a record says.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def check_page() -> None:
    """Raise :class:`ConfigError` unless a page can be made."""
    check_installed("a report as a page", "markdown_it", "report", "markdown-it-py")


def page_of(text: str, title: str, folder: Path) -> str:
    """Return a report as HTML, readable from narrow to wide and in light and dark.

    Args:
        text: The report in Markdown. HTML in it is shown as text.
        title: Of the window.
        folder: Where its pictures lie.
    """
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")

    def picture(tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        data = (folder / Path(unquote(str(tokens[index].attrs["src"]))).name).read_bytes()
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        what = html.escape(tokens[index].content)
        return f'<span class="wide"><img alt="{what}" src="{source}"></span>'

    rules: Any = reader.renderer
    rules.rules["image"] = picture
    rules.rules["table_open"] = lambda *_: '<div class="wide"><table>\n'
    rules.rules["table_close"] = lambda *_: "</table></div>\n"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            f"{reader.render(text)}</body>\n</html>\n",
        ]
    )
