"""The corpus: what to learn to answer, and the pretraining text that is replayed meanwhile."""

from __future__ import annotations

import hashlib
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ratchet.base import Json
from ratchet.base.errors import LearnError, WorkloadError
from ratchet.base.files import make_folder, write_whole
from ratchet.base.ledger.schema import Fingerprint, Payload
from ratchet.base.ledger.store import Ledger
from ratchet.base.serialise import encoded
from ratchet.base.text import file_text, standard_library_text
from ratchet.write.author import FAILED
from ratchet.write.knowledge.index import index_path, open_index
from ratchet.write.learn.bench import SCATTER, advantages
from ratchet.write.learn.languages import AnswerLanguage, schedule_text
from ratchet.write.learn.tasks import LearnTask, by_family, loop_summary

COLUMN: Final = "text"
PIECE: Final = 20_000  # Most characters of a document: a longer text becomes several
TEXT_BYTES: Final = 2_000_000  # Text of a dataset, or of what ships, at most
SUFFIXES: Final = frozenset({".txt", ".md", ".rst", ".py", ".cpp", ".hip", ".cu", ".h", ".hpp"})
"""Suffixes of the files that are read in a folder."""
ENDINGS: Final = ", ".join(sorted(SUFFIXES))


def documents(
    texts: Sequence[Path], datasets: Sequence[str], ledger: Ledger | None
) -> Iterator[str]:
    """Yield the documents of files, folders and datasets.

    Without any, yield those of `ratchet knowledge add`, the notes that ship and Python's sources.
    Raises LearnError: a file or a dataset cannot be read.
    """
    for name in datasets:
        yield from dataset_documents(name, TEXT_BYTES)
    if not texts and not datasets:
        with open_index(index_path(None if ledger is None else ledger.engine.url)) as index:
            yield from index.texts()
        whole = standard_library_text(TEXT_BYTES)
        yield from (whole[at : at + PIECE] for at in range(0, len(whole), PIECE))
        return
    for place in texts:
        files = [place]
        if place.is_dir():
            files = sorted(one for one in place.rglob("*") if one.suffix in SUFFIXES)
        for path in files:
            try:
                text = file_text(path)
            except WorkloadError as error:
                raise LearnError(str(error)) from error
            if text.strip():
                yield from (text[at : at + PIECE] for at in range(0, len(text), PIECE))


def check_texts(texts: Sequence[Path]) -> None:
    """Raise the LearnError of replay text that cannot be read or is none, before any other work."""
    if texts and not any(True for _ in documents(texts, (), None)):
        named = ", ".join(map(str, texts))
        raise LearnError(f"{named} holds no text: give a text file, or a folder of {ENDINGS} files")


def dataset_documents(name: str, most_bytes: int) -> Iterator[str]:
    """Yield the rows of a dataset's text column, `most_bytes` of them in all.

    `name` is `NAME[:COLUMN]`: a name on the hub, or a folder that `datasets` can read (Parquet,
    JSON lines, CSV, text). The column is `text` unless it is named. Rows are streamed, so a large
    dataset is not downloaded whole. The split is `train`, or the only one. Raises LearnError:
    `datasets` is not installed, or there is no such dataset or column.
    """
    place, _, column = name.partition(":")
    column = column or COLUMN
    left = most_bytes
    for row in _rows(place, name):
        if not isinstance(row.get(column), str):
            known = ", ".join(sorted(key for key, one in row.items() if isinstance(one, str)))
            raise LearnError(
                f"dataset {place!r} has no column of text {column!r}: name one of its columns "
                f"({known or 'none holds text'}), as in --dataset {place}:COLUMN"
            )
        text = row[column]
        for at in range(0, len(text), PIECE):
            piece = text[at : at + PIECE]
            left -= len(piece.encode())
            if left < 0:
                return
            if piece.strip():
                yield piece


