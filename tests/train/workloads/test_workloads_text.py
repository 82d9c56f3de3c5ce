from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratchet.base.errors import WorkloadError
from ratchet.base.text import file_text, sources_of, standard_library_text, tokens_of
from ratchet.train.workloads.family import Windows
from ratchet.train.workloads.load import load

TEXT = standard_library_text(60_000)


def test_the_standard_library_is_real_text_and_ends_where_it_is_cut() -> None:
    assert 50_000 < len(TEXT) <= 60_000
    assert "import" in TEXT
    assert standard_library_text(1000) == TEXT[:1000]


def test_the_text_is_every_source_but_the_tests_by_path(tmp_path: Path) -> None:
    for name in ("a/b.py", "a.py", "a/test/c.py", "b/a.py", "b/a/d.py", "z.txt", "test/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    wanted = [path for path in sorted(tmp_path.rglob("*.py")) if "test" not in path.parts]
    assert list(sources_of(tmp_path)) == wanted


def test_tokens_are_cached_and_the_same_from_the_cache(tmp_path: Path) -> None:
    made = tokens_of(TEXT, 300, tmp_path)
    cached = tokens_of(TEXT, 300, tmp_path)
    assert isinstance(cached, np.memmap)
    assert not isinstance(made, np.memmap)
    assert np.array_equal(made, cached)
    assert made.dtype == np.uint16
    assert made.max() < 300
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("pattern", ["*.npy", "*.sha256"])
@pytest.mark.parametrize("damage", [b"", b"not what it was", None])
def test_a_damaged_cache_is_made_again(tmp_path: Path, pattern: str, damage: bytes | None) -> None:
    made = tokens_of(TEXT, 300, tmp_path)
    (path,) = tmp_path.glob(pattern)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert np.array_equal(tokens_of(TEXT, 300, tmp_path), made)
    assert isinstance(tokens_of(TEXT, 300, tmp_path), np.memmap)


def test_one_flipped_bit_in_the_cache_is_seen(tmp_path: Path) -> None:
    made = tokens_of(TEXT, 300, tmp_path)
    (path,) = tmp_path.glob("*.npy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert np.array_equal(tokens_of(TEXT, 300, tmp_path), made)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    assert len(tokens_of(TEXT, 300, blocked)) > 0


def test_other_texts_and_vocabularies_have_their_own_tokens(tmp_path: Path) -> None:
    tokens_of(TEXT, 300, tmp_path)
    tokens_of(TEXT, 301, tmp_path)
    tokens_of(TEXT + "x", 300, tmp_path)
    assert len(list(tmp_path.glob("*.sha256"))) == 3


def test_a_vocabulary_below_the_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="vocabulary 200 is too small"):
        tokens_of(TEXT, 200, tmp_path)


def test_any_text_file_can_be_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("The rain in Spain stays mainly in the plain. Ünïcödé too. " * 500)
    tokens, targets = load("llama-tiny", text=path).batch(3)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"too short", r"is too short: \d+ tokens, but windows of 65 need 130"),
        (b"", "is too short: 0 tokens"),
        (b"\x89PNG\r\n\x1a\n" * 1000, "is not UTF-8"),
        (b"a\0b" * 1000, "is binary"),
    ],
)
def test_a_text_that_cannot_be_used_is_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=message) as caught:
        load("llama-tiny", text=path)
    assert "bad.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_a_missing_text_or_a_folder_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(WorkloadError, match=r"cannot be read|is a folder"):
        load("llama-tiny", text=tmp_path / name)


def test_a_character_that_the_limit_cuts_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("äöü" * 100, encoding="utf-8")
    assert file_text(path, limit_bytes=101) == ("äöü" * 100)[:50]


@given(
    size=st.integers(10, 500),
    length=st.integers(1, 10),
    batch_size=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    index=st.integers(0, 10**6),
)
def test_windows_are_pieces_of_the_text(
    size: int, length: int, batch_size: int, seed: int, index: int
) -> None:
    windows = Windows(
        tokens=np.arange(size, dtype=np.uint16), batch_size=batch_size, length=length, seed=seed
    )
    found = windows(index)
    assert found.shape == (batch_size, length)
    assert (found[:, 0] >= 0).all() and (found[:, -1] < size).all()
    assert (np.diff(found, axis=1) == 1).all()
    assert np.array_equal(found, windows(index))
