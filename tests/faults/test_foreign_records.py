"""Records of strangers: a report shows what they say, as text, and ends in no traceback."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from records import record

from mmcl_lightning._text import markdown, plain
from mmcl_lightning.cli import main
from mmcl_lightning.errors import MMCLError
from mmcl_lightning.studies import pictures, write_report

MARKUP = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</td></table><h1>x</h1>", "<!-- hidden",
    "[x](javascript:alert(1))", "![x](https://example.org/x.png)", "[x]: javascript:alert(1)", "[x][y]",
    "<https://example.org>", "https://example.org", "www.example.org", "mail@example.org",
    "# heading", "\n\n# heading\n\n", "> quote", "- item", "1. item", "---", "===", "```code", "`x`",
    "*x*", "**x**", "_x_", "__x__", "~~x~~", "$x^2$", "a | b | c", "&lt;b&gt;", "&#60;b&#62;", "\\",
    "\\[x](y)", "[ ] task", "x](javascript:alert(1)) [y",
)  # fmt: skip
STEERING = ("\x1b[2J\x1b[31m", "\x07", "\x9b31m", "a\rb", "\u202eevil", "\u2028", "\ud800", "\x00")
NUMBERS = (1e308, -1e308, float("nan"), float("inf"), -float("inf"), 10**4000, 10**400, 2**63, -1, 0)
OTHERS = (None, True, [], {}, ["x"], {"a": {"b": 1}}, "", "a" * 100_000, {"class_path": "x.\ud800"})


def content(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps({"ledger": 1, **asdict(record(**changes))}))


def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value of a record can stand."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def put(whole: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(whole)
    part: Any = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return changed


def reported(folder: Path, *contents: dict[str, Any]) -> str:
    """The report of records, or the message of the error that says what is wrong with one."""
    for index, whole in enumerate((*contents, content(label="other", config_hash="x", config={"C": 3}))):
        (folder / str(index)).mkdir(exist_ok=True)
        (folder / str(index) / "ledger.json").write_text(json.dumps(whole))
    try:
        return write_report(folder, folder / "r.md", reference="other")
    except MMCLError as error:
        return str(error)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plot_curves", "plot_ends", "plot_watched"):
        monkeypatch.setattr(pictures, name, lambda *given: False)


@pytest.mark.usefixtures("no_plots")
def test_no_value_at_any_place_ends_in_a_traceback(tmp_path: Path) -> None:
    whole = content(arguments=["--x", "1"])
    paths = [path for path in places(whole) if path[0] != "ledger"]
    for path in paths:
        for value in (MARKUP[0], *STEERING, *NUMBERS, *OTHERS):
            changed = put(whole, path, value)
            text = reported(tmp_path, changed, {**changed, "seed": 7})
            (tmp_path / "r.md").write_text(text, encoding="utf-8", errors="surrogatepass")
            if text.startswith("# Results"):
                assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800]|<script", text), path


@pytest.mark.parametrize("value", [1e308, -1e308, 1e200, float("inf"), float("nan"), 2**62])
def test_curves_of_any_size_are_drawn(value: float, tmp_path: Path) -> None:
    curve = [[0.0, 0, 0.0, 0.5], [1.0, 10, value, value], [2.0, 20, value, value]]
    metrics = {name: {"curve": curve, "smaller_is_better": False} for name in ("knn/top1", "train/loss")}
    whole = {**content(label="\ud800$x_\x1b"), "metrics": metrics}
    negative = copy.deepcopy(whole)
    for metric in negative["metrics"].values():
        metric["curve"][2][3] = -value
    text = reported(tmp_path, whole, {**negative, "seed": 1})
    assert text.startswith("# Results")
    assert max(map(len, text.split())) < 60, "no number of 300 digits"
    assert (tmp_path / "r.png").exists()
    assert (tmp_path / "r_health.png").exists()


class Tags(HTMLParser):
    """Collects what is HTML in a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)


#: What a text must not become.
MEANING = {
    "html_inline", "html_block", "link_open", "image", "code_inline", "fence", "code_block", "s_open",
    "strong_open", "em_open", "hr", "blockquote_open", "ordered_list_open",
}  # fmt: skip


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("text", MARKUP)
def test_markup_is_shown_and_does_nothing(text: str, tmp_path: Path) -> None:
    given, expected = (parsed(word, tmp_path / str(index)) for index, word in enumerate((text, "word")))
    assert meanings(given) == meanings(expected)
    assert all(part.level == 0 for part in given if part.type in ("bullet_list_open", "heading_open"))
    visible = "".join(part.content if part.type == "text" else "\n" for part in given if not part.children)
    assert visible.count(" ".join(text.split())) >= 4, "method, data, protocol, machine"


def parsed(text: str, folder: Path) -> list[Any]:
    """The parts of a report on runs that say this text everywhere."""
    commonmark = MarkdownIt("commonmark", {"html": True})
    commonmark.enable(["table", "strikethrough"])
    whole = content()
    config = {"model": {"init_args": {"x": text}}, "data": {"init_args": {"batch_size": text}}}
    foreign = {
        **whole, "method": text, "config": config, "commit": text, "protocols": {"knn/top1": text},
        "hardware": dict.fromkeys(("cpu", "gpu", "torch"), text),
        "data": {"class": text, "folder": text, "prepared": text, "fingerprint": {text: text, "query": text}},
        "metrics": {**whole["metrics"], f"{text}/top1": whole["metrics"]["knn/top1"]},
    }  # fmt: skip
    folder.mkdir()
    shown = reported(folder, foreign, {**foreign, "status": f"failed: {text}", "label": text, "seed": 5})
    assert shown.startswith("# Results")
    return [part for block in commonmark.parse(shown) for part in (block, *(block.children or []))]


def meanings(parts: list[Any]) -> Counter[str]:
    return Counter(part.type for part in parts if part.type in MEANING)


@pytest.mark.parametrize("text", MARKUP)
def test_without_a_reader_of_markdown_nothing_of_html_and_links_is_left(text: str) -> None:
    line = markdown(text)
    assert Tags(line).found == []
    for pattern in (r"(?<!\\)\]\(", r"(?<!\\)`", r"(?<!\\)\*", r"(?<!\\)\|", r"^[#>]", r"://", r"(?<!\\)@"):
        assert not re.search(pattern, line), (pattern, line)
    assert "\n" not in line


def test_what_is_no_markup_stays_as_it_is() -> None:
    for text in (
        "k=20 T=0.07 cosine h",
        "train_loss, in [0, 1]",
        "a < b & c",
        "caf\u00e9 \u65e5\u672c",
        "~1",
    ):
        assert markdown(text) == text
    assert markdown("a" * 2000) == "a" * 1000 + "..."


@pytest.mark.parametrize("text", STEERING)
def test_the_terminal_is_not_steered(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain(text).isprintable()
    (tmp_path / "ledger.json").write_text(json.dumps(content(method=f"x{text}", status=f"failed: {text}")))
    monkeypatch.chdir(tmp_path)
    main(["report", "."])
    lines = capsys.readouterr().out.split("\n")
    assert lines == [plain(line) for line in lines]
    assert any(line.startswith("* x") for line in lines)
