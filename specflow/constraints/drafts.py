"""SF025 to SF027, SF044 to SF046, SF060: whether a draft and its target are made for each other.

All of it is told from configs, names and shapes, before any weight loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from specflow.diagnostics import Put
from specflow.facts import CAUSAL_LM, FOR_ANOTHER, DraftFacts, ModelFacts
from specflow.formats import HIDDEN, TAPS, named
from specflow.headers import guarded, read_integers
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule
from specflow.stages import DRAFTS
from specflow.stages.base import DraftStage
from specflow.tables import MADE_FOR
from specflow.vocab_map import looks_absolute

MAP = re.compile(r"(model\.)?d2t")
# Kinds of layers whose state is overwritten at each token, in the words of config.json.
RECURRENT = frozenset(
    {"conv", "hybrid", "hybrid_sliding", "linear_attention", "mamba", "mamba2", "recurrent"}
)
# Families that have such layers, by model_type, whether or not their config.json lists them.
RECURRENT_FAMILIES = {
    "bailing_hybrid": "linear_attention",
    "bamba": "mamba",
    "falcon_h1": "hybrid",
    "falcon_mamba": "mamba",
    "glm5_next": "linear_attention",
    "jamba": "mamba",
    "kimi_k3": "linear_attention",
    "kimi_linear": "linear_attention",
    "lara_mini": "linear_attention",
    "lfm2": "conv",
    "lfm2_moe": "conv",
    "lfm3": "conv",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "minimax": "linear_attention",
    "nemotron_h": "mamba",
    "olmo_hybrid": "linear_attention",
    "qwen3_5": "linear_attention",
    "qwen3_5_moe": "linear_attention",
    "qwen3_next": "linear_attention",
    "qwen4_exp": "linear_attention",
    "recurrent_gemma": "recurrent",
    "rwkv": "recurrent",
    "xlstm": "recurrent",
    "zamba": "hybrid",
    "zamba2": "hybrid",
}
# Families whose attention is of a kind of its own, which specflow's own engine does not drive.
UNDRIVEN_FAMILIES = {"deepseek_v4": "compressed_sparse_attention"}


def holder(r: ResolvedRecipe) -> str:
    """The block whose checkpoint the draft lies in."""
    return r.facts.holder


def network(r: ResolvedRecipe) -> DraftFacts:
    """The draft network that is run; one of no format where none is, or none can be told."""
    stage = DRAFTS[r.stages[0]]
    if not stage.formats:  # nothing to tell from tensors, which takes a while
        return DraftFacts()
    net = r.facts.net
    return DraftFacts() if net.format == CAUSAL_LM or _is_the_target(stage, net) else net


def _is_the_target(stage: DraftStage, net: DraftFacts) -> bool:
    """Whether the target, a whole language model, is to draft for itself."""
    return net.bundled and _runs_a_model(stage)


def _runs_a_model(stage: DraftStage) -> bool:
    """Whether an algorithm drafts with a whole language model."""
    return CAUSAL_LM in stage.formats


@rule("SF025", "hidden-size-mismatch")
def hidden_size_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft reads states as wide as the target's.

    ## Why
    A draft network is one layer on top of another model's hidden states. Those of another target
    are of another width, or of the same and mean something else; and where the draft borrows the
    target's embedding or head, its own state has to be as wide.

    ## Example
    ```yaml
    target: {model: google/gemma-4-31B-it}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
    ```

    Use instead:
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
    ```

    ## Fix
    Name a draft that was made for this target.
    """
    target, net = r.facts["target"], network(r)
    if not net.format or not target.hidden_size:
        return
    for said in _width_faults(net, target.hidden_size):
        yield Finding(
            at=f"{holder(r)}.model",
            message=f"`{r.facts[holder(r)].model}` {said}",
            label="made for another width",
            because={"target.model": f"{target.hidden_size} wide"},
            help=FOR_ANOTHER,
        )
        return


