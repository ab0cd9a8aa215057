"""How many tokens a step gains, for every draft on the embedded models: the table of README.md.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/acceptance.py [--limit 24] [--new 128] [--out FILE]

The prompts are code that no embedded model was trained on. Greedy text of models this small repeats
itself, which flatters every draft: so each recipe runs at temperature 0.8 as well, and the share of
completions that say some run of 8 tokens twice stands beside each figure. Ranges are the lowest and
the highest of a prompt. Exit code 1 where a greedy completion is not plain decoding's.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from loop import Quiet

from specflow.execute import counted, decode, encode, make_session, plain_of
from specflow.load import load
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.packs import find, root
from specflow.prompts import Prompts, read
from specflow.report import by_position, repeats
from specflow.resolve import resolve
from specflow.session import Session

PROMPTS = root() / "pico" / "prompts" / "code.jsonl"
# Recipe, and what the table says of its shape.
RECIPES = (
    ("pico/ngram", "tree of 12"),
    ("pico/standalone", "3 steps"),
    ("pico/standalone_tree", "3 steps, topk 3"),
    ("pico/eagle", "3 steps"),
    ("pico/eagle_tree", "3 steps, topk 3"),
    ("pico/eagle3", "3 steps"),
    ("pico/eagle3_tree", "3 steps, topk 3"),
    ("pico/eagle3_adaptive", "1 to 7 steps"),
    ("pico/nextn", "3 steps"),
    ("pico/nextn_tree", "3 steps, topk 3"),
    ("pico/multi_layer", "3 layers"),
    ("pico/frozen_kv", "3 steps"),
    ("pico/frozen_kv_tree", "3 steps, topk 3"),
    ("pico/dflash", "block of 7 guesses"),
    ("pico/dspark", "block of 7 guesses"),
)
# Compared position by position: the same backbone, without a Markov head and with one.
BLOCKS = ("pico/dflash", "pico/dspark")


@dataclass(frozen=True)
class Measured:
    """One recipe at one temperature.

    tau        tokens gained a verify, over all prompts
    spread     lowest and highest of a prompt
    looping    share of completions that say 8 tokens twice
    forwards   draft forwards a step
    identical  of how many greedy completions; None where they are drawn
    given      of a chain, how often the guess at each position held where those before it did
    """

    tau: float
    spread: tuple[float, float]
    looping: float
    forwards: float
    identical: tuple[int, int] | None
    given: list[float | None]


def measure(name: str, temperature: float, prompts: Prompts, new: int) -> Measured:
    """Decode all prompts with a recipe."""
    overrides = [f"sampling.temperature={temperature}", f"sampling.max_new_tokens={new}"]
    written = load(find(name), overrides)
    recipe = resolve(written)
    folder = open_model(recipe.target.model)
    target, tokenizer = LanguageModel.load(folder, device="cpu", dtype="float32"), Tokenizer(folder)
    requests, _ = encode(prompts, tokenizer, recipe)
    session = make_session(recipe, target, tokenizer)
    counts = count_forwards(session)
    done = decode(session, requests, Quiet(), None)
    steps = sum(len(c.accept_lens) for c in done.completions)
    each = [mean(c.accept_lens) for c in done.completions if c.accept_lens]
    gained = sum(sum(c.accept_lens) for c in done.completions)
    identical = None
    if temperature == 0:
        plain = make_session(resolve(plain_of(written)), target, tokenizer)
        base = {c.request.id: c.tokens for c in decode(plain, requests, Quiet(), None).completions}
        same = sum(c.tokens == base[c.request.id] for c in done.completions)
        identical = (same, len(done.completions))
    return Measured(
        gained / steps,
        (min(each), max(each)),
        mean(repeats(c.tokens) for c in done.completions),
        mean(counts),
        identical,
        by_position([counted(c) for c in done.completions], recipe["verify.num_draft_tokens"] - 1)[
            "cond_accept_rate_at"
        ],
    )


def count_forwards(session: Session) -> list[int]:
    """Draft forwards of each step the session will launch; those of a prompt are no step's."""
    counts: list[int] = []
    launch, models = session.captured.launch, session.drafter.models()

    def watched(rows: int, variant: str, needed: int, budget: int = 0) -> None:
        before = sum(model.forwards for model in models)
        launch(rows, variant, needed, budget)
        counts.append(sum(model.forwards for model in models) - before)

    session.captured.launch = watched  # type: ignore[method-assign]
    return counts


def row(name: str, shape: str, greedy: Measured, drawn: Measured) -> str:
    """A line of the table."""
    cells = [f"`{name}`", shape]
    for each in (greedy, drawn):
        cells.append(f"{each.tau:.2f} ({each.spread[0]:.2f} to {each.spread[1]:.2f})")
        cells.append(f"{100 * each.looping:.0f} %")
    cells.append(f"{greedy.forwards:.1f}")
    return "| " + " | ".join(cells) + " |"


def by_depth(figures: dict[str, tuple[Measured, Measured]]) -> list[str]:
    """The table of block drafts: what each position's guess is worth once it is reached."""
    names = [name for name in BLOCKS if name in figures]
    if not names:
        return []
    depth = len(figures[names[0]][0].given)
    lines = [f"| held, where those before held | {' | '.join(map(str, range(1, depth + 1)))} |"]
    lines.append("|---" * (depth + 1) + "|")
    for name in names:
        for said, each in zip(("greedy", "temperature 0.8"), figures[name], strict=True):
            cells = ["-" if x is None else f"{x:.2f}" for x in each.given]
            lines.append(f"| `{name}`, {said} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Measure every recipe, print the table, write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    prompts = read(PROMPTS, args.limit)
    print("| recipe | draft | τ, greedy | looping | τ, temperature 0.8 | looping | forwards |")
    print("|---|---|---|---|---|---|---|")
    figures: dict[str, object] = {}
    found: dict[str, tuple[Measured, Measured]] = {}
    wrong = 0
    for name, shape in RECIPES:
        if args.only and name not in args.only:
            continue
        both = tuple(measure(name, heat, prompts, args.new) for heat in (0.0, 0.8))
        found[name] = (both[0], both[1])
        print(row(name, shape, *found[name]), flush=True)
        figures[name] = {"greedy": vars(both[0]), "temperature_0.8": vars(both[1])}
        if both[0].identical is not None and both[0].identical[0] != both[0].identical[1]:
            wrong += 1
            print(f"{name}: {both[0].identical} completions identical", file=sys.stderr)
    print("\n".join(["", *by_depth(found)]))
    if args.out:
        machine = {"processor": platform.machine(), "torch": torch.__version__}
        facts = {"prompts": args.limit, "new_tokens": args.new, **machine, "recipes": figures}
        args.out.write_text(json.dumps(facts, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
