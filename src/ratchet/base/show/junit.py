"""JUnit's XML, which CI services read: cases of a suite, with what they found.

The elements are those of the Jenkins xUnit plugin's junit-10.xsd.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

Kind = Literal["failure", "error", "skipped"]
_COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 (section 2.2) has in no form: a control character, a surrogate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JunitOutcome:
    """Something that a case tells: why it failed, could not run, or was skipped."""

    kind: Kind
    message: str
    type: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JunitCase:
    """One test case; it passed if nothing was found."""

    name: str
    classname: str
    found: Sequence[JunitOutcome] = ()
    time_s: float | None = None
    output: str = ""


def junit(suite: str, cases: Sequence[JunitCase]) -> bytes:
    """Return a suite as a document; a character that XML forbids is shown by its number."""
    counts = {
        plural: str(sum(any(one.kind == kind for one in case.found) for case in cases))
        for kind, plural in _COUNTS.items()
    }
    figures = {"tests": str(len(cases)), **counts}
    if times := [case.time_s for case in cases if case.time_s is not None]:
        figures["time"] = f"{sum(times):.3f}"
    root = ElementTree.Element("testsuites", {"name": readable(suite), **figures})
    inner = ElementTree.SubElement(root, "testsuite", root.attrib)
    for case in cases:
        element = ElementTree.SubElement(
            inner, "testcase", classname=readable(case.classname), name=readable(case.name)
        )
        if case.time_s is not None:
            element.set("time", f"{case.time_s:.3f}")
        for one in case.found:
            told = ElementTree.SubElement(element, one.kind, message=readable(one.message))
            if one.type:
                told.set("type", readable(one.type))
            told.text = readable(one.text) or None
        if case.output:
            ElementTree.SubElement(element, "system-out").text = readable(case.output)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def readable(text: str) -> str:
    """Return a text that XML can hold: U+001B stands as `\\x1b`."""
    return _FORBIDDEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