def _width_faults(net: DraftFacts, width: int) -> Iterator[str]:
    """What is of another width than the target, as what follows the draft's name."""
    reads = net.reads
    if reads == TAPS and net.reads_width % width:
        yield f"reads rows of {net.reads_width}, which is no whole number of layers {width} wide"
    elif reads != TAPS and net.reads_width != width:
        yield f"reads states {net.reads_width} wide, and the target's are {width}"
    borrows = "embedding" if not net.has_embedding else "" if net.vocab_size else "head"
    if net.hidden_size != width and (borrows or reads == HIDDEN):
        lent = f"borrows the {borrows} of" if borrows else "goes on from the states of"
        yield f"hands on states {net.hidden_size} wide, and {lent} a target {width} wide"


@rule("SF026", "ill-fitting-draft")
def ill_fitting_draft(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft's head, its map and its taps fit one another, and the target.

    ## Why
    A draft with a small vocabulary of its own has a map `d2t`: target id = draft id + offset. A map
    that leaves the target's vocabulary, names a token twice or disagrees with `t2d` turns guesses
    into other tokens: all of them are refused, and nothing says why. So its values are read before
    anything loads; so is the number of layers that the draft says it reads.

    ## Example
    `tiny-eagle3-no-map` has a head of 5 rows and no `d2t`, beside a target of 20 tokens.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-no-map}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3}
    ```

    ## Fix
    Name a draft that was made for this target, or download it again.
    """
    net = network(r)
    if net.has_map and not net.vocab_size:
        return  # a map for a head that is not there: that is the finding
    if net.problem is not None and net.problem.kind == "misfit":
        yield Finding(
            at=f"{holder(r)}.model",
            message=net.problem.message,
            label="does not fit",
            because={
                "target.model": f"{r.facts['target'].vocab_size} tokens, "
                f"{r.facts['target'].layers} layers"
            }
            if holder(r) == "draft"
            else {},
            help=net.problem.help,
            notes=_absolute(r, net),
        )


def _absolute(r: ResolvedRecipe, net: DraftFacts) -> tuple[str, ...]:
    """A word on a map that holds ids where offsets belong."""
    vocab = r.facts["target"].vocab_size
    if not net.has_map or not looks_absolute(offsets(r.facts[holder(r)]), vocab):
        return ()
    said = "the values of `d2t` grow as ids of the target would; it holds offsets: "
    return (f"{said}target id - draft id",)


def offsets(draft: ModelFacts) -> Sequence[int]:
    """The values of `d2t`; empty where there is none, or none that can be read."""
    name = next((n for n in draft.tensors if MAP.fullmatch(n)), "")
    if not name:
        return ()
    nothing: Sequence[int] = ()
    return guarded(
        draft.model, lambda: read_integers(draft.model, name, draft.tensors[name]), nothing
    )[0]


@rule("SF027", "draft-vocabulary-mismatch")
def draft_vocabulary_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft that brings an embedding of its own has a row for each id of the target.

    ## Why
    A draft reads the tokens that the target committed. Its head may know fewer tokens, by a map;
    its embedding may not: a token without a row ends the run.

    ## Example
    ```yaml
    target: {model: Qwen/Qwen3-8B}
    draft: {algorithm: EAGLE3, model: RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3}
    ```

    Use instead:
    ```yaml
    target: {model: Qwen/Qwen3-8B}
    draft: {algorithm: EAGLE3, model: RedHatAI/Qwen3-8B-speculator.eagle3}
    ```

    ## Fix
    Name a draft that was made for this target.
    """
    target, net = r.facts["target"], network(r)
    if CAUSAL_LM in DRAFTS[r.stages[0]].formats and r.facts.net.format == CAUSAL_LM:
        net = r.facts.net  # a guess is an id, and so is what is judged by the draft's law
    rows, known = net.embed_rows, target.vocab_size
    if not rows or not known or rows == known or net.problem is not None:
        return
    yield Finding(
        at=f"{holder(r)}.model",
        message=f"`{r.facts[holder(r)].model}` embeds {rows} tokens, and the target has {known}",
        label=f"{rows} tokens",
        because={"target.model": f"{known} tokens"},
        notes=_padded(r, rows),
        help=FOR_ANOTHER,
    )


def _padded(r: ResolvedRecipe, rows: int) -> tuple[str, ...]:
    """A word on rows that no token uses, where the tokenizers are one."""
    target, draft = r.facts["target"], r.facts["draft"]
    known = target.tokenizer_size
    if not known or draft.tokenizer_size != known or not target.speaks_like(draft):
        return ()
    said = f"both tokenizers map the same {known} tokens: rows past them ({rows - known} of the "
    said += f"draft, {target.vocab_size - known} of the target) are padding, which engines pass "
    return (f"{said}over; specflow's own engine needs equal numbers of rows",)


@rule("SF044", "recurrent-target")
def recurrent_target(r: ResolvedRecipe) -> Iterator[Finding]:
    """A target that is speculated on can forget the guesses it refused.

    ## Why
    Attention keeps keys and values by position, so what a refused guess left is written over. A
    recurrent layer (Mamba, gated DeltaNet, KDA, a short convolution) folds each token into one
    state: after a verify that state holds the refused guesses too, and cannot be rolled back to the
    accepted prefix. Engines keep a copy of it for each position; specflow's own runtime does not,
    and running on would corrupt the text while acceptance looks healthy.

    ## Example
    The config.json of `tiny-qwen3-next` says `model_type: qwen3_next`; `kimi_linear`, `nemotron_h`
    and `linear_attention` among the `layer_types` say the same.
    ```yaml
    target: {model: tiny-qwen3-next}
    draft: {algorithm: NGRAM}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: NGRAM}
    ```

    ## Fix
    Run it on an engine, or name another target. Its plain decoding is not driven here either.
    """
    if r.axes.guess != "none" and not r.facts["target"].recorded:
        offer = "run this target on an engine, or name one whose layers are all attention; "
        offer += "its plain decoding is not driven here either"
        yield from _kept_state(r, "target", offer)


@rule("SF045", "recurrent-draft")
def recurrent_draft(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft model can forget the guesses that were refused.

    ## Why
    A draft model goes on from what was accepted. The state of a recurrent layer holds its refused
    guesses too, and cannot be rolled back.

    ## Example
    The draft model's config.json says `model_type: qwen3_next`.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: STANDALONE, model: tiny-qwen3-next}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: STANDALONE, model: tiny-llama}
    ```

    ## Fix
    Name a draft model whose layers are all attention.
    """
    if _runs_a_model(DRAFTS[r.stages[0]]):
        yield from _kept_state(r, "draft", "name a draft model whose layers are all attention")


@rule("SF046", "engine-only-target", warning=True)
def engine_only_target(r: ResolvedRecipe) -> Iterator[Finding]:
    """A target that is only recorded is one that specflow's own engine runs once it is here.

    ## Why
    A recipe for a recorded target is judged, explained and compiled without its weights. Where the
    target has layers that specflow's own engine does not drive, because they keep a state (KDA,
    Mamba) or attend in a way of their own, getting the weights does not help: the recipe is for an
    engine that drives them.

    ## Example
    ```yaml
    target: {model: moonshotai/Kimi-K3}
    draft: {algorithm: DSPARK, model: RadixArk/Kimi-K3-DSpark}
    ```

    Use instead:
    ```yaml
    target: {model: moonshotai/Kimi-K3}
    draft: {algorithm: DSPARK, model: RadixArk/Kimi-K3-DSpark}
    allow: {SF046: an engine runs it}
    ```

    ## Fix
    Say with `allow` that the recipe is for an engine, or name a target whose layers are all plain
    attention.
    """
    target = r.facts["target"]
    kind, evidence = undriven(target)
    if target.recorded and kind:
        yield Finding(
            at="target.model",
            message=f"`{target.model}` has `{kind}` layers: specflow's own engine will not run it, "
            "an engine that drives them will",
            label=evidence,
            help="silence this with `allow: {SF046: why}`, or name a target whose layers are all "
            "plain attention",
        )


def _kept_state(r: ResolvedRecipe, block: str, offer: str) -> Iterator[Finding]:
    """A finding where a model has layers whose state cannot be rolled back."""
    model = r.facts[block]
    kind, evidence = _recurrent(model)
    if not kind:
        return
    yield Finding(
        at=f"{block}.model",
        message=f"`{model.model}` has `{kind}` layers, whose state cannot be rolled back "
        "to the accepted prefix",
        label=evidence,
        because={"draft.algorithm": "guesses that the target refuses are taken back"},
        help=offer,
    )


def _recurrent(model: ModelFacts) -> tuple[str, str]:
    """A kind of layer that keeps a state, and what says so; both empty where there is none."""
    listed = [kind for kind in model.layer_types if kind in RECURRENT]
    if listed:
        return listed[0], f"{len(listed)} of {model.layers} layers keep a state"
    return ("", "") if model.layer_types else _of_a_family(model, RECURRENT_FAMILIES)


def undriven(model: ModelFacts) -> tuple[str, str]:
    """A kind of layer that specflow's own engine does not drive, and what says so."""
    kind, evidence = _recurrent(model)
    return (kind, evidence) if kind else _of_a_family(model, UNDRIVEN_FAMILIES)


