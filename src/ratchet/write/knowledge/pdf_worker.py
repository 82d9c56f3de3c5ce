"""A process that reads the PDF on its standard input and prints its pages' texts as JSON."""

from __future__ import annotations

import io
import json
import logging
import resource
import sys
import warnings
from typing import Final

MEMORY_BYTES: Final = 3 << 30
CPU_TIME_S: Final = 150
MOST_PAGES: Final = 5_000
MOST_CHARACTERS: Final = 20_000_000


def read_pages(raw: bytes) -> dict[str, object]:
    """Return `pages`, a list of number and text, or `why` there are none."""
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError
    except ModuleNotFoundError:
        return {"why": "needs pypdf to be read: pip install 'torch-ratchet[write]'"}
    try:
        reader = PdfReader(io.BytesIO(raw))
        if reader.is_encrypted and not reader.decrypt(""):
            return {"why": "is encrypted: remove its password first"}
        pages: list[tuple[int, str]] = []
        left = MOST_CHARACTERS
        for number, page in enumerate(reader.pages, 1):
            if number > MOST_PAGES or left <= 0:
                break
            text = page.extract_text()[:left].encode("utf-8", "replace").decode()
            left -= len(text)
            pages.append((number, text))
    except MemoryError:
        return {"why": f"needs more than {MEMORY_BYTES >> 30} GiB of memory to be read"}
    except RecursionError:
        return {"why": "cannot be read as a PDF: it is nested too deeply"}
    except DependencyError:  # a cipher that pypdf leaves to another package
        return {"why": "is encrypted: remove its password first"}
    except Exception as error:  # the process boundary: the file is anybody's
        return {"why": f"cannot be read as a PDF ({' '.join(str(error).split())[:160]})"}
    return {"pages": pages}


def main() -> None:
    """Answer under limits on memory and CPU time."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_TIME_S, CPU_TIME_S))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    json.dump(read_pages(sys.stdin.buffer.read()), sys.stdout)


if __name__ == "__main__":
    main()
