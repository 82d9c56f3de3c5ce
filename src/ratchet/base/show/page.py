"""The renderer of a report for the web: one file that opens offline and loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from ratchet.base.show.model import Column, Inline, ReportBlock, ResultReport, is_on, runs

if TYPE_CHECKING:
    from jinja2 import Environment

_TAGS = {"strong": "b", "code": "code"}


def render_page(report: ResultReport) -> str:
    """Return a report as HTML.

    All text is escaped. The page's own policy forbids loads, and every script but the one that
    sorts and filters tables, by its hash.
    """
    page = _environment().get_template("base.html")
    text, digest = _hashed("ratchet.base.show", "templates/tables.js")
    script = {"text": text, "hash": digest}
    return page.render(report=report, state=PageState(), script=script, **report.extras)


def render_in_notebook(report: ResultReport) -> str:
    """Return a report as a frame for a notebook's cell, where its style meets no other."""
    frame = Markup(
        '<iframe title="{}" sandbox="allow-scripts" srcdoc="{}" '
        'style="width: 100%; height: 520px; border: 0"></iframe>'
    )
    return frame.format(report.title or report.heading, render_page(report))


def render_badge(label: str, message: str, look: str) -> str:
    """Return an SVG badge for a README: its message is `yes` (green), `no` (red) or grey."""
    colour = {"yes": "#1f7a45", "no": "#b3261e"}.get(look, "#5d5d57")
    # Browsers stretch the text to the width that was reckoned here, whatever the font.
    left, right = (12 + round(6.4 * len(text)) for text in (label, message))
    badge = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        'aria-label="{label}: {message}"><title>{label}: {message}</title>'
        '<rect width="{width}" height="20" rx="4" fill="#3a3a36"/>'
        '<path d="M{left} 0h{inner}a4 4 0 0 1 4 4v12a4 4 0 0 1-4 4h-{inner}z" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        '<text x="6" y="14" textLength="{label_width}">{label}</text>'
        '<text x="{at}" y="14" textLength="{message_width}">{message}</text></g></svg>\n'
    )
    return badge.format(
        width=left + right,
        label=label,
        message=message,
        left=left,
        inner=right - 4,
        colour=colour,
        label_width=left - 12,
        at=left + 6,
        message_width=right - 12,
    )


@dataclass(kw_only=True, slots=True)
class PageState:
    """The head's knowledge of the tables in the page's body."""

    stacks: dict[tuple[str, ...], int] = field(default_factory=dict)
    """The titles of the columns of each table, and the number of their style rules."""
    sorts: bool = False  # True if a table sorts and filters, which takes a script

    def stack(self, columns: Sequence[Column]) -> int:
        """Return the number of the style rules that name these columns."""
        titles = tuple(column.title for column in columns)
        return self.stacks.setdefault(titles, len(self.stacks))

    def sorting(self) -> str:
        """Note that a table sorts and filters."""
        self.sorts = True
        return ""

    def rules(self) -> Markup:
        """Return the rules that name each cell's column on a narrow screen.

        A row is a block there. Its first cell is its title and has no name.
        """
        return Markup("\n").join(
            Markup(
                f'[data-stack="{key}"] > tbody > tr > :nth-child({place}) '
                f'{{ --column: "{css_text(title)}"; }}'
            )
            for titles, key in self.stacks.items()
            for place, title in enumerate(titles, 1)
            if place > 1 and title
        )


def css_text(title: str) -> str:
    """Write a title for a string in a style rule: nothing in it may end the string or the rule."""
    return "".join(
        one if one.isascii() and (one.isalnum() or one in " ,.-") else f"\\{ord(one):x} "
        for one in title
    )


def markup(content: Inline) -> Markup:
    """Return a text with its looks; all of it is escaped."""
    return Markup("").join(_run(run.text, run.look, run.full, run.href) for run in runs(content))


def _run(text: str, look: str, full: str, href: str) -> Markup:
    shown = escape(text)
    if not look and not full and not href:
        return shown
    tag, classes = _TAGS.get(look, "span"), "" if look in _TAGS else look
    marks = Markup(' class="{}"').format(classes) if classes else Markup("")
    if href:
        tag, marks = "a", marks + Markup(' href="{}"').format(href)
    if full:
        marks += Markup(' title="{}"').format(full)
    return Markup("<{tag}{marks}>{shown}</{tag}>").format(tag=tag, marks=marks, shown=shown)


def _shown(blocks: Sequence[ReportBlock]) -> list[ReportBlock]:
    return [block for block in blocks if is_on(block, "page")]


def _slug(title: str) -> str:
    return "-".join("".join(one if one.isalnum() else " " for one in title.lower()).split())


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # a terminal needs none of it

    environment = Environment(
        loader=PackageLoader("ratchet.base.show", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(markup=markup, shown=_shown, slug=_slug)
    return environment


def own_script(package: str, name: str) -> dict[str, object]:
    """Return the extras of a page with a script of its own: the script, and what allows it."""
    text, digest = _hashed(package, name)
    return {
        "policy": f"script-src '{digest}'",
        "tail": Markup("<script>{}</script>").format(text),
    }


@cache
def _hashed(package: str, name: str) -> tuple[Markup, str]:
    """Return a script, and its hash for the policy (CSP 2, script-src)."""
    text = resources.files(package).joinpath(name).read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"sha256-{digest}"
