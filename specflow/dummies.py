"""What a model is whose weights are made up: a config, wherever one is to be had.

A folder needs a config.json and no weights; a name of the Hub one in the Hub's local cache, or a
record that a whole config can be made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specflow import published
from specflow.facts import BUILTIN, WITHOUT_CONFIG, ModelFacts, read_folder
from specflow.headers import Problem

FORMAT = "dummy"  # the word of `run.load_format`
QUANTIZED = ("quantization_config", "compression_config")
BESIDE = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
AS_FOLDER = "write its config.json into a folder, and name that"
ENOUGH = "put the model's config.json there: weights that are made up need no more"
# What no class of the library has a fitting default for: the size of a model is the model's own.
NEEDED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
Look = Callable[[str], ModelFacts]


def reader(otherwise: Look, asked: tuple[str, ...] = ()) -> Look:
    """A reader of models whose weights are made up.

    asked  the formats of drafts that the recipe's algorithm runs, where a config alone is unsure
    """

    def look(model: str) -> ModelFacts:
        found = otherwise(model)
        if found.missing or found.elsewhere:
            found = _cached(found) or found
        return made_up(found, asked)

    return look


def made_up(found: ModelFacts, asked: tuple[str, ...] = ()) -> ModelFacts:
    """The same model whose weights do not matter; `unmade` where no config says what they are."""
    if found.problem is not None and not found.config:
        lacks = found.problem.message.endswith(WITHOUT_CONFIG)
        return replace(found, problem=replace(found.problem, help=ENOUGH)) if lacks else found
    if found.tokens is not None:
        why = "is a GGUF file, whose weights are stored in types of its own"
        return _unmade(found, asked, why, AS_FOLDER)
    if found.recorded:
        return _recorded(found, asked)
    how = _quantized(found)
    # What was wrong with weights does not matter; where the rest is broken there is no config.
    found = replace(found, problem=None, no_float=None, dummy=True, asked=asked)
    if how:
        why = f"is quantized (`{how}`), and dummy weights are plain floats"
        return _unmade(found, asked, why, "name its config.json without that, or run it elsewhere")
    lacking = [f"`{key}`" for key in NEEDED if not found.text.get(key)]
    if lacking:
        why = f"has a config.json that says no {', no '.join(lacking)}"
        return _unmade(found, asked, why, "write what is missing into its config.json")
    return found


def _unmade(found: ModelFacts, asked: tuple[str, ...], why: str, offer: str) -> ModelFacts:
    problem = Problem("unreadable", f"`{found.model}` {why}", offer)
    return replace(found, dummy=True, unmade=problem, asked=asked)


def _recorded(found: ModelFacts, asked: tuple[str, ...]) -> ModelFacts:
    config = published.config(published.record(found.model) or {})
    if config is not None:
        return replace(found, config=config, dummy=True, asked=asked)
    here = _cached(found)
    if here is not None:
        return made_up(here, asked)
    why = "is recorded by its sizes, and not by a whole config"
    return _unmade(found, asked, why, f"{downloaded(found.model)} and name the folder")


def downloaded(model: str) -> str:
    """The command that gets a config alone."""
    return f"`hf download {model} config.json --local-dir FOLDER`"


def _cached(found: ModelFacts) -> ModelFacts | None:
    """The model by the Hub's local cache, where that has its config."""
    if found.model.startswith(BUILTIN) or not published.is_hub_name(found.model):
        return None
    from specflow.hub import cached  # its client takes longer to import than all of this

    folder = cached(found.model)
    return None if folder is None else read_folder(folder, found.model)


def _quantized(found: ModelFacts) -> str:
    """What says that a model's weights are stored in fewer bits; empty where nothing does."""
    said = (key for config in (found.config, found.text) for key in QUANTIZED if config.get(key))
    folder: Path | None = found.folder
    files = (name for name in BESIDE if folder is not None and (folder / name).is_file())
    return next(said, "") or next(files, "")
