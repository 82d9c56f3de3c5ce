"""Names of kernels, shapes and modules, short enough to read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence

from ratchet.base import Json

_NUMBER = re.compile(r"\d+")
_VALUE = re.compile(r"L[a-z](n?\d+)E")
_REPEATED = re.compile(r"S[0-9A-Z]*_|T\d*_|S[absiod]")
_SCALARS = {
    "v": "void", "b": "bool", "c": "char", "a": "int8", "h": "uint8", "s": "short", "t": "ushort",
    "i": "int", "j": "uint", "l": "long", "m": "ulong", "x": "int64", "y": "uint64", "f": "float",
    "d": "double", "DF16_": "half", "DF16b": "bfloat16",
}  # fmt: skip
_DEEPEST = 50


def demangled(name: str) -> str:
    """Return a mangled name's function with its template arguments, without namespaces.

    Back references and parts that are not understood are left out.
    """
    return _Reader(name).part() or name


class _Reader:
    """Reads a mangled name from left to right; skips to the end if it understands nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = 2
        self.depth = 0

    def part(self) -> str:
        """Read one name, type or value; empty if there is nothing to show."""
        self.depth += 1
        text = self._part() if self.depth < _DEEPEST else self._give_up()
        self.depth -= 1
        return text

    def _part(self) -> str:
        if found := self._take(_VALUE):
            return found[2:-1].replace("n", "-")
        for written, scalar in _SCALARS.items():
            if self._skip(written):
                return scalar
        if self._skip("N"):
            return self._qualified()
        if self._skip("J") or self._skip("X"):
            return ", ".join(self._until_end())
        if self._skip("L"):
            sort, value = self.part(), self._take(_NUMBER)
            self._skip("E")
            return value or sort
        if self._skip("St") or self.name[self.place : self.place + 1].isdigit():
            return self._identifier() + self._arguments()
        if self._take(_REPEATED):
            self._arguments()
            return ""
        if any(self._skip(one) for one in ("P", "R", "O", "K", "V", "Dp")):
            return self.part()
        return self._give_up()

    def _qualified(self) -> str:
        text = ""
        while self.place < len(self.name) and not self._skip("E"):
            if any(self._skip(one) for one in ("K", "V", "St")) or self._take(_REPEATED):
                continue
            if self.name[self.place] == "I":
                text += self._arguments()
            else:
                text = self._identifier()
        return text

    def _identifier(self) -> str:
        length = self._take(_NUMBER)
        if not length:
            return self._give_up()
        begin = self.place
        self.place = min(begin + int(length[:9]), len(self.name))
        return self.name[begin : self.place]

    def _arguments(self) -> str:
        if not self._skip("I"):
            return ""
        found = self._until_end()
        return f"<{', '.join(found)}>" if found else ""

    def _until_end(self) -> list[str]:
        found = []
        while self.place < len(self.name) and not self._skip("E"):
            if text := self.part():
                found.append(text)
        return found

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.name, self.place)
        self.place = found.end() if found else self.place
        return found[0] if found else ""

    def _skip(self, text: str) -> bool:
        fits = self.name.startswith(text, self.place)
        self.place += len(text) * fits
        return fits

    def _give_up(self) -> str:
        self.place = len(self.name)
        return ""


_NAMESPACE = re.compile(r"(?:\b[A-Za-z_]\w*|\(anonymous namespace\))::(?=[\w~(<{])")
_CPP = re.compile(r"\w[(<]|^\(anonymous namespace\)")
_CLONE = re.compile(r" \[clone [^\]]*\]$")
_OPENS = {")": "(", ">": "<", "}": "{", "]": "["}
_OF_A_CALL = ("::", " const::")
"""Text after the parameters of a function that encloses a declaration."""
_NOISE = (
    (re.compile(r"::operator\(\)(?: const)?(?=::)"), ""),
    (re.compile(r"(?:::\{lambda\([^{}]*\)#\d+\})*::\{lambda(\([^{}]*\))#\d+\}"), r"\1"),
    (_NAMESPACE, ""),
    (re.compile(r",? ?\b(?:[aA]rray<char ?\*, \d+(?:ul)?>|TrivialOffsetCalculator<[^<>]*>)"), ""),
    (re.compile(r"\bTensorListMetadata<\d+>, "), ""),
    (re.compile(r" +>"), ">"),
)
"""Text that many kernels' names share and that tells none of them apart."""
_WRAPPER = re.compile(r"\b(?:gpu_kernel_impl(?:_nocast)?|Kernel2?(?=<cutlass_))<")
"""Templates whose argument is the kernel: PyTorch's for elementwise kernels, and CUTLASS's."""
_TENSILE = re.compile(
    r"^(Cijk_\w+?_\w+?_[A-Z0-9]+(?:_[A-Z]+)*?)_(?=BH|HA|AS|Bias|SAV|UserArgs|MT|I8)"
)
"""The layouts and types in the name of a Tensile product."""
_TENSILE_FACTS = re.compile(r"(?<=_)(?:MT\d+x\d+x\d+|ISA\w+?)(?=_|$)")
_READ = 2048  # Letters read of a demangled name: Composable Kernel's have tens of thousands
_WORD = re.compile(r"[A-Za-z]*[^A-Za-z]?$")  # The last, perhaps incomplete, word of a text


def short_kernel(name: str, width: int = 56) -> str:
    """Return a kernel's name without namespaces, return type and arguments, cut to a width."""
    return _cut(_plain(name), width)


