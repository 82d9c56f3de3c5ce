"""A git repository made by a test, one of whose commits makes its program slower."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROGRAM = """\
import hashlib, os, sys
work = {work}
count = 0
if os.environ.get("COUNTER"):  # so that noise differs from run to run, and no clock decides
    with open(os.environ["COUNTER"], "a+") as file:
        file.seek(0)
        count = len(file.read())
        file.write(".")
digest = hashlib.sha256(f"{{count}} {seed}".encode()).digest()
noise = sum(digest[:12]) / (12 * 127.5) - 1
print("steps:", work * (1 + 0.2 * noise))
"""


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def make_repository(
    folder: Path, *, commits: int, slow_at: int, factor: float = 1.1, broken: tuple[int, ...] = ()
) -> list[str]:
    """Make commits 0 to `commits` - 1; return their hashes. `broken` ones do not build."""
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    made = []
    for index in range(commits):
        work = 1000.0 * (factor if index >= slow_at else 1.0)
        (folder / "program.py").write_text(PROGRAM.format(work=work, seed=index))
        (folder / "build.sh").write_text("exit 1\n" if index in broken else "echo built >> log\n")
        git(folder, "add", "-A")
        git(folder, "commit", "--quiet", "-m", f"change {index}")
        made.append(git(folder, "rev-parse", "HEAD"))
    return made
