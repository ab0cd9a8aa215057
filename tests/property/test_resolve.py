"""Laws of resolution: it resolves or finds; twice changes nothing; what a user wrote is kept."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.errors import RecipeError
from specflow.load import loads
from specflow.provenance import Origin
from specflow.recipe import ResolvedRecipe, RunFields, SamplingFields, dump
from specflow.resolve import resolve
from specflow.stages import COMMITS, DRAFTS, VERIFIES

ODD = st.one_of(
    st.integers(-3, 300),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.text(max_size=6),
    st.lists(st.integers(-2, 20), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FIELDS = {
    "draft": sorted(
        {n for d in DRAFTS.names() for n in DRAFTS[d].fields.model_fields}
        | {"signal", "guess", "odd"}
    ),
    "verify": ["shape", "num_draft_tokens", "accept", "odd"],
    "commit": ["draft_state", "odd"],
    "sampling": [*SamplingFields.model_fields],
    "run": [*RunFields.model_fields],
}
# A target and a draft that fit, for the drafts that ask more than a language model.
FITTING = {
    "EAGLE": ("meta-llama/Meta-Llama-3-8B-Instruct", "yuhuili/EAGLE-LLaMA3-Instruct-8B"),
    "EAGLE3": ("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
    "MULTI_LAYER_EAGLE": ("XiaomiMiMo/MiMo-V2-Flash", "XiaomiMiMo/MiMo-V2-Flash"),
    "DFLASH": ("builtin:pico-llama", "builtin:pico-llama-dflash"),
    "DSPARK": ("builtin:pico-llama", "builtin:pico-llama-dspark"),
    "FROZEN_KV_MTP": ("google/gemma-4-E4B-it", "google/gemma-4-E4B-it-assistant"),
}
LIKELY = {
    "model": st.just("builtin:pico-llama-s"),
    "shape": st.sampled_from(VERIFIES.names()),
    "draft_state": st.sampled_from(COMMITS.names()),
    "signal": st.sampled_from(["tokens", "history"]),
    "guess": st.sampled_from(["lookup", "autoregressive", "none"]),
    "accept": st.just("greedy"),
    "num_draft_tokens": st.integers(1, 20),
    "num_steps": st.integers(1, 8),
    "breadth": st.just([1, 4]),
}


@st.composite
def recipes(draw: st.DrawFn, sound: float = 0.9) -> dict[str, Any]:
    """A recipe out of known fields, mostly with likely values."""
    made: dict[str, Any] = {"target": {"model": "builtin:pico-llama"}}
    for block, names in FIELDS.items():
        chosen = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
        made[block] = {
            n: draw(LIKELY[n] if n in LIKELY and draw(st.floats(0, 1)) < sound else ODD)
            for n in chosen
        }
    if draw(st.booleans()):
        made["draft"]["algorithm"] = draw(st.sampled_from([*DRAFTS.names(), "PLAIN", "NGRAMM"]))
    return {k: v for k, v in made.items() if v}


def attempt(made: dict[str, Any]) -> ResolvedRecipe | None:
    """The resolved recipe, or None where there are findings."""
    try:
        return resolve(loads(yaml.safe_dump(made), "drawn.yaml"))
    except RecipeError as error:
        found = error.diagnostics
    assert found
    assert all(d.message and d.code.startswith("SF") for d in found)
    return None


@given(recipes())
@settings(max_examples=150, deadline=None)
def test_any_recipe_resolves_or_gives_findings(made: dict[str, Any]) -> None:
    resolved = attempt(made)
    if resolved is None:
        return
    again = resolve(loads(yaml.safe_dump(dump(resolved)), "again.yaml"))
    assert dump(again) == dump(resolved)
    assert again.fingerprint == resolved.fingerprint
    for path in resolved.ledger:
        assert resolved[path] is not None
    for block, fields in made.items():
        for name, value in fields.items():
            entry = resolved.ledger[f"{block}.{name}"]
            kept = list(entry.value) if isinstance(entry.value, tuple) else entry.value
            assert entry.origin in (Origin.USER, Origin.ALIAS)
            assert kept == value or entry.origin is Origin.ALIAS


@given(st.sampled_from(DRAFTS.names()), st.data())
@settings(max_examples=40, deadline=None)
def test_a_weaker_origin_never_replaces_a_stronger_one(name: str, data: st.DataObject) -> None:
    made = data.draw(recipes(sound=1.0))
    made.setdefault("draft", {})["algorithm"] = name
    resolved = attempt(made)
    order = list(Origin)
    for path in resolved.ledger if resolved else ():
        history = [
            order.index(e.origin)
            for e in resolved.ledger.history(path)
            if e.origin is not Origin.ALIAS
        ]
        assert history == sorted(history)


def test_some_drawn_recipes_resolve() -> None:
    """The laws above say nothing if every drawn recipe is refused."""
    import random

    draws = random.Random(1)
    good = 0
    for _ in range(40):
        name = draws.choice(DRAFTS.names())
        target, model = FITTING.get(name, ("builtin:pico-llama", "builtin:pico-llama-s"))
        draft: dict[str, Any] = {"algorithm": name}
        if "model" in DRAFTS[name].fields.model_fields:
            draft["model"] = model
        made = {
            "target": {"model": target},
            "draft": draft,
            "run": {"batch_size": draws.randint(1, 9)},
        }
        good += attempt(made) is not None
    assert good == 40
