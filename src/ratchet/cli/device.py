"""`ratchet device`: describe this machine and its measured ceilings."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.app import AsJson, Debug, DeviceName, app, print_json, print_result


@app.command()
def device(
    name: DeviceName = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure the ceilings again and ignore cached ones.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Describe this machine and measure its ceilings."""
    from ratchet.base.devices import ceilings, describe, device_report
    from ratchet.base.devices.probe import probe

    found = probe(name)
    report = describe(found, ceilings.measure(found, cache=not fresh, again="due"))
    if as_json:
        print_json(report)
    else:
        print_result(device_report(report))