def _of_a_family(model: ModelFacts, families: Mapping[str, str]) -> tuple[str, str]:
    """The kind of layer that a model's family has, and the model type that says so."""
    types = (str(said or "") for said in (model.model_type, model.text.get("model_type")))
    found = next((t for t in types if t.removesuffix("_text") in families), "")
    if not found:
        return "", ""
    return families[found.removesuffix("_text")], f"`model_type` is {found}"


@rule("SF060", "foreign-draft-architecture")
def foreign_draft(r: ResolvedRecipe) -> Iterator[Finding]:
    """An algorithm runs the kind of draft it was made for.

    ## Why
    An EAGLE3 draft that is run as EAGLE, or the other way round, starts and guesses nothing that
    holds: the run is correct, and slower than plain decoding. What a draft is, is told from its
    tensors, never from its name.

    ## Example
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
    ```

    Use instead:
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
    ```

    ## Fix
    Write the algorithm that the finding offers, or name another draft.
    """
    stage = DRAFTS[r.stages[0]]
    if not stage.formats:
        return
    net = r.facts.net
    if net.format in stage.formats or _is_the_target(stage, net):
        return
    if not net.format:
        yield from _unknown_draft(r, stage)
        return
    at = f"{holder(r)}.model"
    checkpoint, evidence = r.facts[holder(r)], _evidence(r.facts[holder(r)])
    if net.format == CAUSAL_LM and checkpoint.model == r.facts["target"].model:
        yield Finding(
            at=at,
            message=f"`{checkpoint.model}` is the target itself, and holds no draft "
            f"that {_called(r)} runs",
            label=evidence,
            because={"draft.algorithm": f"runs {_runs(stage)}"},
            help=FOR_ANOTHER,
        )
        return
    offer = MADE_FOR[net.format]
    holds = "holds" if net.bundled else "is"
    yield Finding(
        at="draft.algorithm",
        message=f"{_called(r)} does not run `{checkpoint.model}`: it {holds} {_doc(net.format)}",
        label=f"made for it: {offer}",
        because={at: evidence},
        help=f"write `algorithm: {offer}`, or name a draft that {_called(r)} runs",
        fix=Put("draft.algorithm", offer, safe=net.format != CAUSAL_LM),
    )


