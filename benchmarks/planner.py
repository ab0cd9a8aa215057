"""What verifying by plan is worth: tokens a second of compact against static, in one process.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/planner.py [RECIPE] [--rounds 5] [--table FILE]

Both runs have the same weights, prompts and batch; rounds alternate. Without `--table` the cost
table is measured first, as `specflow profile RECIPE` does. Where compact is not faster the report
says which term is to blame: the tokens it gains a step, or what a step costs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from loop import Quiet

from specflow.cli import main as specflow
from specflow.execute import decode, encode, make_session
from specflow.load import load
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.packs import find, root
from specflow.prompts import read
from specflow.resolve import resolve
from specflow.session import Request, Session

PROMPTS = root() / "pico" / "prompts" / "code.jsonl"
MODES = ("static", "cap-accept", "compact")


@dataclass(frozen=True)
class Round:
    """One pass over the prompts.

    speed   tokens a second
    gained  tokens a verify
    judged  positions verified a request and step
    step    milliseconds a step of the whole batch
    """

    speed: float
    gained: float
    judged: float
    step: float


def measure(session: Session, requests: list[Request]) -> Round:
    """Decode all requests once."""
    steps = 0
    launch = session.captured.launch

    def counted(rows: int, variant: str, needed: int, budget: int = 0) -> None:
        nonlocal steps
        steps += 1
        launch(rows, variant, needed, budget)

    session.captured.launch = counted  # type: ignore[method-assign]
    prefill = session.clock.prefill
    done = decode(session, requests, Quiet(), None)
    session.captured.launch = launch  # type: ignore[method-assign]
    seconds = done.timed.total - (session.clock.prefill - prefill)
    tokens = sum(len(c.tokens) for c in done.completions)
    lens = [n for c in done.completions for n in c.accept_lens]
    judged = [n + 1 for c in done.completions for n in c.drafted]
    return Round(tokens / seconds, mean(lens), mean(judged), 1e3 * seconds / steps)


def main() -> int:
    """Measure, print a table, say what it comes from."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", nargs="?", default="pico/dspark_planned")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = args.table
    if table is None:
        table = Path(tempfile.mkdtemp()) / "cost.json"
        specflow(
            ["profile", args.recipe, f"run.batch_size={args.batch}", "--additive", "-o", str(table)]
        )
    sessions: dict[str, Session] = {}
    requests: list[Request] = []
    target: LanguageModel | None = None
    for mode in MODES:
        overrides = [
            f"verify.mode={mode}",
            f"verify.cost_table={table.resolve()}",
            f"run.batch_size={args.batch}",
            f"sampling.max_new_tokens={args.new}",
            f"sampling.temperature={args.temperature}",
            "sampling.ignore_eos=true",
        ]
        recipe = resolve(load(find(args.recipe), overrides))
        folder = open_model(recipe.target.model)
        tokenizer = Tokenizer(folder)
        target = target or LanguageModel.load(folder, device="cpu", dtype="float32")
        requests = requests or encode(read(PROMPTS, 2 * args.batch), tokenizer, recipe)[0]
        sessions[mode] = make_session(recipe, target, tokenizer)
        decode(sessions[mode], requests[: args.batch], Quiet(), None)
    rounds: dict[str, list[Round]] = {mode: [] for mode in MODES}
    for _ in range(args.rounds):
        for mode in MODES:
            rounds[mode].append(measure(sessions[mode], requests))
    report(rounds)
    if args.out:
        found = {mode: [vars(each) for each in made] for mode, made in rounds.items()}
        said = {"recipe": args.recipe, "batch": args.batch, "table": json.loads(table.read_text())}
        args.out.write_text(json.dumps(said | {"rounds": found}, indent=1) + "\n")
    return 0


def report(rounds: dict[str, list[Round]]) -> None:
    """A line a mode, and what compact gains and loses by."""
    base = rounds["static"]
    print("| mode | tok/s, to static | lowest .. highest | gained a step | verified | step |")
    print("|---|---|---|---|---|---|")
    for mode, made in rounds.items():
        ratios = [each.speed / other.speed for each, other in zip(made, base, strict=True)]
        spread = f"{min(ratios):.2f} .. {max(ratios):.2f}"
        gained, judged = mean(r.gained for r in made), mean(r.judged for r in made)
        step = median(r.step for r in made) / median(r.step for r in base)
        print(
            f"| {mode} | {median(ratios):.2f}x | {spread} | {gained:.2f} | {judged:.2f} | "
            f"{step:.2f}x |"
        )
    made = rounds["compact"]
    gained = mean(r.gained for r in made) / mean(r.gained for r in base)
    step = median(r.step for r in made) / median(r.step for r in base)
    won = "pays" if gained > step else "does not pay"
    print(f"\ncompact gains {gained:.3f}x the tokens a step at {step:.3f}x the time: it {won}")


if __name__ == "__main__":
    sys.exit(main())
