"""Entry point of `python -m ratchet`."""

from ratchet.cli import run

run()
