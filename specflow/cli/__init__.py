"""The command line: one file a command; each parses, calls one verb, prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import specflow
from specflow.cli.common import FINDINGS, USAGE, failed
from specflow.errors import CompileError, RecipeError, RuntimeFault

COMMANDS = {
    "run": "decode prompts with a recipe, and report",
    "validate": "check recipes before anything loads",
    "explain": "show every value, who set it and why",
    "diff": "compare two recipes by meaning",
    "compile": "generate the step module",
    "rule": "print a rule's manual",
    "rules": "list every rule",
    "recipes": "list the recipes that ship with specflow",
}

EXAMPLES = """examples:
  specflow run pico/ngram --check-lossless
  specflow run pico/standalone --prompt "def add(a, b):" sampling.max_new_tokens=40
  specflow validate pico/ngram recipes/my.yaml --strict
  specflow explain pico/ngram draft.min_match
  specflow diff pico/ngram pico/standalone
  specflow compile pico/ngram --show graph
  specflow rule SF012
  specflow rules
  specflow recipes

exit codes: 0 clean, 1 findings (or differences, for diff), 2 usage or unreadable input"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
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
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        parser.parse_args(words)  # help, version, or a usage error: each of them exits
    # No other command is imported: `validate` has to answer at once.
    command = argparse.ArgumentParser(
        prog=f"specflow {words[0]}", description=COMMANDS[words[0]], allow_abbrev=False
    )
    import_module(f"specflow.cli.{words[0]}").add(command)
    args = command.parse_intermixed_args(words[1:])  # overrides may stand before or after options
    try:
        return int(args.run(args))
    except RecipeError as error:
        return failed(error, getattr(args, "format", "text"))
    except RuntimeFault as error:
        print(f"error: {error}", file=sys.stderr)
        return FINDINGS
    except CompileError as error:
        print(f"error[SF090]: broken-invariant: {error}", file=sys.stderr)
        print(
            "  = help: this is a bug of specflow; report it with "
            "`specflow explain RECIPE --format json`",
            file=sys.stderr,
        )
        return FINDINGS
    except BrokenPipeError:
        sys.stderr.close()
        return FINDINGS
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return USAGE
