"""Versions of vLLM whose argument classes were read, and what differs between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specflow.diagnostics import closest
from specflow.engines.flags import Flags
from specflow.engines.outcome import Refusal, Refused
from specflow.engines.versions import numbers

PACKAGE = "specflow.engines.vllm"
SPEC = "speculative_config"  # the flag that is a JSON object; its keys are flags `SPEC.key` here

SCHEDULE = "num_speculative_tokens_per_batch_size"  # a key of it


@dataclass(frozen=True)
class Facts:
    """What the rules of a version differ in, where its table of flags does not say it.

    strict    acceptance that compares tokens is called `strict`, drawn guesses `probabilistic`
    slots     drafting slots a request: by which of the three countings (see budget.py)
    adaptive  methods that may size the verify by confidence; empty for any
    runner    which targets the second model runner is taken for, where it can: of those that a
              variable asks for, that a list names, that have no experts, or of all
    second    methods that the second model runner has
    """

    strict: bool
    slots: str
    adaptive: tuple[str, ...]
    runner: str
    second: tuple[str, ...]


_EAGLES = ("eagle", "eagle3", "mtp", "dflash")
_BLOCKS = (*_EAGLES, "dspark", "extract_hidden_states")
_MOST = (*_BLOCKS, "ngram", "ngram_gpu", "draft_model")
FACTS = {
    "0.20.0": Facts(True, "per batch", (), "asked", _EAGLES),
    "0.24.0": Facts(False, "per batch", (), "listed", _EAGLES),
    "0.28.0": Facts(False, "per request", ("dspark",), "dense", _BLOCKS),
    "0.30.0": Facts(False, "per request", (), "all", _BLOCKS),
    "0.32.0": Facts(False, "per request", (), "all", _MOST),
    "0.33.0": Facts(False, "lookahead", (), "all", _MOST),
}
VERSIONS = tuple(FACTS)
# A container of vLLM's takes flags behind the name of its image.
_SERVER = ((r"(.*/)?vllm", "serve"), (r"vllm\.entrypoints\S*",), (r"\S*vllm-openai\S*",))
_FLAGS = {
    v: Flags(f"vLLM {v}", PACKAGE, f"flags-{v}.tsv", short=True, alone=True, server=_SERVER)
    for v in VERSIONS
}

# Keys that some version had, and what became of them.
GONE = {
    "disable_by_batch_size": "last in 0.11, where nothing read it any more; "
    "num_speculative_tokens_per_batch_size says how many guesses a batch size gets",
    "speculative_token_tree": "gone by 0.28; chains are all that vLLM verifies",
}
# What people write, and the key that they mean, where the two are not spelled alike.
MEANT = {
    **dict.fromkeys(("tp", "tp_size", "draft_tp", "draft_tp_size"), "draft_tensor_parallel_size"),
    **dict.fromkeys(("draft_model", "draft_model_path", "speculative_model"), "model"),
    **dict.fromkeys(("num_draft_tokens", "num_steps", "num_tokens"), "num_speculative_tokens"),
    "algorithm": "method",
}


def flags_of(version: str) -> Flags:
    """The flags of a version; those of the JSON object by dotted names."""
    return _FLAGS[version]


def since(version: str, first: str) -> bool:
    """Whether a version is no older than another."""
    return numbers(version) >= numbers(first)


def key(name: str) -> str:
    """A key of the JSON object as a flag."""
    return f"{SPEC}.{name}"


def option(flag: str) -> str:
    """A flag on the command line; a key of the JSON object is spelled as the object has it."""
    outer, dot, inner = flag.partition(".")
    return f"--{outer.replace('_', '-')}{dot}{inner}"


def keys_of(version: str) -> tuple[str, ...]:
    """Every key that the JSON object of a version takes."""
    return tuple(n.partition(".")[2] for n in flags_of(version).all if n.startswith(f"{SPEC}."))


def has(version: str, name: str) -> bool:
    """Whether the JSON object of a version takes a key."""
    return key(name) in flags_of(version)


def methods_of(version: str) -> tuple[str, ...]:
    """Every value of `method`."""
    return flags_of(version)[key("method")].choices


def renamed(method: str) -> bool:
    """Whether a method is an old name of `mtp`, one for each family of models."""
    return method.endswith("_mtp")


def nearest_key(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown key: where it went, or what is spelled like it."""
    if name in GONE:
        return f" ({GONE[name]})"
    near = [MEANT[name]] if name in MEANT else closest(name, known)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def unknown_key(version: str, name: str) -> Refusal:
    """The refusal of a key that the JSON object of a version does not take."""
    hint = nearest_key(name, keys_of(version))
    said = f"{SPEC} of vLLM {version} has no key `{name}`{hint}"
    return Refusal(Refused("V1", said, "ValidationError"))