def _rows(place: str, name: str) -> Iterator[dict[str, Json]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise LearnError(
            f"--dataset {name} needs the package datasets: pip install 'torch-ratchet[learn]'"
        ) from error
    try:
        splits = load_dataset(str(Path(place)) if Path(place).exists() else place, streaming=True)
        split = "train" if "train" in splits else next(iter(splits))
        yield from splits[split]
    except (OSError, ValueError, RuntimeError, StopIteration) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise LearnError(
            f"dataset {place!r} cannot be read ({why[:200]}): give a name on the hub, or a folder "
            "with Parquet, JSON lines, CSV or text files"
        ) from error


EXAMPLES, TEXT, CARD = "examples.jsonl", "replay.jsonl", "card.json"
HELD_OUT: Final = 0.1  # Share of the replayed documents that is held out, to measure forgetting on
NEAR_BEST: Final = 0.95  # Sources within this share of a problem's best count as its best
JUDGED_WEIGHT: Final = 4  # Weight of a judged answer beside a generated one
COMPARED: Final = 4
"""With this many right kernels of a problem, each is taught by its speed against the others."""
KNOWN_WELL: Final = 0.25
"""Once the judged kernels of this share of the problems can be compared, they alone are taught:
schedules drawn at random would teach slow ones again."""
RIGHT: Final = ("screened", "proven")


class TaughtAnswer(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """`proven`, `screened`: judged, from the ledger; `generated`: a triple of the generator's."""
    problem: str
    family: str
    prompt: str
    answer: str
    kernel: str = ""
    weight: int = 1  # Its weight beside the other answers to its problem
    worth: float = 1.0
    """Weight of its loss. Below 0, the answer was slower than others and is made less likely."""


class CorpusCard(msgspec.Struct, frozen=True, kw_only=True):
    hash: str
    counts: dict[str, int]
    duplicates: int
    hashes: dict[str, str]
    train: dict[str, list[str]]
    unseen: dict[str, list[str]]
    bytes: int  # Size of the replayed text


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    examples: tuple[TaughtAnswer, ...]
    text: tuple[str, ...]  # Documents to replay
    held_out: tuple[str, ...]
    card: CorpusCard


def build_corpus(
    tasks: Sequence[LearnTask],
    unseen: dict[str, list[str]],
    language: AnswerLanguage,
    *,
    ledger: Ledger | None,
    here: Fingerprint | None = None,
    texts: Sequence[Path] = (),
    datasets: Sequence[str] = (),
    draws: int = 24,
    seed: int = 0,
) -> Corpus:
    """Return the corpus of these problems: the ledger's kernels, and `draws` triples of each.

    Only what the device and software `here` measured counts. Kernels of unseen families are left
    out. Raises LearnError: no examples at all, or replay text that cannot be read.
    """
    pieces = list(dict.fromkeys(documents(texts, datasets, ledger)))
    if len(pieces) < 2:
        raise LearnError("the replay text is one document: give a folder of several with --text")
    known = [] if ledger is None else ledger.writing_answers(fingerprint=here)
    seen: set[str] = set()
    examples: list[TaughtAnswer] = []
    duplicates = 0
    failures: list[str] = []
    rows = {one.key: [row for row in known if row["problem_hash"] == one.key] for one in tasks}
    compared = {one.key: [*_compared(one, rows[one.key], language)] for one in tasks}
    well = sum(map(bool, compared.values())) >= KNOWN_WELL * len(tasks)
    for task in tasks:
        own, found = rows[task.key], compared[task.key]
        if not well:
            found = found or [*_best(task, own, language, ledger)]
            if language.name == "schedule":
                found += _generated(task, language, draws, seed)
        for one in found:
            if one.prompt + one.answer in seen:
                duplicates += 1
                continue
            seen.add(one.prompt + one.answer)
            examples.append(one)
        failures += _failures(task, own)
    if not examples:
        raise LearnError(
            "the corpus has no answer to learn: the ledger holds no proven kernel of these "
            "problems; run ratchet write on some first, or learn the language schedule"
        )
    random.Random(f"{seed} documents").shuffle(pieces)
    held = max(1, round(HELD_OUT * len(pieces)))
    # What is held out stays the same while the ledger, and so the failures, grow.
    text, held_out = (*pieces[held:], *dict.fromkeys(failures)), tuple(pieces[:held])
    hashes = {
        "examples": _digest(msgspec.json.encode(examples)),
        "text": _digest("\0".join(text).encode()),
        "held_out": _digest("\0".join(held_out).encode()),
    }
    counts = dict(Counter(one.kind for one in examples))
    card = CorpusCard(
        hash=_digest(json.dumps(hashes, sort_keys=True).encode()),
        counts=counts | {"failures": len(failures), "documents": len(text) + len(held_out)},
        duplicates=duplicates,
        hashes=hashes,
        train=by_family(tasks),
        unseen=unseen,
        bytes=sum(len(one.encode()) for one in text),
    )
    return Corpus(examples=tuple(examples), text=text, held_out=held_out, card=card)


def write_corpus(folder: Path, corpus: Corpus) -> None:
    """Write a corpus's folder; its card last."""
    make_folder(folder)
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in corpus.examples)
    write_whole(folder / EXAMPLES, lines)
    rows = [
        {"held_out": held, "text": one}
        for held, texts in ((False, corpus.text), (True, corpus.held_out))
        for one in texts
    ]
    write_whole(folder / TEXT, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    write_whole(folder / CARD, encoded(corpus.card, indent=2))


def read_corpus(folder: Path) -> Corpus:
    """Return the corpus of a folder; raise a LearnError if it holds none."""
    try:
        card = msgspec.json.decode((folder / CARD).read_bytes(), type=CorpusCard)
        examples = msgspec.json.Decoder(TaughtAnswer).decode_lines((folder / EXAMPLES).read_bytes())
        rows = msgspec.json.Decoder(dict).decode_lines((folder / TEXT).read_bytes())
    except (OSError, KeyError, msgspec.DecodeError) as error:
        raise LearnError(
            f"{str(folder)!r} holds no corpus: run ratchet learn corpus --out {folder}"
        ) from error
    return Corpus(
        examples=tuple(examples),
        text=tuple(str(one["text"]) for one in rows if not one["held_out"]),
        held_out=tuple(str(one["text"]) for one in rows if one["held_out"]),
        card=card,
    )


def _taught(task: LearnTask, language: AnswerLanguage, answer: str, **more: Any) -> TaughtAnswer:
    prompt = language.prompt(task)
    return TaughtAnswer(problem=task.name, family=task.family, prompt=prompt, answer=answer, **more)


def _best(
    task: LearnTask,
    rows: Sequence[Payload],
    language: AnswerLanguage,
    ledger: Ledger | None,
) -> Iterator[TaughtAnswer]:
    """Yield the answers that were nearly as fast as a problem's best, the proven ones first."""
    right = [row for row in rows if row["status"] in RIGHT and row["ratio"]]
    best = max((row["ratio"] for row in right), default=0.0)
    seen: set[object] = set()
    for row in sorted(right, key=lambda one: (one["status"] != "proven", -one["ratio"])):
        kind, kernel = str(row["status"]), str(row["kernel_hash"])
        slow = row["ratio"] < NEAR_BEST * best
        if kernel in seen or (slow and kind != "proven"):
            continue
        seen.add(kernel)
        answer = _answer(task, row, language, ledger)
        if answer is not None:
            yield _taught(task, language, answer, kind=kind, kernel=kernel, weight=JUDGED_WEIGHT)


def _compared(
    task: LearnTask, rows: Sequence[Payload], language: AnswerLanguage
) -> Iterator[TaughtAnswer]:
    """Yield the schedules of right kernels, with their speed against a problem's other kernels.

    A kernel's speed is the mean of its ratios' logarithms. Yields nothing for fewer than COMPARED
    kernels, or if they differ by no more than screenings scatter.
    """
    if language.name != "schedule":
        return
    ratios: dict[str, list[float]] = {}
    row_of: dict[str, Payload] = {}
    for row in rows:
        key, ratio = str(row["kernel_hash"]), row["ratio"] or 0.0
        if row["status"] in RIGHT and ratio > 0:
            ratios.setdefault(key, []).append(math.log(ratio))
            if row["status"] == "proven" or key not in row_of:
                row_of[key] = row
    if len(ratios) < COMPARED:
        return
    means = [statistics.fmean(own) for own in ratios.values()]
    for key, worth in zip(ratios, advantages(means, [SCATTER] * len(means)), strict=True):
        answer = _answer(task, row_of[key], language, None) if worth else None
        if answer is not None:
            kind, weight = str(row_of[key]["status"]), JUDGED_WEIGHT
            yield _taught(
                task, language, answer, kind=kind, kernel=key, weight=weight, worth=round(worth, 4)
            )


def _answer(
    task: LearnTask, row: Payload, language: AnswerLanguage, ledger: Ledger | None
) -> str | None:
    """Return a row's kernel as an answer; None if the language cannot express it."""
    if language.name == "schedule":
        answer = schedule_text(row.get("schedule") or ())
    else:
        found = None if ledger is None else ledger.kernel(str(row["kernel_hash"]))
        if found is None:
            return None
        answer = f"```{found['language']}\n{found['source']}```\n"
    return None if isinstance(language.read(task, answer), str) else answer


def _generated(
    task: LearnTask, language: AnswerLanguage, draws: int, seed: int
) -> Iterator[TaughtAnswer]:
    """Yield triples of problem, schedule and kernel, drawn at random, without their kernels."""
    source = random.Random(f"{seed} {task.key}")
    for schedule in [*task.space.first()[:1], *(task.space.draw(source) for _ in range(draws))]:
        yield _taught(task, language, schedule_text(schedule), kind="generated")


def _failures(task: LearnTask, rows: Iterable[Payload]) -> list[str]:
    """Return a document for each failure, with the judge's evidence."""
    found = []
    for row in rows:
        if row["status"] in FAILED:
            schedule = schedule_text(row.get("schedule") or ())
            evidence = " ".join(map(str, row.get("evidence") or ()))
            found.append(
                f"{loop_summary(task)}\n{schedule}\nThe judge: {row['status']}, "
                f"{row['reason']} {evidence}"[:2000]
            )
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
