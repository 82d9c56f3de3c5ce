"""The text of a PDF, page by page, read in a process of its own with limits.

A PDF comes from anywhere and may be built to exhaust its reader, so pypdf never runs in the process
that indexes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Final

from ratchet.authors.knowledge.section import Section
from ratchet.base.errors import KnowledgeError
from ratchet.base.process import watchdog

WORKER: Final = "ratchet.authors.knowledge.pdf_worker"
TIME_LIMIT_S: Final = 180.0


def pdf_sections(raw: bytes) -> list[Section]:
    """Return one section a page.

    Raises:
        KnowledgeError: it is encrypted, damaged, or takes too long or too much memory to read.
    """
    with tempfile.TemporaryFile() as given:
        given.write(raw)
        given.seek(0)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", WORKER],
                stdin=given,
                capture_output=True,
                timeout=TIME_LIMIT_S,
                env=watchdog.environment(dict(os.environ)),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KnowledgeError(f"took more than {TIME_LIMIT_S:g} s to read") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise KnowledgeError("cannot be read as a PDF: its reader died") from None
    if "why" in answer:
        raise KnowledgeError(str(answer["why"]))
    return [Section(place=f"page {page}", text=text) for page, text in answer["pages"]]
