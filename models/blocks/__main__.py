"""`python -m models.blocks`: takes all architectures apart, so that the nightly tier has the blocks of each."""

from __future__ import annotations

import argparse
import sys
import time

from tabulate import tabulate

from conformance.cases import Options, Tier
from conformance.globs import matches
from models.blocks import catalogue, suite

FAILED = "its model raised, crashed or took too long"
NONE = "none: it cannot be made, or has no layers"


def main(arguments: list[str] | None = None) -> int:
    """Prints how many blocks there are, and which architectures have none. Returns 0 if there is a block."""
    parser = argparse.ArgumentParser(prog="python -m models.blocks", description=__doc__)
    parser.add_argument("--op", default="*", metavar="GLOB", help="which architectures, as TYPE.TASK or priority/NAME")
    parser.add_argument("--fresh", action="store_true", help="take apart again what is stored")
    chosen = parser.parse_args(arguments)
    options = Options(tier=Tier.NIGHTLY)
    names = [name for name in suite.subjects(options) if matches(chosen.op, name)]
    if not names:
        parser.error(f"no architecture is called {chosen.op}")
    started, failed = time.monotonic(), []
    for number, name in enumerate(names, start=1):
        needed = chosen.fresh or not catalogue.is_stored(name)
        if needed and catalogue.take_apart(name, options) is None:
            failed.append(name)
        if sys.stderr.isatty() or number % 100 == 0 or number == len(names):
            end = "\n" if not sys.stderr.isatty() or number == len(names) else "\r"
            text = f"{number}/{len(names)} {name} {time.monotonic() - started:.0f} s"
            print(f"{text:<78}", end=end, file=sys.stderr, flush=True)
    homes = catalogue.homes([name for name in names if name not in failed], options)
    total = sum(len(each) for each in homes.values())
    print(f"{len(homes)} distinct blocks, {total} in all, of {len(names)} architectures")
    having = {home.subject for each in homes.values() for home in each}
    rest = [(name, FAILED if name in failed else NONE) for name in names if name not in having]
    if rest:
        print(f"\n{tabulate(rest, headers=('architecture', 'blocks'), tablefmt='plain')}")
    return 0 if homes else 1


if __name__ == "__main__":
    sys.exit(main())
