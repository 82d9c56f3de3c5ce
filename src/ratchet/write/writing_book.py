"""Runs of `ratchet write` in the ledger: their starts and ends, and every answer of the judge."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Literal

import msgspec

from ratchet.base.errors import LedgerError
from ratchet.base.ledger.schema import Fingerprint, Payload
from ratchet.base.ledger.store import Ledger
from ratchet.base.serialise import document_of
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.revision import revision
from ratchet.write.author import Answer
from ratchet.write.search import Earlier

Ended = Literal["", "finished", "interrupted", "failed"]


class WritingOptions(msgspec.Struct, frozen=True, kw_only=True):
    budget_s: float
    seed: int
    authors: tuple[str, ...]
    judge: str  # The judge's revision: answers of another one do not count
    device: str = "auto"


class WritingRun(msgspec.Struct, frozen=True, kw_only=True):
    run: str  # Its identity: 32 hex digits
    problem_hash: str
    name: str
    started_at: str
    options: WritingOptions
    ended: Ended = ""  # Empty for a run that goes on, or was killed


class WritingBook:
    """The writing runs of one device and software in a ledger, under this revision of the judge."""

    def __init__(self, ledger: Ledger, fingerprint: Fingerprint) -> None:
        self.ledger = ledger
        self._here = fingerprint

    def start(self, problem: Problem, options: WritingOptions) -> str:
        """Append the start of a run, with its problem; return the run's identity."""
        run, key = uuid.uuid4().hex, problem.hash
        self.ledger.record_problem(key, problem.name, problem.as_json(), fingerprint=self._here)
        self._event(run, "started", key, problem.name, document_of(options))
        return run

    def end(self, run: str, event: Ended, result: Mapping[str, object]) -> None:
        started = self.run(run)
        self._event(run, event, started.problem_hash, started.name, result)

    def add(self, run: str, answer: Answer, problem_hash: str) -> None:
        """Append one answer; its kernel is stored once."""
        ledger, kernel = self.ledger, answer.kernel
        ledger.record_kernel(kernel.hash, kernel.name, kernel.as_json(), fingerprint=self._here)
        row = {"problem_hash": problem_hash, **answer.as_json()}
        ledger.append_writing_answer(run, row, fingerprint=self._here)

    def answers(self, run: str) -> list[Answer]:
        found = []
        for row in self.ledger.writing_answers(run=run):
            kernel = self.kernel(row["kernel_hash"]).as_json()
            found.append(msgspec.convert({**row, "kernel": kernel}, Answer))
        return found

    def earlier(self, author: str) -> list[Earlier]:
        """Return the schedules that an author's runs here timed, with their features."""
        return [
            Earlier(
                problem=row["problem_hash"],
                kernel=row["kernel_hash"],
                schedule=tuple((name, value) for name, value in row["schedule"]),
                features=tuple(row["features"]),
                time_s=row["time_s"],
                right=row["status"] == "screened",
            )
            for row in self.ledger.writing_answers(fingerprint=self._here)
            if row["author"] == author and row["features"] and row["time_s"]
        ]

    def kernel(self, hash: str) -> Kernel:
        """Return the kernel of an answer.

        Raises LedgerError: the ledger does not hold it.
        """
        found = self.ledger.kernel(hash)
        if found is None:
            raise LedgerError(
                f"the ledger {self.ledger.place} holds no kernel {hash[:12]}: "
                "run without --resume to start anew"
            )
        return Kernel.from_json(found)

    def run(self, run: str) -> WritingRun:
        """Return a run by its identity, or by the first digits of it.

        Raises LedgerError: no run, or more than one, has this identity.
        """
        found = [one for one in self._runs() if one.run.startswith(run)] if run else []
        if len(found) != 1:
            many = "more than one writing run" if found else "no writing run"
            raise LedgerError(
                f"the ledger {self.ledger.place} holds {many} {run!r}: "
                "give the identity that result.json has under run"
            )
        return found[0]

    def unfinished(self, problem_hash: str) -> WritingRun | None:
        """Return a problem's newest run if it was killed or interrupted."""
        runs = [one for one in self._runs(problem_hash) if one.options.judge == revision()]
        return runs[-1] if runs and runs[-1].ended in ("", "interrupted") else None

    def largest_budget_s(self, problem_hash: str) -> float:
        """Return the largest budget of a finished run on a problem; 0 without one."""
        runs = [one for one in self._runs(problem_hash) if one.options.judge == revision()]
        return max((one.options.budget_s for one in runs if one.ended == "finished"), default=0.0)

    def proven(self, problem_hash: str) -> list[tuple[Kernel, Payload]]:
        """Return every kernel that is proven for a problem here, with its verdict."""
        verdicts = self.ledger.proven_kernels(problem_hash, self._here, judge=revision())
        return [(self.kernel(one["kernel_hash"]), one) for one in verdicts]

    def best_of_region(
        self, name: str, problem_hash: str, *, language: str | None
    ) -> Kernel | None:
        """Return the kernel of a region to try on one of its problems; None without a proven one.

        A region's name has its key: other values of it make another problem. A kernel proven on
        this problem comes first, then the one with the highest lower end. Only one is to be tried:
        the best of several verdicts looks faster than it is.
        """
        found: list[tuple[bool, float, Kernel]] = []
        for one in self.ledger.proven_problems(self._here).get(name, ()):
            for kernel, verdict in self.proven(one):
                ratio = (verdict.get("speedup") or {}).get("vs_reference")
                if language in (None, kernel.language):
                    found.append(
                        (one == problem_hash, float(ratio["low"]) if ratio else 0.0, kernel)
                    )
        return max(found, key=lambda one: one[:2])[2] if found else None

    def _runs(self, problem_hash: str | None = None) -> list[WritingRun]:
        found: dict[str, WritingRun] = {}
        for row in self.ledger.writing_runs(problem_hash=problem_hash):
            if (row.device, row.software) != (self._here["device"], self._here["software"]):
                continue
            if row.event == "started":
                found[row.run] = WritingRun(
                    run=row.run,
                    problem_hash=row.problem_hash,
                    name=row.name,
                    started_at=row.at,
                    options=msgspec.convert(row.payload, WritingOptions),
                )
            elif row.run in found:
                found[row.run] = msgspec.structs.replace(found[row.run], ended=row.event)
        return list(found.values())

    def _event(
        self, run: str, event: str, problem_hash: str, name: str, payload: Mapping[str, object]
    ) -> None:
        self.ledger.append_writing_run(
            run,
            event,
            problem_hash=problem_hash,
            name=name,
            payload=payload,
            fingerprint=self._here,
        )
