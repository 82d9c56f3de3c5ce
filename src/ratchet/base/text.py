"""Turn real text into tokens: the standard library's sources, or any text file.

Every Python installation contains the standard library, so the text needs no download and no
licence beyond Python's. A byte-pair tokenizer is trained on the text once. Only the tokens are
cached. If the package `tokenizers` is not installed, a token is a byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.base.errors import WorkloadError
from ratchet.base.files import cache_folder, why_not_file, write_whole

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LOG = logging.getLogger(__name__)

TEXT_LIMIT_BYTES = 4_000_000
"""Maximum text size: a million tokens, in 3 s. With 20 MB a first run waited 16 s for them, and a
step takes as long."""
SMALL_TEXT_BYTES = 1_000_000  # Text size for the shrunk copies, which tokenizes in half a second
CHUNK_CHARACTERS = 100_000
BYTE_SYMBOLS = 256
NOT_OURS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})

Tokens = NDArray[np.unsignedinteger]


def standard_library_text(limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """Return the standard library's sources, without tests, sorted by path."""
    root = Path(sysconfig.get_path("stdlib"))
    parts: list[bytes] = []
    size_bytes = 0
    for path in sources_of(root):
        parts.append(path.read_bytes())
        size_bytes += len(parts[-1])
        if size_bytes >= limit_bytes:
            break
    return b"".join(parts)[:limit_bytes].decode("utf-8", errors="replace")


def sources_of(folder: Path) -> Iterator[Path]:
    """Yield a folder's Python files in the order of their paths, without entering `NOT_OURS`."""
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name in NOT_OURS:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from sources_of(Path(entry.path))
        elif entry.name.endswith(".py"):
            yield Path(entry.path)


def file_text(path: Path, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """Return the first `limit_bytes` of a UTF-8 text file; raise WorkloadError if it is not one."""
    if why := why_not_file(path):
        raise WorkloadError(f"text {str(path)!r} {why}; give the path of a text file")
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes)
    except OSError as error:
        raise WorkloadError(
            f"text {str(path)!r} cannot be read ({error.strerror}); give the path of a text file"
        ) from None
    # Our limit may cut the last character. An error anywhere before that is the file's.
    try:
        text = data.decode("utf-8") if len(data) < limit_bytes else _decode_cut(data)
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"text {str(path)!r} is not UTF-8 (byte {error.start}); give a plain text file"
        ) from None
    if "\0" in text:
        raise WorkloadError(f"text {str(path)!r} is binary; give a plain text file")
    return text


def _decode_cut(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:
            raise
        return data[: error.start].decode("utf-8")


def tokens_of(text: str, vocabulary: int, cache: Path | None = None) -> Tokens:
    """Return `text` as ids under `vocabulary`, memory-mapped from the cache.

    A missing or damaged cache entry is rebuilt. `vocabulary` includes the 256 byte symbols, so it
    is at least 257. Short text may use fewer ids, and without the package `tokenizers` all text
    uses 256: its bytes.
    """
    if vocabulary <= BYTE_SYMBOLS:
        raise WorkloadError(f"vocabulary {vocabulary} is too small; use more than {BYTE_SYMBOLS}")
    if importlib.util.find_spec("tokenizers") is None:
        LOG.warning("tokens are bytes: pip install 'torch-ratchet[hf]' for byte pairs")
        return np.frombuffer(text.encode(), np.uint8)
    import tokenizers

    folder = cache or cache_folder("text")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    key = f"{digest}-{vocabulary}-tokenizers{tokenizers.__version__}"
    seal = folder / f"{key}.sha256"
    found = _cached_tokens(folder, seal)
    if found is not None:
        return found
    tokens = _encode(train_bytes(_chunks(text), vocabulary), text, vocabulary)
    _store(folder, seal, tokens)
    return tokens


def _chunks(text: str) -> Iterator[str]:
    for start in range(0, len(text), CHUNK_CHARACTERS):
        yield text[start : start + CHUNK_CHARACTERS]


def train_bytes(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-pair tokenizer; needs the package `tokenizers`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _encode(tokenizer: Tokenizer, text: str, vocabulary: int) -> Tokens:
    kind = np.uint16 if vocabulary <= 2**16 else np.uint32
    encoded = tokenizer.encode_batch(list(_chunks(text)))
    if not encoded:
        return np.empty(0, kind)
    return np.concatenate([np.asarray(part.ids, kind) for part in encoded])


def _cached_tokens(folder: Path, seal: Path) -> Tokens | None:
    """Return the tokens whose hash is in the seal; None if either file is missing or damaged."""
    try:
        digest = seal.read_text().strip()
        path = folder / f"{digest}.npy"
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return None
        tokens: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return tokens


def _store(folder: Path, seal: Path, tokens: Tokens) -> None:
    """Write the tokens under their own hash, then the seal, so no reader sees half of either.

    A cache that cannot be written is not an error; the tokens are then rebuilt each time.
    """
    buffer = io.BytesIO()
    np.save(buffer, tokens)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{digest}.npy", buffer.getvalue())
        write_whole(seal, digest.encode())