def short_kernels(names: Iterable[str], width: int = 56) -> dict[str, str]:
    """Shorten the names of one table so that different names stay different."""
    plain = {name: _plain(name) for name in names}
    short = {name: _cut(text, width) for name, text in plain.items()}
    doubtful = {name: plain[name] for alike in _alike(short) for name in alike}
    for same in _alike(doubtful):
        doubtful |= {name: name for name in same}
    # Tensile's names differ in the ISA at their end: the head is all before it.
    heads = {
        name: plain[name].removeprefix("Cijk_").rpartition(" ")[0][: 2 * width // 3 - 1]
        if _TENSILE.match(name)
        else plain[name][: width // 2]
        for name in doubtful
    }
    for alike in _alike(heads):
        short |= _apart({name: doubtful[name] for name in alike}, heads[alike[0]], width)
    return short


def _alike(texts: dict[str, str]) -> list[list[str]]:
    """Return groups of names that have the same text."""
    groups: dict[str, list[str]] = {}
    for name, text in texts.items():
        groups.setdefault(text, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _apart(texts: dict[str, str], head: str, width: int) -> dict[str, str]:
    """Join a common head and each name's rest, from the word where the names first differ."""
    ends = min(texts.values()), max(texts.values())
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
    shared = ends[0][: len(list(same))]
    room = width - len(head) - 1
    context = _WORD.search(shared[-(room // 2) :])
    begin = len(shared) - (len(context[0]) if context else 0)
    short = {}
    for name, text in texts.items():
        rest = text[begin:].lstrip()
        short[name] = f"{head}…{rest if len(rest) <= room else f'{rest[: room - 1]}…'}"
    for alike in _alike(short):
        further = texts[alike[0]][len(shared) :][: width // 5]
        known = {name: texts[name] for name in alike}
        if len(known) < len(texts):
            short |= _apart(known, f"{head[: width // 4]}…{further}", width)
    return short


def _cut(text: str, width: int) -> str:
    """Cut out a text's middle if it is too long: kernels' names differ at the end."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _plain(name: str) -> str:
    """Reduce a kernel's name to its own name, its types and its tile."""
    if tensile := _TENSILE.match(name):
        return " ".join((tensile[1], *_TENSILE_FACTS.findall(name)))
    if name.startswith("_Z"):
        return demangled(name)
    if not _CPP.search(name):
        return name
    name = _without_calls(_own_name(_CLONE.sub("", name[:_READ])))
    for pattern, by in _NOISE:
        name = pattern.sub(by, name)
    return _unwrapped(name)


def _own_name(name: str) -> str:
    """Strip a demangled function's return type and parameters.

    Inside parentheses, `>` compares: `enable_if<(((8)>(0))), void>::type kernel<8>(int)`.
    """
    begin = 0
    for place, opened in _levels(name):
        if opened:
            continue
        if name[place] == " ":
            begin = place + 1
        elif name[place] == "(" and begin < place and name[place - 1] != ":":
            return name[begin:place]
    return name[begin:]


def _levels(name: str) -> Iterator[tuple[int, int]]:
    """Yield (place, open brackets before it) for each letter."""
    opened: list[str] = []
    for place, letter in enumerate(name):
        yield place, len(opened)
        if letter in "(<{[":
            opened.append(letter)
        elif letter in _OPENS and _OPENS[letter] in opened and (letter, opened[-1]) != (">", "("):
            while opened.pop() != _OPENS[letter]:
                pass


def _closing(name: str, place: int) -> int:
    """Find the closing bracket, or the end of a name that is cut off."""
    levels = [level for _, level in _levels(name[place:] + " ")]
    return next((place + at - 1 for at in range(1, len(levels)) if levels[at] == 0), len(name))


def _without_calls(name: str) -> str:
    """Strip the parameters of enclosing functions."""
    place = 0
    while (place := name.find("(", place)) >= 0:
        end = _closing(name, place) + 1
        if name.startswith(_OF_A_CALL, end) and name[place:end] != "(anonymous namespace)":
            name = name[:place] + name[end:].removeprefix(" const")
        else:
            place += 1
    return name


def _unwrapped(name: str) -> str:
    """Replace wrapping templates by their argument."""
    while found := _WRAPPER.search(name):
        end = _closing(name, found.end() - 1)
        after = _closing(name, end + 1) + 1 if name.startswith("(", end + 1) else end + 1
        name = name[: found.start()] + name[found.end() : end] + name[after:]
    return name


def short_shapes(text: str) -> str:
    """Format `Input Dims` as [2, 3] × [3, 4], without scalars and absent inputs."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return text
    return " × ".join(_shape_words(found)) if isinstance(found, list) else text


def _shape_words(entries: Sequence[Json]) -> Iterator[str]:
    """Yield each shape in `Input Dims`, also those inside lists of tensors."""
    for entry in entries:
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            yield from _shape_words(entry)
        elif entry:
            whole = isinstance(entry, list)
            yield f"[{', '.join(str(extent) for extent in entry)}]" if whole else str(entry)


def short_line(line: str) -> str:
    """Return a line of Python, such as `src/train.py(3): step`, with the file's name alone."""
    path, _, rest = line.partition("(")
    return f"{path.rpartition('/')[2]}({rest}" if rest else line


def last_modules(path: str) -> str:
    names = path.split(" > ")
    return " > ".join(names) if len(names) <= 2 else f"… {' > '.join(names[-2:])}"
