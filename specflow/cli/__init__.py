"""The command line: one file a command; each parses, calls one verb, prints."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from importlib import import_module

import specflow
from specflow.cli.common import CLEAN, FINDINGS, USAGE, failed, told
from specflow.cli.streams import crashed, delivered, open_streams, refused
from specflow.errors import RecipeError, RuntimeFault, UsageError
from specflow.interrupts import seen

COMMANDS = {
    "run": "decode prompts with a recipe, and report",
    "validate": "check recipes before anything loads",
    "explain": "show every value, who set it and why",
    "diff": "compare two recipes by meaning",
    "export": "a recipe as the arguments of an engine",
    "import": "an engine's arguments as a recipe",
    "engines": "list the engines that are known, their versions, platforms and formats",
    "compile": "generate the step module",
    "profile": "time a step by the tokens it verifies: the cost table of a plan",
    "calibrate": "fit the temperatures of a draft's confidence head",
    "rule": "print a rule's manual",
    "rules": "list every rule",
    "recipes": "list the recipes that ship with specflow",
    "schema": "the JSON Schema of recipes, for editors",
    "completion": "the script that completes commands, recipes and fields in a shell",
}

_DASHES = re.compile(r"-\w--|--\w[\w-]*=--")

EXAMPLES = """examples:
  specflow run pico/ngram --check-lossless
  specflow run pico/standalone --prompt "def add(a, b):" sampling.max_new_tokens=40
  specflow validate pico/ngram recipes/my.yaml --strict
  specflow explain pico/ngram draft.min_match
  specflow diff pico/ngram pico/standalone
  specflow explain pico/ngram --engine sglang@0.5.23 --platform h100
  specflow export pico/ngram --engine sglang@0.5.23 --format sh
  specflow import --engine sglang@0.5.23 --args "--speculative-algorithm NGRAM"
  specflow engines
  specflow compile pico/ngram --show graph
  specflow profile recipes/my.yaml run.batch_size=16 -o cost.json
  specflow calibrate recipes/my.yaml --prompts dev.jsonl -o temperatures.json
  specflow rule SF012
  specflow rules
  specflow recipes
  specflow schema -o recipe.schema.json
  specflow completion bash

exit codes: 0 clean; 1 findings, a run cut short, or differences (diff);
            2 usage or unreadable input"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Nothing a user does ends in a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    try:
        return delivered(attempt(words, wanted_format(words)))
    except SystemExit as left:  # argparse has said what it had to
        raise SystemExit(delivered(int(left.code or CLEAN))) from None


def attempt(words: list[str], form: str) -> int:  # noqa: PLR0911 - one return a way to end
    """Run one command, and tell whatever stops it."""
    try:
        return command(words)
    except RecipeError as error:
        return failed(error, form)
    except UsageError as error:
        return told("SF092", "usage", str(error), form, USAGE, error.help)
    except RuntimeFault as error:
        message, _, offer = str(error).partition("; ")
        return told("SF091", "run-fault", message, form, FINDINGS, offer or None)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return FINDINGS
    except Exception as error:  # noqa: BLE001 - the last boundary: a bug is told as one
        if seen():  # a library caught the interrupt, and failed in another way
            print("interrupted", file=sys.stderr)
            return FINDINGS
        return refused(error, form) if isinstance(error, OSError) else crashed(error, form)


def command(words: list[str]) -> int:
    """Parse the words and run the command they name."""
    parser = argparse.ArgumentParser(
        prog="specflow",
        description=specflow.__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specflow {specflow.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text)
    if not words or words[0] not in COMMANDS:
        parser.parse_args(words)  # help, version, or a usage error: each of them exits
    # No other command is imported: `validate` has to answer at once.
    chosen = argparse.ArgumentParser(
        prog=f"specflow {words[0]}", description=COMMANDS[words[0]], allow_abbrev=False
    )
    import_module(f"specflow.cli.{words[0]}").add(chosen)
    _no_dashes(words)
    args = chosen.parse_intermixed_args(words[1:])  # overrides may stand before or after options
    return int(args.run(args))


def _no_dashes(words: Sequence[str]) -> None:
    """Stop at `--option=--`, of which argparse makes an empty list, of any option."""
    for word in itertools.takewhile(lambda each: each != "--", words):
        if _DASHES.fullmatch(word):
            raise UsageError(f"`{word}` has no value: `--` ends the options", "write the value")


def wanted_format(words: Sequence[str]) -> str:
    """The `--format` among the words, before they are parsed: a failure is told in it too."""
    for word, after in itertools.pairwise((*words, "")):
        form = word.removeprefix("--format=") if word.startswith("--format=") else after
        if word.startswith("--format") and form in ("json", "github"):
            return form
    return "text"
