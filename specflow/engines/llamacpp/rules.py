"""What llama.cpp's server makes of its arguments, by rule.

L1   a way of drafting that the build does not know stops it
L2   the guesses and their least chance have defaults of the build
L3   a guess below the least chance ends the draft; a draft below the least length is dropped
L4   a draft model without a way of drafting: ignored, or run as a small model, by build
L5   a way of drafting that has no draft model is left out, and the server goes on without
L6   one draft model serves every way of drafting that is asked for
L7   a block is cut to the one the draft was trained with
L8   MTP layers guess one token each, where there are several
L9   a server's context is divided among its slots; left open, four slots share it
L10  sizes of look-up are from 1 to 1024
L11  a DSPARK draft without a confidence head takes no least chance
L12  look-up goes before a draft model, where both are asked for
L13  several models are not drafted for at a time, or a synthetic acceptance is no output
L14  layers on a GPU that a build for CPUs does not have
L15  a draft model's tokens are the target's
"""

from __future__ import annotations

from specflow.engines.base import Export
from specflow.engines.llamacpp.builds import (
    DFLASH,
    DSPARK,
    LOOKUPS,
    MTP,
    SIMPLE,
    SIZED,
    Build,
)
from specflow.engines.outcome import OPEN, START, TOLD, WARN, Effective, Refusal, Refused, Run
from specflow.recipe import ResolvedRecipe

LARGEST = 1024


def effective(
    recipe: ResolvedRecipe, export: Export, build: Build, platform: str
) -> Effective | Refused:
    """The arguments that the server runs with, or why it does not start; never an exception."""
    try:
        run = Run(build.flags.checked(export.args), build.flags.defaults)
        kinds = _kinds(run, build)
        _lengths(run, build, kinds)
        _trained(run, recipe, build, kinds)
        _lookups(run, kinds)
        _slots(run, build)
        _device(run, build, platform)
        return run.outcome()
    except Refusal as refusal:
        return refusal.refused


def _kinds(run: Run, build: Build) -> list[str]:
    """L1, L4, L5, L6, L12: the ways of drafting that are run."""
    kinds = build.chosen(run["spec_type"]) if build.types else []
    asked = bool(kinds)
    if build.types and run["spec_default"] and "ngram-mod" not in kinds:
        kinds.append("ngram-mod")
    has_model = bool(run[build.model] or run[build.repository])
    absent = [kind for kind in kinds if kind not in build.runs]
    kinds = [kind for kind in kinds if kind in build.runs]
    if absent:
        run.note("L1", WARN, f"--spec-type takes {', '.join(absent)}, and nothing runs it")
    drafts = [kind for kind in kinds if kind not in LOOKUPS]
    if has_model and not drafts:
        if build.explicit:
            text = "a draft model alone drafts nothing unless its metadata say DFLASH, DSPARK, MTP"
            run.note("L4", WARN, f"{text}; name it with --spec-type")
        else:
            kinds.append(SIMPLE)
            if absent:
                run.note("L4", WARN, f"the draft model is run as {SIMPLE}")
    bare = [kind for kind in drafts if kind != MTP] if not has_model else []
    if bare and not run["hf_repo"]:
        text = f"{', '.join(bare)} has no draft model: the server logs it and drafts nothing"
        run.note("L5", WARN, text)
        kinds = [kind for kind in kinds if kind not in bare]
    if len(drafts) > 1:
        text = f"one draft model serves {' and '.join(drafts)}: it must be of each kind"
        run.note("L6", START, text)
    named = [kind for kind in kinds if kind in build.types]
    if build.types:
        run.set("spec_type", ",".join(named) or "none", "L4" if not asked else "L5", _WHY)
    if any(kind in LOOKUPS for kind in kinds) and any(kind not in LOOKUPS for kind in kinds):
        run.note("L12", TOLD, "look-up guesses first; the draft model where nothing matches")
    return kinds


_WHY = "the ways of drafting that can run here"


