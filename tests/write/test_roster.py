"""Who may write: our own authors, and those that other packages add by an entry point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.base.errors import RatchetError
from ratchet.write.roster import Setting, make_roster
from ratchet.write.writing_result import WritingRequest, parse_authors

OTHER_AUTHOR = """
class Echo:
    def __init__(self, name):
        self.name = name

    def propose(self, progress, count):
        return []


def make(setting):
    return Echo(f"echo:{setting.argument}")
"""


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_author.py").write_text(OTHER_AUTHOR)
    (tmp_path / "other-1.0.dist-info").mkdir()
    (tmp_path / "other-1.0.dist-info" / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (tmp_path / "other-1.0.dist-info" / "entry_points.txt").write_text(
        "[ratchet.authors]\necho = other_author:make\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def setting(*authors: str) -> Setting:
    nothing: Any = None
    request = WritingRequest(authors=authors)
    return Setting(run="1", problem=nothing, request=request, book=nothing, device=nothing)


@pytest.mark.usefixtures("other_package")
def test_another_package_may_add_an_author() -> None:
    assert parse_authors("search,echo:loud", has_agent=False) == ("search", "echo:loud")
    roster = make_roster(setting("echo:loud"), proven=[])
    assert [one.name for one in roster.authors] == ["echo:loud"]


@pytest.mark.usefixtures("other_package")
def test_an_unknown_authors_error_lists_ours_and_those_of_other_packages() -> None:
    with pytest.raises(RatchetError, match=r"'oracle'.*library.*policy:FOLDER, echo$"):
        parse_authors("oracle", has_agent=False)
    with pytest.raises(RatchetError, match="unknown author 'oracle'"):
        make_roster(setting("oracle"), proven=[])
