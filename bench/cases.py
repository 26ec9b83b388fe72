"""Cases of a benchmark: what is measured in a round, the ratios, and their targets."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mode_builds import copy_specs
from peers.environment import set_up
from placed import Bench

Measured = Mapping[str, float]
"""A number by system, of one round."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of a round, or another number, and what it must be at least or at most, if
    anything."""

    name: str
    of: Callable[[Measured], float]
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least}"
        return "" if self.at_most is None else f"<= {self.at_most}"

    def reached(self, value: float) -> bool | None:
        if self.at_least is not None:
            return value >= self.at_least
        return None if self.at_most is None else value <= self.at_most


@dataclass(frozen=True)
class Case:
    what: str
    unit: str
    measure: Callable[[Bench], Measured]
    ratios: tuple[Ratio, ...]


def report(name: str, case: Case, rounds: list[Measured]) -> dict[str, object]:
    """Print the medians of a case, and its ratios with their targets."""
    print(f"\n{name}: {case.what}")
    for system in rounds[0]:
        values = [each[system] for each in rounds]
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"  {system:32}{middle:10,.1f} {case.unit}  ({low:,.1f} to {high:,.1f})")
    ratios = {}
    for ratio in case.ratios:
        values = [ratio.of(each) for each in rounds]
        middle, reached = (
            statistics.median(values),
            ratio.reached(statistics.median(values)),
        )
        said = {True: "yes", False: "NO", None: ""}[reached]
        print(
            f"  {ratio.name:32}{middle:10.2f}{ratio.unit}"
            f" ({min(values):.2f} to {max(values):.2f})"
            f"  {ratio.target():8}{said}",
            flush=True,
        )
        ratios[ratio.name] = {
            "median": middle,
            "rounds": values,
            "target": ratio.target(),
            "reached": reached,
        }
    return {"unit": case.unit, "rounds": rounds, "ratios": ratios}


def main(description: str, cases: Mapping[str, Case]) -> None:
    """Run the cases that the command line names, or all."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="the environment of the peers")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(cases))
    parser.add_argument("--setup", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of W2, where others are too slow")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.setup:
        set_up(arguments.folder)
        return
    names = arguments.cases or list(cases)
    if unknown := set(names) - set(cases):
        parser.error(f"no case {', '.join(sorted(unknown))}: {', '.join(cases)}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.folder.absolute(), Path(folder), arguments.steps)
        copy_specs(bench.folder)
        for name in names:
            rounds = [cases[name].measure(bench) for _ in range(arguments.rounds)]
            results[name] = report(name, cases[name], rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
