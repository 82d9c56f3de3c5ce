"""JUnit's XML: what CI counts, and characters that XML forbids."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from ratchet.base.show.junit import JunitCase, JunitOutcome, junit

CASES = (
    JunitCase(name="quick", classname="ratchet.watch", time_s=1.25, output="1.0 ms | 1.1 ms"),
    JunitCase(
        name="slow",
        classname="ratchet.watch",
        time_s=0.5,
        found=[JunitOutcome(kind="failure", message="slower: +9%")],
    ),
    JunitCase(
        name="two faults",
        classname="gfx942",
        found=[
            JunitOutcome(kind="failure", type="hazard", message="a", text="2 times"),
            JunitOutcome(kind="failure", type="bounds", message="b"),
        ],
    ),
    JunitCase(
        name="none", classname="ratchet.watch", found=[JunitOutcome(kind="skipped", message="why")]
    ),
)


def test_each_case_counts_once() -> None:
    root = ElementTree.fromstring(junit("ratchet watch", CASES))
    suite = root[0]
    for one in (root, suite):
        assert one.attrib == {
            "name": "ratchet watch",
            "tests": "4",
            "failures": "2",
            "errors": "0",
            "skipped": "1",
            "time": "1.750",
        }
    quick, slow, twice, _ = suite
    assert quick.attrib == {"classname": "ratchet.watch", "name": "quick", "time": "1.250"}
    assert [one.tag for one in quick] == ["system-out"]
    assert [one.get("message") for one in slow] == ["slower: +9%"]
    assert [(one.get("type"), one.text) for one in twice] == [
        ("hazard", "2 times"),
        ("bounds", None),
    ]
    assert "time" not in twice.attrib


def test_a_suite_without_times_has_none() -> None:
    assert "time" not in ElementTree.fromstring(junit("s", CASES[2:])).attrib


def test_forbidden_characters_are_shown_by_their_numbers() -> None:
    case = JunitCase(name="\x1b[31mred\x00", classname="c", output="\ud800 \ufffe\ttab")
    (read,) = ElementTree.fromstring(junit("s", [case]))[0]
    assert read.get("name") == r"\x1b[31mred\x00"
    assert read[0].text == "\\xd800 \\xfffe\ttab"


@given(st.text(st.characters(codec=None)))
def test_any_text_makes_a_document_that_is_read_back(text: str) -> None:
    case = JunitCase(
        name=text, classname=text, found=[JunitOutcome(kind="error", message=text, text=text)]
    )
    assert ElementTree.fromstring(junit(text, [case]))[0][0].tag == "testcase"