def _unknown_draft(r: ResolvedRecipe, stage: DraftStage) -> Iterator[Finding]:
    """A draft that is of no known kind, where enough of it could be read to say so."""
    draft, net = r.facts["draft"], r.facts.net
    if not draft.model or draft.problem is not None or net.problem is not None:
        return
    if _runs_a_model(stage) and not (draft.layers and draft.hidden_size):
        return  # a config in words of its own: whether it is whole shows when it loads
    yield Finding(
        at="draft.model",
        message=f"`{draft.model}` is neither a draft network that specflow knows "
        "nor a whole language model",
        label=_evidence(draft),
        because={"draft.algorithm": f"runs {_runs(stage)}"},
        help=FOR_ANOTHER,
    )


def _doc(form: str) -> str:
    return "a whole language model" if form == CAUSAL_LM else named(form).doc


def _runs(stage: DraftStage) -> str:
    """What an algorithm runs, the first of it: the others are ways to publish the same."""
    return _doc(stage.formats[0])


def _evidence(checkpoint: ModelFacts) -> str:
    return "as recorded of it" if checkpoint.recorded else "told from its tensors"


def _called(r: ResolvedRecipe) -> str:
    """The algorithm as it was written, and what that means where it is an alias."""
    now, *before = r.ledger.history("draft.algorithm")
    return f"{before[-1].value} ({now.value})" if before else str(now.value)
