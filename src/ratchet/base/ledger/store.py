"""The ledger: append rows, and read the newest. No row is ever changed or deleted."""

from __future__ import annotations

import os
import stat
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict

from sqlalchemy import ColumnElement, Engine, Row, Select, Table, func, insert, select
from sqlalchemy.exc import IntegrityError

from ratchet.base.devices.probe import Device, Software, describe_device, software
from ratchet.base.errors import LedgerError, RatchetError
from ratchet.base.ledger import schema
from ratchet.base.ledger.connect import (
    check_place,
    connect,
    explained,
    file_of,
    resolve,
    shown,
    utc_now,
)
from ratchet.base.ledger.schema import Fingerprint, Payload, RecordedTurn
from ratchet.base.measure import Sample

_DISPROVEN = frozenset({"wrong", "cheating", "crashed", "timed_out", "refused"})
"""Verdicts on any one problem that forbid loading a kernel."""
WHOLE_S = 60.0
"""Time limit of a whole verdict: a time-out or a gap under a shorter one says nothing."""


class Ledger:
    """An open ledger. Every method raises a `LedgerError` of one line if the database fails.

    One object serves all threads of a process; after a fork, open another.
    """

    def __init__(self, engine: Engine, place: str = "") -> None:
        self.place = place or shown(engine.url)  # The file, or the URL without its password
        self.engine = engine  # The open database, for the ledger's other books: `exchanges`
        # Python 3.13 warns of a connection that is still open when a dropped ledger is collected.
        weakref.finalize(self, engine.dispose).atexit = False

    @classmethod
    def open(cls, url: str | os.PathLike[str] | None = None) -> Ledger:
        """Open the ledger at a path or URL; the default is `RATCHET_LEDGER`, then the data folder.

        LedgerError if it is locked, read-only, damaged, of a newer schema or not a ledger.
        """
        return cls(connect(resolve(url)))

    @classmethod
    def open_to_read(cls, url: str | os.PathLike[str] | None = None) -> Ledger:
        """Open a ledger for a command that shows what is there: no file and no folder is made.

        A ledger whose file is missing or empty holds nothing. LedgerError as `open`, also where
        none could be made.
        """
        found = resolve(url)
        file = file_of(found)
        is_empty = False
        if file is not None:
            try:
                there = file.stat()
                is_empty = stat.S_ISREG(there.st_mode) and there.st_size == 0
            except FileNotFoundError:
                is_empty = True
                check_place(file)
            except OSError:  # `connect` explains it
                pass
        if not is_empty:
            return cls(connect(found))
        return cls(connect(resolve("sqlite://")), str(file))

    def close(self) -> None:
        """Close the database; all appended rows are committed already."""
        self.engine.dispose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Evidence: a killed turn resumes from it.

    def remember(
        self, kind: str, key: str, payload: Mapping[str, object], *, fingerprint: Fingerprint
    ) -> None:
        """Append one piece of evidence; `recall` returns the newest of its kind and key."""
        self._append(schema.evidence, fingerprint, kind=kind, key=key, payload=payload)

    def recall(
        self, kind: str, key: str, *, fingerprint: Fingerprint | None = None, since: str = ""
    ) -> Payload | None:
        """Return the newest evidence of a kind and key; only this fingerprint's if one is given.

        Evidence from before `since` (UTC, ISO 8601) is left out.
        """
        table = schema.evidence
        matches = (table.c.kind == kind, table.c.key == key, table.c.at >= since)
        return self._newest(table, fingerprint, *matches)

    def newest_of(self, kind: str, *, fingerprint: Fingerprint) -> dict[str, Payload]:
        """Return the newest evidence of a kind from this device and software, by key."""
        table = schema.evidence
        rows = self._rows(table, fingerprint, table.c.kind == kind)
        return {row.key: row.payload for row in rows}

    # Descriptions of the machine, the problems and the kernels.

    def here(self, device: Device, versions: Software | None = None) -> Fingerprint:
        """Return the fingerprint of a device and its software, and store their descriptions.

        Commands take the fingerprints of their rows from here, so each one has a description. The
        software is this process's, unless another machine's `versions` are given.
        """
        versions = versions or software()
        found = Fingerprint(device=device.fingerprint, software=versions.fingerprint)
        kept: tuple[tuple[Table, ColumnElement[bool], Mapping[str, object]], ...] = (
            (schema.devices, schema.devices.c.device == found["device"], describe_device(device)),
            (schema.software, schema.software.c.software == found["software"], asdict(versions)),
        )
        for table, same, payload in kept:
            if self._newest(table, None, same) is None:
                self._append_once(table, found, payload=payload)
        return found

    def record_problem(
        self, hash: str, name: str, payload: Mapping[str, object], *, fingerprint: Fingerprint
    ) -> None:
        """Store a problem under its content's hash, once."""
        self._append_once(schema.problems, fingerprint, hash=hash, name=name, payload=payload)

    def record_kernel(
        self, hash: str, name: str, payload: Mapping[str, object], *, fingerprint: Fingerprint
    ) -> None:
        """Store a kernel under its hash, once; the payload holds its source."""
        self._append_once(schema.kernels, fingerprint, hash=hash, name=name, payload=payload)

    def problem(self, hash: str) -> Payload | None:
        return self._newest(schema.problems, None, schema.problems.c.hash == hash)

    def kernel(self, hash: str) -> Payload | None:
        return self._newest(schema.kernels, None, schema.kernels.c.hash == hash)

    # Verdicts.

    def record_verdict(self, verdict: Mapping[str, object], *, fingerprint: Fingerprint) -> None:
        """Append a verdict: a mapping with `kernel_hash`, `problem_hash`, `status` and the rest."""
        self._append(
            schema.verdicts,
            fingerprint,
            kernel_hash=verdict["kernel_hash"],
            problem_hash=verdict["problem_hash"],
            status=verdict["status"],
            payload=verdict,
        )

    def verdict(
        self,
        kernel_hash: str,
        problem_hash: str,
        fingerprint: Fingerprint,
        *,
        judge: str,
        target: str | None = None,
    ) -> Payload | None:
        """Return the newest verdict on a kernel for a problem, from this device and software.

        Also None if another revision of the judge gave it (`ratchet.judge.revision`). With a
        `target`, it is the newest by that GPU's machine code, and without one the newest that ran
        on this device: an emulated verdict says nothing of real hardware.
        """
        table = schema.verdicts
        kernel, problem = table.c.kernel_hash == kernel_hash, table.c.problem_hash == problem_hash
        query = _query(table, fingerprint, kernel, problem).order_by(table.c.id.desc())
        with explained(self.engine.url), self.engine.connect() as connection:
            for row in connection.execute(query):
                if _target_of(row.payload) == target:
                    return dict(row.payload) if _judge_of(row.payload) == judge else None
        return None

    def proven(self, kernel_hash: str, fingerprint: Fingerprint, *, judge: str) -> bool:
        """Return whether a kernel is proven for some problem here, and disproven for none.

        Only the newest verdict on each problem counts, from this device and software; one that a
        limit below WHOLE_S cut short does not, nor does an emulated one. A verdict of
        another revision of the judge does not count for it, since it may have come through a hole
        that is now closed. What another revision disproved stays disproved until it is judged
        again.
        """
        return self._stands(kernel_hash, fingerprint, judge, ("proven",))

    def right(self, kernel_hash: str, fingerprint: Fingerprint, *, judge: str) -> bool:
        """Return whether a kernel is right for some problem here, however fast; see `proven`."""
        return self._stands(kernel_hash, fingerprint, judge, ("proven", "correct"))

    def _stands(
        self, kernel_hash: str, fingerprint: Fingerprint, judge: str, statuses: Sequence[str]
    ) -> bool:
        table = schema.verdicts
        newest = {
            row.problem_hash: row
            for row in self._rows(table, fingerprint, table.c.kernel_hash == kernel_hash)
            if _counts(row.payload)
        }.values()
        if any(row.status in _DISPROVEN for row in newest):
            return False
        return any(row.status in statuses and _judge_of(row.payload) == judge for row in newest)

    # Turns, their samples and their recipes.

    def start_turn(
        self,
        workload: str,
        payload: Mapping[str, object] | None = None,
        *,
        fingerprint: Fingerprint,
        command: str = "optimize",
    ) -> str:
        """Append the start of a turn with its options; return its identity."""
        turn = uuid.uuid4().hex
        given = {"command": command, "workload": workload, "payload": payload or {}}
        self._append(schema.turns, fingerprint, turn=turn, event="started", **given)
        return turn

    def finish_turn(self, turn: str, payload: Mapping[str, object] | None = None) -> None:
        """Append the end of a turn, with its result; LedgerError if it was never started."""
        self._end_turn(turn, "finished", payload)

    @contextmanager
    def failing(self, turn: str) -> Iterator[None]:
        """Mark a turn as failed if its work raises a `RatchetError`: there is nothing to resume.

        A turn that is killed or interrupted, or whose ledger fails, stays unfinished.
        """
        try:
            yield
        except LedgerError:
            raise
        except RatchetError as error:
            self._end_turn(turn, "failed", {"error": str(error)})
            raise

    def turn(self, turn: str) -> RecordedTurn:
        """Return the turn of this identity, as it was started; LedgerError if there is none."""
        table = schema.turns
        rows = self._rows(table, None, table.c.turn == turn, table.c.event == "started")
        if not rows:
            raise LedgerError(f"the ledger {self.place} holds no turn {turn!r}; start one first")
        return _as_turn(rows[-1])

    def unfinished_turn(
        self, workload: str, *, fingerprint: Fingerprint | None = None, command: str = "optimize"
    ) -> RecordedTurn | None:
        """Return the newest turn of a workload, if it neither finished nor failed."""
        table = schema.turns
        rows = self._rows(
            table, fingerprint, table.c.workload == workload, table.c.command == command
        )
        started = [row for row in rows if row.event == "started"]
        ended = {row.turn for row in rows if row.event != "started"}
        if not started or started[-1].turn in ended:
            return None
        return _as_turn(started[-1])

    def last_finish(
        self, workload: str, *, fingerprint: Fingerprint | None = None
    ) -> tuple[str, Payload] | None:
        """Return when a workload's newest finished turn ended, and its result; None without one."""
        table = schema.turns
        of_it = (table.c.workload == workload, table.c.command == "optimize")
        rows = self._rows(table, fingerprint, *of_it, table.c.event == "finished")
        return (rows[-1].at, dict(rows[-1].payload or {})) if rows else None

    def turns_named(self, prefix: str) -> list[RecordedTurn]:
        """Return the turns whose identity starts with `prefix`, oldest first."""
        table = schema.turns
        named = table.c.turn.startswith(prefix, autoescape=True)
        return [_as_turn(row) for row in self._rows(table, None, named, table.c.event == "started")]

    def result_of(self, turn: str) -> Payload | None:
        table = schema.turns
        return self._newest(table, None, table.c.turn == turn, table.c.event == "finished")

    def verdicts_named(self, prefix: str) -> list[Payload]:
        """Return the verdicts on kernels whose hash starts with `prefix`, oldest first."""
        table = schema.verdicts
        named = table.c.kernel_hash.startswith(prefix, autoescape=True)
        return [dict(row.payload) for row in self._rows(table, None, named)]

    def record_measurements(
        self, turn: str, samples: Iterable[Sample], *, purpose: str = ""
    ) -> None:
        """Append raw samples in one transaction, all or none.

        `purpose` names the part of the turn: the baseline, a lever's screening, the proof.
        """
        fingerprint = self.turn(turn).fingerprint
        rows = [
            {"at": utc_now(), **fingerprint, "turn": turn, "purpose": purpose, **asdict(sample)}
            for sample in samples
        ]
        self.insert(schema.measurements, rows)

    def measurements(self, turn: str, *, purpose: str | None = None) -> list[Sample]:
        """Return a turn's raw samples in the order they were taken; of one purpose if given."""
        table = schema.measurements
        conditions = [table.c.turn == turn]
        if purpose is not None:
            conditions.append(table.c.purpose == purpose)
        names = Sample.__dataclass_fields__
        return [
            Sample(**{name: row._mapping[name] for name in names})
            for row in self._rows(table, None, *conditions)
        ]

    def record_recipe(self, turn: str, payload: Mapping[str, object]) -> None:
        """Append the recipe that a turn proved, under the turn's workload and fingerprint."""
        started = self.turn(turn)
        self._append(
            schema.recipes,
            started.fingerprint,
            turn=turn,
            workload=started.workload,
            payload=payload,
        )

    def proves_recipe(self, checksum: str, fingerprint: Fingerprint) -> bool:
        """Return whether a turn here proved the recipe with this checksum in its step."""
        table = schema.turns
        turns = {
            row.turn
            for row in self._rows(schema.recipes, fingerprint)
            if row.payload.get("checksum") == checksum
        }
        return any(
            row.event == "finished" and row.payload.get("recipe_is") == "proven"
            for row in self._rows(table, fingerprint, table.c.turn.in_(turns))
        )

    def recipe(self, workload: str, *, fingerprint: Fingerprint | None = None) -> Payload | None:
        """Return the newest recipe of a workload; only this fingerprint's if one is given."""
        table = schema.recipes
        return self._newest(table, fingerprint, table.c.workload == workload)

    # Runs of `ratchet write`; `authors.writing_book` gives their rows a form.

    def append_writing_run(
        self,
        run: str,
        event: str,
        *,
        problem_hash: str,
        name: str,
        payload: Mapping[str, object],
        fingerprint: Fingerprint,
    ) -> None:
        """Append an event of a writing run: `started`, `finished`, `interrupted` or `failed`."""
        values = {"run": run, "event": event, "problem_hash": problem_hash, "name": name}
        self._append(schema.writing_runs, fingerprint, **values, payload=payload)

    def append_writing_answer(
        self, run: str, payload: Mapping[str, object], *, fingerprint: Fingerprint
    ) -> None:
        """Append an answer: a mapping with the columns of `writing_answers` and the rest."""
        names = ("problem_hash", "kernel_hash", "author", "stage", "status")
        columns = {name: payload[name] for name in names}
        self._append(schema.writing_answers, fingerprint, run=run, **columns, payload=payload)

    def writing_runs(self, *, problem_hash: str | None = None) -> Sequence[Row[tuple[object, ...]]]:
        """Return the events of writing runs in their order, on one problem if it is given."""
        table = schema.writing_runs
        asked = [] if problem_hash is None else [table.c.problem_hash == problem_hash]
        return self._rows(table, None, *asked)

    def writing_answers(
        self, *, run: str | None = None, fingerprint: Fingerprint | None = None
    ) -> list[Payload]:
        """Return the answers of one run, or of all runs on a device with its software."""
        table = schema.writing_answers
        conditions = [] if run is None else [table.c.run == run]
        return [dict(row.payload) for row in self._rows(table, fingerprint, *conditions)]

    def proven_kernels(
        self, problem_hash: str, fingerprint: Fingerprint, *, judge: str
    ) -> list[Payload]:
        """Return the verdicts on the kernels that are proven for a problem now, the newest last."""
        table = schema.verdicts
        rows = self._rows(table, fingerprint, table.c.problem_hash == problem_hash)
        newest = {row.kernel_hash: row for row in rows if _counts(row.payload)}.values()
        return [
            dict(row.payload)
            for row in sorted(newest, key=lambda row: row.id)
            if row.status == "proven" and _judge_of(row.payload) == judge
        ]

    def proven_problems(self, fingerprint: Fingerprint) -> dict[str, list[str]]:
        """Return the hashes of the problems that a kernel was proven for here, by their names."""
        verdicts, problems = schema.verdicts, schema.problems
        query = (
            select(problems.c.name, problems.c.hash)
            .distinct()
            .join(verdicts, verdicts.c.problem_hash == problems.c.hash)
            .where(
                verdicts.c.status == "proven",
                verdicts.c.device == fingerprint["device"],
                verdicts.c.software == fingerprint["software"],
            )
        )
        found: dict[str, list[str]] = {}
        for row in self.read(query):
            found.setdefault(row.name, []).append(row.hash)
        return found

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        tables = schema.metadata.sorted_tables
        with explained(self.engine.url), self.engine.connect() as connection:
            return {
                table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in tables
            }

    # The only two operations on the database, for the ledger's other books too.

    def insert(self, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
        if not rows:
            return
        # The insert is the transaction's first statement, so it waits for another writer
        # instead of failing on a stale snapshot.
        with explained(self.engine.url), self.engine.begin() as connection:
            connection.execute(insert(table), list(rows))

    def _rows(
        self, table: Table, fingerprint: Fingerprint | None, *conditions: ColumnElement[bool]
    ) -> Sequence[Row[tuple[object, ...]]]:
        return self.read(_query(table, fingerprint, *conditions).order_by(table.c.id))

    def read(self, query: Select[tuple[object, ...]]) -> Sequence[Row[tuple[object, ...]]]:
        with explained(self.engine.url), self.engine.connect() as connection:
            return connection.execute(query).all()

    def _newest(
        self, table: Table, fingerprint: Fingerprint | None, *conditions: ColumnElement[bool]
    ) -> Payload | None:
        query = _query(table, fingerprint, *conditions).order_by(table.c.id.desc()).limit(1)
        rows = self.read(query)
        return dict(rows[0].payload) if rows else None

    def _append(self, table: Table, fingerprint: Fingerprint, **values: object) -> None:
        self.insert(table, [{"at": utc_now(), **fingerprint, **values}])

    def _append_once(self, table: Table, fingerprint: Fingerprint, **values: object) -> None:
        with suppress(IntegrityError):
            self._append(table, fingerprint, **values)

    def _end_turn(self, turn: str, event: str, payload: Mapping[str, object] | None) -> None:
        started = self.turn(turn)
        given = {"command": started.command, "workload": started.workload, "payload": payload or {}}
        self._append(schema.turns, started.fingerprint, turn=turn, event=event, **given)


def _query(
    table: Table, fingerprint: Fingerprint | None, *conditions: ColumnElement[bool]
) -> Select[tuple[object, ...]]:
    query = select(table).where(*conditions)
    if fingerprint is None:
        return query
    return query.where(
        table.c.device == fingerprint["device"], table.c.software == fingerprint["software"]
    )


def _judge_of(verdict: Payload) -> str | None:
    """Return the judge's revision that a verdict names; old verdicts name none."""
    found: str | None = verdict.get("environment", {}).get("judge")
    return found


def _target_of(verdict: Payload) -> str | None:
    """Return the GPU whose machine code was emulated, or None if the kernel ran as it is."""
    found: str | None = verdict.get("trial", {}).get("target")
    return found


def _counts(verdict: Payload) -> bool:
    """Return whether a verdict speaks for or against a kernel here: whole, and not emulated."""
    limit_s = verdict.get("trial", {}).get("time_limit_s", WHOLE_S)
    cut_short = verdict["status"] in ("timed_out", "unmeasured") and limit_s < WHOLE_S
    return _target_of(verdict) is None and not cut_short


def _as_turn(row: Row[tuple[object, ...]]) -> RecordedTurn:
    return RecordedTurn(
        turn=row.turn,
        command=row.command,
        workload=row.workload,
        started_at=row.at,
        payload=row.payload,
        fingerprint=Fingerprint(device=row.device, software=row.software),
    )
