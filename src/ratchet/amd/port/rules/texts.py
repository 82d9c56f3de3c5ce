"""Builds, images, scripts and settings, read by line: what in them is for CUDA alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ratchet.amd.port.rule import (
    CMAKE_PACKAGES,
    CMAKE_TARGETS,
    FLAGS,
    IMAGES,
    PACKAGES,
    PROGRAMS,
    VARIABLES,
    CodeText,
    Match,
    Rules,
)

WHEELS: Final = re.compile(r"(?:whl/|\+|[:_-])(cu1[0-9]{2}|cuda-?1[0-9](?:\.[0-9]+)*)\b")
CMAKE_WORD: Final = re.compile(r"(?:[^\s()\"'<>;:]|::)+")
WORD: Final = re.compile(r"[^\s\"'=,\[\]]+(?:=[^\s\"',\]]*)?|[=]")
KUBERNETES: Final = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A word of a logical line, with its byte in the text."""

    text: str
    at: int
    first: bool = False  # the first word of a command


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLines:
    """A text as its reader splits it: words of lines, comments left out."""

    source: CodeText
    words: tuple[Word, ...]

    @property
    def commands(self) -> tuple[Word, ...]:
        """The words of a text that starts programs: a script, an image, the settings of a job."""
        return self.words if self.source.kind in ("docker", "shell", "yaml") else ()


RULES: Final = Rules[TextLines]()


def read_lines(source: CodeText) -> TextLines:
    """Split a text into words; quotes are kept together as a shell would."""
    pattern = CMAKE_WORD if source.kind == "cmake" else WORD
    words: list[Word] = []
    at = 0
    starts_command = True
    for raw in source.text.split(b"\n"):
        line = raw.decode(errors="replace").rstrip("\r")
        for found in pattern.finditer(_without_comment(line)):
            word, offset = found[0], len(line[: found.start()].encode())
            words.append(Word(text=word, at=at + offset, first=starts_command))
            starts_command = word in ("&&", "||", ";", "|", "RUN", "sudo", "then", "do", "-")
        if not line.rstrip().endswith("\\"):
            starts_command = True
        at += len(raw) + 1
    return TextLines(source=source, words=tuple(words))


def _without_comment(line: str) -> str:
    quote = ""
    for index, letter in enumerate(line):
        if letter in (quote or "\"'"):
            quote = "" if quote else letter
        elif not quote and letter == "#" and (line[index - 1 : index] or " ").isspace():
            return line[:index]
    return line


@RULES.add("nvidia-program", "warning", fix="use ROCm's")
def programs(lines: TextLines) -> Iterator[Match]:
    """The program is NVIDIA's."""
    for word in lines.commands:
        name = word.text.rpartition("/")[2]
        if name in PROGRAMS and (word.first or name not in ("nvcc", "ncu")):
            yield Match(at=word.at, detail=name, fix=f"use {PROGRAMS[name]}")


@RULES.add("cuda-variable", "warning", fix="set its counterpart")
def variables(lines: TextLines) -> Iterator[Match]:
    """The environment variable is CUDA's or NVIDIA's."""
    for word in lines.commands:
        name = word.text.partition("=")[0].rstrip(":").lstrip("-").strip()
        if name in VARIABLES and not word.text.startswith("$"):
            yield Match(at=word.at, detail=name, fix=VARIABLES[name])


@RULES.add("cuda-image", "error", fix="use an image of rocm/")
def images(lines: TextLines) -> Iterator[Match]:
    """The image holds CUDA."""
    for word in lines.commands:
        text = word.text.partition("=")[2] or word.text
        for start, instead in IMAGES.items():
            if text.startswith("nvidia/label/"):  # a channel of conda
                break
            if text.startswith(start) and re.match(r"[\w./-]+(:[\w.-]+)?(@sha256:\w+)?$", text):
                if lines.source.kind != "shell" or ":" in text:
                    yield Match(at=word.at, detail=text, fix=f"use {instead}")
                break


@RULES.add(
    "gpu-option",
    "error",
    fix=(
        "give --device /dev/kfd --device /dev/dri --group-add video, or those devices in the "
        "service's settings"
    ),
)
def gpu_options(lines: TextLines) -> Iterator[Match]:
    """This asks for NVIDIA's GPUs."""
    docker = any(word.text in ("docker", "podman") for word in lines.commands)
    following = [*(word.text for word in lines.commands[1:]), ""]
    for word, after in zip(lines.commands, following, strict=False):
        if word.text.rstrip(":") == KUBERNETES:
            yield Match(at=word.at, detail=KUBERNETES, fix="ask for amd.com/gpu")
        elif word.text.startswith("--gpus") and docker:
            yield Match(at=word.at, detail="--gpus")
        elif (word.text, after) in (("runtime:", "nvidia"), ("driver:", "nvidia")):
            yield Match(at=word.at, detail=f"{word.text} nvidia")
        elif word.text == "--runtime=nvidia":
            yield Match(at=word.at, detail=word.text)


