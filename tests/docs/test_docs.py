"""The docs and the README say what is there: links, tree, commands, levers, kernels."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from each_case import each

from ratchet.cli.commands import app
from ratchet.judge.kernels.library import LIBRARY
from ratchet.scale.parallel.levers import LEVERS as RANK_LEVERS
from ratchet.train.levers import LEVERS
from ratchet.train.workloads.hf_config import trained_types
from ratchet.train.workloads.names import SIZES, known

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "README.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@each(PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_every_room_stands_in_the_tree_and_every_page_in_the_index() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = [p.name for p in (ROOT / "src" / "ratchet").iterdir() if (p / "__init__.py").exists()]
    assert len(rooms) == 9
    for room in rooms:
        assert f"  {room}/ " in tree, room
    index = INDEX.read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        listed = page.with_name("README.md") if page.parent.name == "log" else INDEX
        assert page in (INDEX, listed) or f"({page.relative_to(listed.parent)})" in (
            listed.read_text()
        ), page
    assert "(log/README.md)" in index


def test_links_to_a_section_find_it() -> None:
    for page in PAGES:
        for path, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            target = page.parent / path if path else page
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in [_anchor(title) for title in titles], (page, path, anchor)


def _anchor(title: str) -> str:
    """Return the name that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_the_readme_stays_short() -> None:
    assert (ROOT / "README.md").read_text().count("\n") <= 120


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for command in app.registered_commands:
        assert f"`ratchet {command.callback.__name__}" in readme


def test_workloads_that_the_pages_name_exist() -> None:
    name = re.compile(rf"\b((?:{'|'.join(SIZES)})-[\w-]*\w)")
    named = {(page.name, one) for page in PAGES for one in name.findall(page.read_text())}
    assert {one for one in named if one[1] not in {*known(), *trained_types()}} == set()


def test_every_lever_and_kernel_is_documented() -> None:
    levers = (ROOT / "docs" / "how-to" / "optimize.md").read_text()
    assert [lever.name for lever in LEVERS if f"`{lever.name}`" not in levers] == []
    scale = (ROOT / "docs" / "how-to" / "scale.md").read_text()
    assert [lever.name for lever in RANK_LEVERS if f"`{lever.name}`" not in scale] == []
    kernels = (ROOT / "docs" / "reference" / "kernels.md").read_text()
    assert [name for name in LIBRARY if f"| `{name}` |" not in kernels] == []


def test_the_public_names_are_sorted_and_importable() -> None:
    import ratchet

    assert list(ratchet.__all__) == sorted(ratchet.__all__)
    for name in ratchet.__all__:
        assert getattr(ratchet, name) is not None


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("install", "demo", "test", "lint", "docs", "bench"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    ("has", "extras"),
    [((), ".[hf,triton]"), (("torch",), ".[hf,triton]"), (("torch", "triton"), ".[hf]")],
)
def test_install_brings_triton_where_it_is_missing(
    has: tuple[str, ...], extras: str, tmp_path: Path
) -> None:
    """With a torch that is there nothing is pinned, so it stays."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    python = tmp_path / "python"
    known = " | ".join(f'"import {name}"' for name in has) or '"nothing"'
    python.write_text(f'#!/bin/sh\ncase "$2" in {known}) ;; *) exit 1 ;; esac\n')
    python.chmod(0o755)
    venv = tmp_path / "venv"
    done = subprocess.run(
        ["make", "-n", "install", f"PYTHON={python}", f"VENV={venv}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f'--editable "{extras}"' in done.stdout
    assert ("-c constraints.txt" in done.stdout) is ("torch" not in has)
    assert ("--system-site-packages" in done.stdout) is ("torch" in has)


PLACES = re.compile(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.[a-z]+)?|[a-z_0-9]+\.py)`")
NAMING = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A path may begin at any folder of the package."""
    package = ROOT / "src" / "ratchet"
    homes = [ROOT, package, *(path for path in package.rglob("*") if path.is_dir())]
    for place in PLACES.findall(page.read_text()):
        assert any((home / place).exists() for home in homes), place
