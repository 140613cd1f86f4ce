"""Run the benchmarks: `python -m benchmarks [--rounds 5] [--seconds 2] [--json FILE] [NAME …]`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from pathlib import Path

from benchmarks import claim_settle, console, intake, latency, relay, report
from benchmarks.bench import bench
from benchmarks.measure import Outcome, measure

FAMILIES = {"intake": intake.comparisons, "steps": claim_settle.comparisons, "relay": relay.comparisons}
LATENCY, CONSOLE = "latency", "console"  # measured on their own: they have no rival
ALONE = {LATENCY, CONSOLE}
FEWEST_ROUNDS = 5  # what a median is worth anything from


def main(arguments: list[str] | None = None) -> int:
    """Measure what was asked for; a shortfall of an aim is shown, and is no failure."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.disable(logging.INFO)
    try:
        outcomes = _measure(options) if not options.names or set(options.names) - ALONE else []
        slow = latency.measure() if not options.names or LATENCY in options.names else None
        pages = console.measure() if not options.names or CONSOLE in options.names else None
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    if outcomes:
        report.show(outcomes)
    if slow:
        print(latency.show(slow))
    if pages:
        print(console.show(pages))
    if options.rounds < FEWEST_ROUNDS:
        print(f"{options.rounds} rounds only: fewer than {FEWEST_ROUNDS} are no basis for a claim")
    if options.json:
        numbers = report.document(outcomes, options.rounds, options.seconds)
        numbers |= ({LATENCY: latency.document(slow)} if slow else {}) | (
            {CONSOLE: console.document(pages)} if pages else {}
        )
        options.json.write_text(json.dumps(numbers, indent=2))
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join([*FAMILIES, *sorted(ALONE)])}, or one like intake-1"
    )
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long one sample takes")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name.split("-")[0] not in {*FAMILIES, *ALONE}]:
        parser.error(f"unknown: {', '.join(unknown)}")
    return options


def _measure(options: argparse.Namespace) -> list[Outcome]:
    outcomes = []
    load = "/".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"{os.cpu_count()} CPUs, load {load}: other load is in the numbers, trust the ratios")
    with bench() as database:
        for family, comparisons in FAMILIES.items():
            if options.names and family not in {name.split("-")[0] for name in options.names}:
                continue
            with comparisons(database) as offered:
                for comparison in offered:
                    if options.names and not {family, comparison.name} & set(options.names):
                        continue
                    print(comparison.title)
                    outcomes.append(measure(comparison, options.rounds, options.seconds, _progress))
    return outcomes


def _progress(where: str, name: str, rate: float) -> None:
    print(f"  {where}: {name}: {rate:,.0f}/s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
