"""Toy sessions: real recipes and generated steps over tiny random models."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import yaml

from specflow.capture import capture
from specflow.codegen import emit
from specflow.execute import positions
from specflow.load import loads
from specflow.lower import lower
from specflow.models.beginning import Beginning
from specflow.models.drafters import DRAFTERS, LanguageModelDrafter
from specflow.models.lm import LanguageModel
from specflow.models.ragged import BatchPlanner
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.session import Request, Session
from tests.differential.tiny_models import VOCABULARY, build

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it gives

DRAFTS = {
    "plain": {"draft": {"algorithm": "NONE"}},
    "ngram": {"draft": {"algorithm": "NGRAM"}},
    "ngram_eager": {"draft": {"algorithm": "NGRAM", "min_match": 1, "order": "frequency"}},
    "ngram_chain": {
        "draft": {"algorithm": "NGRAM"},
        "verify": {"shape": "chain", "num_draft_tokens": 6},
    },
    "ngram_none": {"draft": {"algorithm": "NGRAM"}, "commit": {"draft_state": "none"}},
    "standalone": {"draft": {"algorithm": "STANDALONE", "model": "builtin:pico-llama-s"}},
    "standalone_1": {
        "draft": {"algorithm": "STANDALONE", "model": "builtin:pico-llama-s", "num_steps": 1}
    },
    "standalone_extend": {
        "draft": {"algorithm": "STANDALONE", "model": "builtin:pico-llama-s"},
        "commit": {"draft_state": "extend"},
    },
    "standalone_tree": {
        "draft": {"algorithm": "STANDALONE", "model": "builtin:pico-llama-s", "topk": 2}
    },
    "standalone_wide": {
        "draft": {
            "algorithm": "STANDALONE",
            "model": "builtin:pico-llama-s",
            "topk": 3,
            "num_steps": 4,
        },
        "verify": {"num_draft_tokens": 16},
    },
    "standalone_5": {
        "draft": {"algorithm": "STANDALONE", "model": "builtin:pico-llama-s", "num_steps": 5}
    },
}


def recipe(name: str, batch: int = 1, **run: object) -> ResolvedRecipe:
    """A recipe of DRAFTS; its target is a stand-in, since the tests bring their own."""
    written = copy.deepcopy(DRAFTS[name]) | {
        "recipe": f"toy/{name}",
        "target": {"model": "builtin:pico-llama"},
        "run": {"batch_size": batch, "max_length": 200, "prefill_chunk": 8} | run,
    }
    return resolve(loads(yaml.safe_dump(written), f"{name}.yaml"))


def target(arch: str = "llama", seed: int = 0) -> LanguageModel:
    """A tiny random target."""
    return LanguageModel.wrap(build(arch, seed))


def neighbour(model_seed: int, noise: float, seed: int = 5) -> LanguageModel:
    """The target of a seed with noise on its weights: a draft that is right some of the time."""
    model = build("llama", model_seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise * parameter.std())
    return LanguageModel.wrap(model)


def session(
    resolved: ResolvedRecipe,
    model: LanguageModel,
    root: Path,
    draft: LanguageModel | None = None,
    stop_ids: frozenset[int] = frozenset(),
) -> Session:
    """A session over the generated module of a recipe; `draft` stands for the model it names."""
    graph = lower(resolved)
    module = emit(graph, resolved).load(root)
    pool = model.pool(resolved.run.batch_size, positions(resolved))
    if draft is None:
        drafter = DRAFTERS[graph.drafter](resolved, model, pool)
    else:
        own = draft.pool(pool.slots, pool.length)
        drafter = LanguageModelDrafter(draft, own, resolved, Beginning.of(resolved))
    planner = BatchPlanner.of(resolved)
    step = capture(module, model, pool, drafter, planner)
    return Session(resolved, step, model, pool, drafter, spoken, stop_ids, planner)


def spoken(ids: list[int]) -> str:
    """Tokens as text."""
    return " ".join(map(str, ids))


def requests(count: int, new: int, seed: int = 3) -> list[Request]:
    """Prompts of mixed length: one token, a few, more than a prefill chunk; some repeat."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        length = (1, 5, 23, 12, 9, 17, 2)[i % 7]
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        made.append(Request(str(i), (ids * 3)[: 2 * length] if i % 3 == 2 else ids, new + i % 5))
    return made


def tokens(made: Session, asked: list[Request]) -> dict[str, list[int]]:
    """What each request becomes."""
    for request in asked:
        made.submit(request)
    return {c.request.id: c.tokens for c in made.run()}
