"""An API key: read from the environment, handed to the client, hidden everywhere else."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from ratchet.base.errors import EndpointError

HIDDEN: Final = "[key]"
NO_KEY: Final = "none"
"""The key for a server that asks for none: the protocol needs some word."""
DEFAULT_URL: Final = "https://api.openai.com/v1"
URL_ENVIRONMENT: Final = "OPENAI_BASE_URL"
LEAST_SECRET: Final = 6
"""Shorter words, such as the keys of local servers, are no secrets and stand in ordinary text."""


class Secret:
    """A key that no `repr`, `str` or pickle shows."""

    __slots__ = ("_also", "_value")

    def __init__(self, value: str, also: tuple[str, ...] = ()) -> None:
        self._value = value
        self._also = also

    def __repr__(self) -> str:
        return "Secret()"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled")

    def reveal(self) -> str:
        """Return the key, for the client's header alone."""
        return self._value

    def hide(self, text: str) -> str:
        """Return a text without the key, in any of the forms that an endpoint may echo."""
        for word in (self._value, *self._also):
            if len(word) >= LEAST_SECRET:
                for form in {word, quote(word, safe=""), word.encode("unicode_escape").decode()}:
                    text = text.replace(form, HIDDEN)
        return text


def read_key(environment: str, base_url: str | None) -> Secret:
    """Return the key of an environment variable; a word that says none for an own server.

    Raises:
        EndpointError: the variable is not set, and the endpoint is the hosted default.
    """
    value = os.environ.get(environment, "").strip()
    if value and not (value.isascii() and value.isprintable()):
        raise EndpointError(
            f"the key in {environment} has characters that no HTTP header can carry: set it again"
        )
    url = base_url or os.environ.get(URL_ENVIRONMENT, "")
    if not value and not url:
        raise EndpointError(
            f"no key in {environment}: set it (export {environment}=...), or give the --base-url "
            "of an endpoint that needs none"
        )
    parts = urlsplit(url)
    return Secret(value or NO_KEY, tuple(one for one in (parts.password, parts.query) if one))


def endpoint_url(base_url: str | None) -> str:
    """Return the endpoint's URL: what was given, OPENAI_BASE_URL, or the hosted default.

    Raises:
        EndpointError: it is not an http or https URL.
    """
    url = (base_url or os.environ.get(URL_ENVIRONMENT, "") or DEFAULT_URL).strip()
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or re.search(r"\s", url):
        raise EndpointError(
            f"{shown_url(url)!r} is no endpoint: give a URL such as http://localhost:8000/v1"
        )
    return url


def shown_url(url: str) -> str:
    """Return a URL for a message, without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", "")) or url[:80]
    except ValueError:
        return "the given URL"
