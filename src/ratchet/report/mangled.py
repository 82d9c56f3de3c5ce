"""Read kernel names mangled by a C++ compiler (Itanium C++ ABI), as far as possible."""

from __future__ import annotations

import re

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
        """Return the last name of a qualified one."""
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
