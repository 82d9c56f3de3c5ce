"""Make a large profiler trace: repeat a small one with shifted times and ids.

    python benchmarks/trace/make_large_trace.py SMALL.json.gz LARGE.json --size-mb 275

Each copy starts where the previous one ended. Its correlation ids, external ids and flow ids are
unique, so links hold only inside a copy. The text around the events and the layout of each event do
not change.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARRAY_END = re.compile(
    rb"\}\s*\]\s*(\}\s*$|,\s*\"(schemaVersion|deviceProperties|distributedInfo|traceName|"
    rb"displayTimeUnit|baseTimeNanoseconds|INFO)\")"
)
_SHIFTED = re.compile(rb'"(ts|correlation|External id|Sequence number|id)": (\d+)')
_TIME = re.compile(rb'"ts": (\d+)')


def parts(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a trace into the text before its events, the events, and the text after them."""
    begin = _ARRAY.search(text)
    end = _ARRAY_END.search(text, begin.end()) if begin else None
    if begin is None or end is None:
        raise SystemExit("the small trace does not end like one of Kineto's: give another")
    return text[: begin.end()], text[begin.end() : end.start() + 1], text[end.start() + 1 :]


def copies(events: bytes) -> Iterator[bytes]:
    """Yield the events repeatedly, each time later and with new ids."""
    times = [int(found[1]) for found in _TIME.finditer(events)]
    length = max(times) - min(times) + 1_000_000
    ids = [int(found[2]) for found in _SHIFTED.finditer(events) if found[1] != b"ts"]
    stride = max((number for number in ids if number < 2**40), default=0) + 1
    yield events
    for number in itertools.count(1):
        move = functools.partial(_later, time=number * length, ids=number * stride)
        yield _SHIFTED.sub(move, events)


def _later(found: re.Match[bytes], time: int, ids: int) -> bytes:
    by = time if found[1] == b"ts" else ids
    return b'"%s": %d' % (found[1], int(found[2]) + by)


def write(small: Path, large: Path, size_bytes: int) -> int:
    """Write copies of `small` until `large` has `size_bytes`; return the number of copies."""
    text = small.read_bytes()
    if text[:2] == b"\x1f\x8b":
        text = gzip.decompress(text)
    header, events, footer = parts(text)
    opener = gzip.open if large.suffix == ".gz" else open
    with opener(large, "wb") as file:
        written, count = file.write(header), 0
        for copy in copies(events):
            if count:
                written += file.write(b",")
            written += file.write(copy)
            count += 1
            if written + len(copy) // 2 >= size_bytes:
                break
        file.write(footer)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("--size-mb", type=float, default=275.0)
    options = parser.parse_args()
    count = write(options.small, options.large, int(options.size_mb * 1e6))
    print(f"{options.large}: {count} copies, {options.large.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