@RULES.add("cuda-package", "error", fix="use its counterpart")
def packages(lines: TextLines) -> Iterator[Match]:
    """The package is for NVIDIA, or has another build for ROCm."""
    for word in lines.words:
        name = re.split(r"[=<>~!@;:]", word.text)[0].lower().replace("_", "-").split("[")[0]
        found = next((one for one in PACKAGES if name == one or _is_variant(name, one)), None)
        if found and _may_be_package(lines.source, word):
            yield Match(at=word.at, detail=word.text[:40], fix=f"use {PACKAGES[found]}")


VARIANT: Final = re.compile(r"-?(cu\d+|\d|[a-z]*-?cu\d+|dev|runtime|nvtx|nvrtc)")


def _is_variant(name: str, start: str) -> bool:
    rest = name.removeprefix(start)
    return rest != name and (start.endswith("-") or VARIANT.match(rest) is not None)


INSTALLS: Final = re.compile(rb"\b(pip3?|uv|conda|mamba|apt(-get)?|yum|dnf)\b")


def _may_be_package(source: CodeText, word: Word) -> bool:
    if source.kind == "packages":
        return True
    line = source.text[source.text.rfind(b"\n", 0, word.at) + 1 : word.at]
    installs = INSTALLS.search(_logical(source.text, word.at)) is not None
    return installs or (source.kind == "yaml" and line.strip() == b"-")


def _logical(text: bytes, at: int) -> bytes:
    """Return what stands before a byte in its line and those that it continues."""
    start = text.rfind(b"\n", 0, at) + 1
    while start:
        before = text.rfind(b"\n", 0, start - 1) + 1
        line = text[before : start - 1].strip()
        if not line.endswith(b"\\") and not (line.startswith(b"#") and before):
            break
        start = before
    return text[start:at]


@RULES.add(
    "cuda-wheel",
    "error",
    fix="take it from https://download.pytorch.org/whl/rocm6.4, or a later one",
)
def wheels(lines: TextLines) -> Iterator[Match]:
    """This is torch's build for CUDA."""
    images = tuple(IMAGES)
    for word in lines.words if lines.source.kind == "packages" else lines.commands:
        found = WHEELS.search(word.text)
        if word.text.startswith(images) or word.text.partition("=")[2].startswith(images):
            continue
        if found and re.search(r"whl/|^torch|^[\w\[\]-]+==\S+\+cu", word.text):
            yield Match(at=word.at, detail=found[1])


@RULES.add("nvcc-flag", "error", fix="give it for CUDA alone")
def nvcc_flags(lines: TextLines) -> Iterator[Match]:
    """A flag of nvcc: hipcc stops at it."""
    for word in lines.words:
        flag = word.text.partition("=")[0]
        if flag not in FLAGS or flag in ("-G", "--keep", "--threads", "-arch"):
            continue
        before = _logical(lines.source.text, word.at)
        if lines.source.kind == "cmake" or b"nvcc" in before.lower() or b"CUDA" in before:
            yield Match(at=word.at, detail=flag, fix=f"on ROCm give {FLAGS[flag] or 'nothing'}")


TARGETS_OF: Final = re.compile(r"CUDA::(\w+)")
CMAKE_VARIABLES: Final = re.compile(
    r"CMAKE_CUDA_\w+|CUDA_NVCC_FLAGS\w*|CUDA_ARCHITECTURES|CUDA_SEPARABLE_COMPILATION|CUDA_STANDARD(_REQUIRED)?|CUDA_TOOLKIT_ROOT_DIR|CUDA_INCLUDE_DIRS|CUDA_LIBRARIES|TORCH_CUDA_ARCH_LIST"
)
CMAKE_COMMANDS: Final = (
    *("cuda_add_library", "cuda_add_executable", "cuda_select_nvcc_arch_flags"),
    *("cuda_compile", "cuda_include_directories", "torch_cuda_get_nvcc_gencode_flag"),
)


NAMES_A_PACKAGE: Final = ("find_package", "enable_language", "project")
SETS_LANGUAGE: Final = "set_source_files_properties"


@RULES.add("cmake-cuda", "error", fix="use the language HIP, which CMake 3.21 and later have")
def cmake(lines: TextLines) -> Iterator[Match]:
    """CMake looks for CUDA's toolkit and its language."""
    command = ""
    for word in lines.words if lines.source.kind == "cmake" else ():
        text, fix = word.text, ""
        if text.lower() in CMAKE_COMMANDS:
            fix = "use add_library or add_executable with LANGUAGE HIP"
        elif found := TARGETS_OF.match(text):
            fix = "link " + CMAKE_TARGETS.get(found[1], "ROCm's counterpart")
        elif CMAKE_VARIABLES.fullmatch(text.strip("${}")) and not text.startswith("${"):
            fix = f"set {text.replace('CUDA', 'HIP')}"
        elif text in CMAKE_PACKAGES and command in (*NAMES_A_PACKAGE, "LANGUAGE"):
            fix = f"use {CMAKE_PACKAGES[text]}"
        if fix:
            yield Match(at=word.at, detail=text, fix=fix)
        opens = lines.source.text[word.at + len(text) :].lstrip(b" ").startswith(b"(")
        if text.lower() in (*NAMES_A_PACKAGE, SETS_LANGUAGE):
            command = text.lower()
        elif (command == SETS_LANGUAGE) if text == "LANGUAGE" else (opens and text.islower()):
            command = text
