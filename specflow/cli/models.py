"""Where commands that run nothing look for models: here, in a facts file, on the Hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from specflow.facts import ModelFacts, hub_may_tell, read, unread
from specflow.resolve import Reader


def add_models(parser: argparse.ArgumentParser) -> None:
    """`--hub` and `--facts`."""
    parser.add_argument(
        "--hub",
        action="store_true",
        help="ask the Hub for the config and headers of models that are not here",
    )
    parser.add_argument(
        "--facts", metavar="FILE", help="what models say of themselves, instead of their folders"
    )


def reader_of(args: argparse.Namespace, *, needed: bool = False) -> Reader:
    """What models say of themselves, by those options.

    needed  a model that is not here is a fault, not only a gap in what can be told
    """

    def here(model: str) -> ModelFacts:
        found = read(model)
        if not hub_may_tell(found, network=args.hub):
            return found
        from specflow.hub import reader  # its client takes longer to import than all of this

        looked = hub.setdefault("", reader(read, network=args.hub))
        return looked(model)

    hub: dict[str, Reader] = {}
    look: Reader = here
    if args.facts is not None:
        from specflow.facts_file import read_facts, reader

        look = reader(read_facts(Path(args.facts)), here)
    return look if needed else unread(look)
