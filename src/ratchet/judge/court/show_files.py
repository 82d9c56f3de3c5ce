"""Write a verdict's and a suite run's files: JSON, and pages that open offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratchet.base import files
from ratchet.base.serialise import document_of, json_text
from ratchet.judge.court.score import SuiteResult
from ratchet.judge.court.show import render_verdict_page
from ratchet.judge.court.show_suite import render_suite_page
from ratchet.judge.court.terms import JudgedKernel

VERDICTS = "verdicts"


def check_out(out: Path) -> None:
    """Refuse an unusable output folder before anything is judged."""
    files.check_new_folder(out)
    files.make_folder(out / VERDICTS)


def write_verdict(judged: JudgedKernel, out: Path) -> dict[str, str]:
    """Write a verdict's JSON and its page; return the paths by kind."""
    stem = _stem(judged)
    paths = {"verdict": out / VERDICTS / f"{stem}.json", "page": out / VERDICTS / f"{stem}.html"}
    _write(paths, document_of(judged), render_verdict_page(judged))
    return {kind: str(path) for kind, path in paths.items()}


def write_suite(result: SuiteResult, links: Mapping[str, str], out: Path) -> dict[str, str]:
    """Write a suite's table as JSON and as a page that links to the verdict pages."""
    stem = files.slug(f"{result.suite}-{result.candidate}")
    paths = {"table": out / f"{stem}.json", "page": out / f"{stem}.html"}
    relative = {name: Path(path).relative_to(out).as_posix() for name, path in links.items()}
    _write(paths, document_of(result), render_suite_page(result, relative))
    return {kind: str(path) for kind, path in paths.items()}


def _stem(judged: JudgedKernel) -> str:
    """Return a unique file name: the problem's name, then the first digits of both hashes."""
    hashes = (judged.verdict.problem_hash, judged.verdict.kernel_hash)
    return "-".join([files.slug(judged.problem.name), *(one[:8] for one in hashes)])


def _write(paths: Mapping[str, Path], document: Mapping[str, object], page: str) -> None:
    """Write a document and its page; the page's path comes second."""
    texts = (json_text(document, indent=1), page)
    named = zip(paths.values(), texts, strict=True)
    files.write_all({path: text.encode() for path, text in named})
