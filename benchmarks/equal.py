"""Whether a recipe says what transformers says: greedy, float32, token for token.

    python benchmarks/equal.py MODEL PROMPTS.jsonl [--recipe pico/ngram] [--limit 8] [--new 64]

Exit code 1 where a completion differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from loop import Quiet
from transformers import AutoModelForCausalLM, GenerationConfig

from specflow.execute import decode, encode, make_session
from specflow.load import load
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.packs import find
from specflow.prompts import read
from specflow.resolve import resolve


def main() -> int:
    """Decode with both, compare, print a line a prompt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--recipe", default="pico/ngram")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    args = parser.parse_args()
    overrides = [f"target.model={args.model}", f"sampling.max_new_tokens={args.new}"]
    recipe = resolve(load(find(args.recipe), overrides))
    folder = open_model(args.model)
    target, tokenizer = LanguageModel.load(folder, device="cpu", dtype="float32"), Tokenizer(folder)
    requests, _ = encode(read(args.prompts, args.limit), tokenizer, recipe)
    done = decode(make_session(recipe, target, tokenizer), requests, Quiet(), None)
    ours = {c.request.id: c for c in done.completions}
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    stop = sorted(target.stop_ids | tokenizer.stop_ids)
    same = 0
    for request in requests:
        ids = torch.tensor([request.tokens])
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=request.max_new_tokens,
            eos_token_id=stop,
            pad_token_id=0,
        )
        out = reference.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        plain, mine = out[0, ids.shape[1] :].tolist(), ours[request.id]
        first = next(
            (i for i, (a, b) in enumerate(zip(plain, mine.tokens, strict=False)) if a != b), None
        )
        equal = plain == mine.tokens
        same += equal
        length = sum(mine.accept_lens) / max(1, len(mine.accept_lens))
        print(
            f"{request.id:12} {len(plain)} tokens, accept length {length:.2f}: "
            f"{'equal' if equal else f'differs at {first}'}",
            flush=True,
        )
    print(f"{same} of {len(requests)} equal to transformers generate(do_sample=False)")
    return int(same != len(requests))


if __name__ == "__main__":
    sys.exit(main())
