"""Tables on a narrow screen: row by row, each cell behind the name of its column.

A page runs no script of its own, so the names stand in style rules; stack.css uses them.
"""

from __future__ import annotations

import re
from html import unescape

from markupsafe import Markup

_TABLE = re.compile(r"<table([^>]*)>(\s*<thead>(.*?)</thead>)", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def stacked(page: str) -> Markup:
    """Return a page's markup with the style rules that name every column of its tables.

    The first column has no name on a narrow screen: it is the row's title.
    """
    known: dict[tuple[str, ...], int] = {}

    def number(found: re.Match[str]) -> str:
        names = tuple(_TAG.sub("", one).strip() for one in _HEADING.findall(found[3]))
        key = known.setdefault(names, len(known))
        return f'<table data-stack="{key}"{found[1]}>{found[2]}'

    text = _TABLE.sub(number, page)
    rules = "\n".join(_rule(key, names) for names, key in known.items())
    return Markup(f"<style>\n{rules}\n</style>\n{text}" if known else text)


def _rule(key: int, names: tuple[str, ...]) -> str:
    return "\n".join(
        f'[data-stack="{key}"] > tbody > tr > :nth-child({place}) '
        f'{{ --column: "{_css_text(unescape(name))}"; }}'
        for place, name in enumerate(names, 1)
        if place > 1 and name
    )


def _css_text(name: str) -> str:
    """Write a name for a string in a style rule: nothing in it may end the string or the rule."""
    return "".join(
        one if one.isascii() and (one.isalnum() or one in " ,.-") else f"\\{ord(one):x} "
        for one in name
    )