def _lengths(run: Run, build: Build, kinds: list[str]) -> None:
    """L2, L3: how many tokens are guessed, and which guesses end a draft."""
    if not any(kind not in LOOKUPS for kind in kinds):
        return
    most, least, surest = (run[flag] for flag in (build.most, build.least, build.surest))
    if most < 0:
        run.refuse("L2", f"--{_dashed(build.most)} is 0 or more, not {most}", "SystemExit")
    if build.most not in run.asked:
        run.note("L2", TOLD, f"{build.title} guesses {most} tokens where nothing is said")
    if most == 0:
        run.note("L2", WARN, f"with --{_dashed(build.most)} 0 nothing is drafted")
    if least > most:
        run.note("L3", WARN, f"{most} tokens are never {least}: every draft is dropped")
    elif least > 0:
        run.note("L3", TOLD, f"a draft of less than {least} tokens is dropped")
    if surest > 0:
        said = "" if build.surest in run.asked else ", which is the default of this build"
        run.note("L3", TOLD, f"a guess of a chance below {surest:g} ends the draft{said}")


def _trained(run: Run, recipe: ResolvedRecipe, build: Build, kinds: list[str]) -> None:
    """L7, L8, L11, L15: what the draft was made for."""
    net, most = recipe.facts.net, run[build.most]
    size = net.block.size
    for kind in (DFLASH, DSPARK):
        longest = size if kind == DSPARK else size - 1
        if kind in kinds and size and most > longest:
            text = f"the draft was trained with a block of {size}"
            run.set(build.most, longest, "L7", text)
    if DSPARK in kinds and run[build.surest] > 0 and size and not net.block.confidence:
        text = f"this DSPARK draft has no confidence head: drop --{_dashed(build.surest)}"
        run.note("L11", START, text)
    layers = max(recipe.facts["target"].mtp_layers if net.bundled else 0, net.steps)
    if MTP in kinds and layers > 1 and most > layers:
        run.set(build.most, layers, "L8", f"there are {layers} MTP layers, a guess each")
    target, draft = recipe.facts["target"].vocab_size, recipe.facts["draft"].vocab_size
    if SIMPLE in kinds and target and draft and target != draft:
        then = "the server drafts nothing" if build.explicit else "its text is translated"
        text = f"the draft has {draft} tokens, the target {target}: {then} where they differ"
        run.note("L15", OPEN, text)


_SIZES, _SIZES_MOD = ("size_n", "size_m"), ("n_match",)


def _lookups(run: Run, kinds: list[str]) -> None:
    """L10: sizes of look-up."""
    for kind in kinds:
        flag = f"spec_{kind.replace('-', '_')}"
        for name in _SIZES if kind in SIZED else _SIZES_MOD if kind == "ngram-mod" else ():
            if not 1 <= run[f"{flag}_{name}"] <= LARGEST:
                said = f"--{_dashed(f'{flag}_{name}')} is from 1 to {LARGEST}"
                run.refuse("L10", said, "SystemExit")


def _slots(run: Run, build: Build) -> None:
    """L9, L13: slots share a context."""
    if run["parallel"] == 0:
        run.refuse("L9", "--parallel is 1 or more", "SystemExit")
    unified = "kv_unified" in build.flags
    if run["parallel"] < 0 and unified:
        run.set("parallel", 4, "L9", _SHARED)
        run.set("kv_unified", value=True, rule="L9", because=_SHARED)
    elif run["ctx_size"] > 0 and run["parallel"] > 1 and not (unified and run["kv_unified"]):
        share = run["ctx_size"] // run["parallel"]
        run.note("L9", TOLD, f"each of {run['parallel']} slots has {share} positions")
    synthetic = ("spec_synth_len", "spec_synth_rates")
    if any(flag in build.flags and run[flag] is not None for flag in synthetic):
        run.note("L13", WARN, "a synthetic acceptance measures time: the output is no model's")


_SHARED = "left open, four slots share one context"


def _device(run: Run, build: Build, platform: str) -> None:
    """L14: layers that have no GPU to lie on."""
    for flag in ("gpu_layers", build.layers):
        if platform == "cpu" and run[flag] not in (None, 0, "0", "auto"):
            run.note("L14", WARN, f"--{_dashed(flag)} does nothing on a CPU")


def _dashed(flag: str) -> str:
    return flag.replace("_", "-")
