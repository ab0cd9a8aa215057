"""V24: a checkpoint of speculators as the model names its own target, method and guesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.engines.outcome import TOLD, Run
from specflow.engines.vllm.given import Given
from specflow.engines.vllm.methods import METHOD, MODEL, TOKENS
from specflow.engines.vllm.versions import SPEC, flags_of, key, since

BECAUSE = "the checkpoint is a draft in the format of speculators"
KEPT = "0.30.0"  # from here on keys that are asked for stay, but for the method and the model


def names_its_target(run: Run, given: Given) -> bool:
    """Whether the model is such a draft: then vLLM loads the target that its config names."""
    said = given.target.get("speculators_config")
    if not isinstance(said, Mapping):
        return False
    method, tokens = given.target.get("speculators_model_type"), _tokens(said)
    verifier = said.get("verifier")
    target = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if not isinstance(method, str) or tokens is None or not isinstance(target, str):
        run.refuse("V24", "the speculators_config of the model is not whole")
    if not since(given.version, KEPT):
        for name in [n for n in run.asked if n.startswith(f"{SPEC}.")]:
            run.set(name, flags_of(given.version)[name].default, "V24", BECAUSE)
    if method == "peagle" and not since(given.version, "0.24.0"):
        run.refuse("V24", "P-EAGLE drafts of speculators came after this version")
    if method == "peagle":
        run.set(key("parallel_drafting"), True, "V24", BECAUSE)
    draft = run["model"]
    run.set(METHOD, {"peagle": "eagle3", "dflash2": "dflash"}.get(method, method), "V24", BECAUSE)
    run.set(MODEL, draft, "V24", BECAUSE)
    run.set("model", target, "V24", "the target that the draft's config names")
    if run[TOKENS] is None:
        run.set(TOKENS, tokens, "V24", BECAUSE)
    run.note("V24", TOLD, f"{draft} is the draft; what {target} says of itself is not looked at")
    return True


def _tokens(said: Mapping[str, Any]) -> int | None:
    """The guesses of the first of its proposal methods."""
    methods = said.get("proposal_methods")
    first = methods[0] if isinstance(methods, list | tuple) and methods else None
    found = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None
