"""SF070 to SF089: the machine, and what a recipe says of findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specflow.backends import CAPABILITIES, EXTRA, Asked, installed, lacking
from specflow.diagnostics import Drop, Put
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, place_of, rule
from specflow.sizes import known_config

WITH_SINKS = ("gpt_oss", "mimo_v2_flash")  # model types whose heads have a sink


@rule("SF071", "longer-than-context")
def longer_than_context(r: ResolvedRecipe) -> Iterator[Finding]:
    """A request fills no more positions than the target was made for.

    ## Why
    Past its context a model was never trained and its position tables may end.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {max_length: 4096}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {max_length: 1024}
    ```

    ## Fix
    Lower `run.max_length`, or leave it out.
    """
    context = r.facts["target"].max_positions
    if context and r.run.max_length > context:
        yield Finding(
            at="run.max_length",
            message=f"a request of {r.run.max_length} positions leaves "
            f"the target's context of {context}",
            label=f"at most {context}",
            because={"target.model": f"max_position_embeddings is {context}"},
            help=f"lower `run.max_length` to {context} or less",
            fix=Put("run.max_length", context),
        )


@rule("SF074", "half-precision-on-cpu", warning=True)
def half_precision_on_cpu(r: ResolvedRecipe) -> Iterator[Finding]:
    """Speculation on a CPU runs in float32.

    ## Why
    On CPUs without fast half-precision units a forward in bfloat16 costs as much a position as the
    one before it, so verifying guesses gains nothing; and near ties fall differently at different
    widths, so that greedy output differs from plain decoding. `run.device` is `cpu` where nobody
    says otherwise; what `--engine`, `--gpu` and `--memory h200` ask is about a GPU.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {dtype: bfloat16}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {dtype: float32}
    ```

    ## Fix
    Leave `run.dtype` out, or allow the warning with a reason.
    """
    if r.run.device == "cpu" and r.run.dtype != "float32":
        yield Finding(
            at="run.dtype",
            message=f"{r.run.dtype} on a CPU makes wide verifies dear and ties fall by width",
            label="float32 is the CPU's type",
            help="leave `run.dtype` out, or silence this with `allow: {SF074: why}`",
            fix=Drop("run.dtype", safe=False),
        )


@rule("SF078", "backend-not-installed", warning=True)
def backend_not_installed(r: ResolvedRecipe) -> Iterator[Finding]:
    """The package that computes attention is installed where a recipe runs.

    ## Why
    The kernels of `run.attention` come with packages of their own, which a machine without a GPU
    does not need. A recipe can be validated and compiled there all the same, so this is a warning;
    `specflow run` stops.

    ## Example
    ```sh
    specflow validate pico/plain run.device=cuda run.dtype=bfloat16 run.attention=flashinfer
    ```

    Use instead:
    ```sh
    specflow validate pico/plain run.device=cuda run.attention=sdpa
    ```

    ## Fix
    Install the extra: `pip install 'specflow[gpu]'`. Or let torch compute it:
    `run.attention: sdpa`.
    """
    row = CAPABILITIES[r.run.attention]
    if r.run.device in row.devices and not installed(row):  # elsewhere nothing asks for it
        yield Finding(
            at="run.attention",
            message=f"`run.attention: {r.run.attention}` needs the package `{row.package}`, "
            "which is not installed here",
            label="not installed",
            help=f"install it with `pip install '{EXTRA}'`, or write `run.attention: sdpa`",
        )


@rule("SF076", "backend-needs-device")
def backend_needs_device(r: ResolvedRecipe) -> Iterator[Finding]:
    """Attention is computed by what runs on the recipe's device.

    ## Why
    The kernels of `triton` and `flashinfer` are a GPU's; on a CPU torch computes attention.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {attention: triton}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {attention: sdpa}
    ```

    ## Fix
    Leave `run.attention` out: it follows `run.device`. Or write `run.device: cuda`.
    """
    row = CAPABILITIES[r.run.attention]
    if r.run.device not in row.devices:
        yield Finding(
            at="run.attention",
            message=f"`run.attention: {r.run.attention}` runs on {' and '.join(row.devices)}, "
            f"not on {r.run.device}",
            label=f"needs {' or '.join(row.devices)}",
            because={"run.device": f"{r.run.device} is asked for"},
            help="remove `run.attention`; it is derived from `run.device`",
            fix=Drop("run.attention"),
        )


@rule("SF077", "backend-cannot-attend")
def backend_cannot_attend(r: ResolvedRecipe) -> Iterator[Finding]:
    """A backend reads what the attention of target and draft is made of.

    ## Why
    A model's heads, windows, sinks and latents are parts of its attention, and not every backend
    knows all of them, nor every type of number; `specflow.backends` has a row for each. Without
    one of them the output would be another model's.

    ## Example
    The target of `builtin:pico-deepseek` keeps latents, which flashinfer does not read.
    ```yaml
    target: {model: builtin:pico-deepseek}
    draft: {algorithm: NGRAM}
    run: {device: cuda, dtype: bfloat16, attention: flashinfer}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-deepseek}
    draft: {algorithm: NGRAM}
    run: {device: cuda, dtype: bfloat16, attention: triton}
    ```

    ## Fix
    Leave `run.attention` out, or write `sdpa`, which reads everything. Where it is the type of
    numbers that a backend has not, write a `run.dtype` that it has.
    """
    row, asked = CAPABILITIES[r.run.attention], asked_of(r)
    if r.run.device not in row.devices:
        return  # SF076 says so, and its way out changes who attends
    backend = f"`run.attention: {r.run.attention}`"
    if asked.dtype not in row.dtypes:
        written = place_of("run.dtype", r) is not None
        at, other = ("run.dtype", "run.attention") if written else ("run.attention", "run.dtype")
        words = {
            "run.dtype": f"{r.run.attention} reads {' and '.join(row.dtypes)}",
            "run.attention": f"has no {asked.dtype}",
        }
        yield Finding(
            at=at,
            message=f"{backend} has no {asked.dtype}",
            label=words[at],
            because={other: words[other]},
            help=f"write `run.dtype: {row.dtypes[0]}`, or remove `run.attention`",
            fix=Put("run.dtype", row.dtypes[0], safe=False, otherwise=("remove `run.attention`",)),
        )
    missing = [each for each in lacking(row, asked) if each != asked.dtype]
    if missing:
        reasons = _at_fault(r, asked, missing)
        whose = "draft" if tuple(reasons) == ("draft.model",) else "target"
        yield Finding(
            at="run.attention",
            message=f"{backend} has no {', no '.join(missing)}",
            label=f"cannot attend as the {whose} does",
            because=reasons,
            help="remove `run.attention`, or write `run.attention: sdpa`",
            fix=Drop("run.attention", safe=False),
        )


def _at_fault(r: ResolvedRecipe, asked: Asked, missing: list[str]) -> dict[str, str]:
    """The fields that ask for what a backend has not, each with a word on how."""
    reasons, heads = {}, f"heads of {asked.draft_head_size}"
    alike = asked.draft_head_size == asked.head_size and not asked.latents
    of_draft = {heads} if heads in missing and not alike else set()
    if set(missing) - of_draft - {"trees"}:
        reasons["target.model"] = "what its attention is made of"
    if heads in missing and "draft.model" in r:
        reasons["draft.model"] = f"its heads of {asked.draft_head_size} are read likewise"
    if "trees" in missing:
        reasons["verify.shape"] = "a token of a tree attends to its own path"
    return reasons


@rule("SF083", "graph-needs-device")
def graph_needs_device(r: ResolvedRecipe) -> Iterator[Finding]:
    """Steps are captured as CUDA graphs on a CUDA device.

    ## Why
    A graph is a list of launches that a device keeps and a host starts at once. A CPU has no such
    thing: there each step is called, or compiled where `run.compile: inductor` says so.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {graph: on}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {graph: auto}
    ```

    ## Fix
    Leave `run.graph` out: it follows `run.device`. Or write `run.device: cuda`.
    """
    if r.run.graph == "on" and r.run.device != "cuda":
        yield Finding(
            at="run.graph",
            message=f"`run.graph: on` captures CUDA graphs, and `run.device` is {r.run.device}",
            label="needs cuda",
            because={"run.device": f"{r.run.device} is asked for"},
            help="remove `run.graph`; it is derived from `run.device`",
            fix=Drop("run.graph"),
        )


@rule("SF084", "compile-needs-sdpa")
def compile_needs_sdpa(r: ResolvedRecipe) -> Iterator[Finding]:
    """What inductor compiles is the torch spelling of a step, its attention included.

    ## Why
    `run.compile: inductor` makes kernels of its own of all that torch computes. Attention by
    `triton` or `flashinfer` is a kernel already, planned and launched by code of the host that a
    trace cannot look into. Without `run.compile` a step on `cuda` runs kernels of specflow's own.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {device: cuda, compile: inductor, attention: triton}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {device: cuda, compile: inductor}
    ```

    ## Fix
    Leave `run.attention` out: it follows `run.compile`. Or leave `run.compile` out.
    """
    if r.run.compile == "inductor" and r.run.attention != "sdpa":
        yield Finding(
            at="run.attention",
            message=f"`run.compile: inductor` compiles torch's attention, "
            f"not that of `run.attention: {r.run.attention}`",
            label="is no part of what is compiled",
            because={"run.compile": "inductor is asked for"},
            help="remove `run.attention`, or remove `run.compile`",
            fix=Drop("run.attention", otherwise=("remove `run.compile`",)),
        )


def asked_of(r: ResolvedRecipe) -> Asked:
    """What a recipe asks of whoever computes its attention, as far as config.json or a record says.

    What neither says is not asked for: of a model of which no sizes are recorded, nothing is known.
    """
    config = known_config(r.facts["target"])
    return Asked(
        dtype=r.run.dtype,
        head_size=head_size(config),
        tree=r.axes.shape == "tree",
        window=bool(config.get("sliding_window")),
        softcap=bool(config.get("attn_logit_softcapping")),
        sinks=config.get("model_type") in WITH_SINKS,
        latents=bool(config.get("kv_lora_rank")),
        draft_head_size=head_size(known_config(r.facts["draft"])),
    )


def head_size(config: Mapping[str, Any]) -> int:
    """The width of the widest kind of head; 0 where config.json does not say."""
    said = [config.get(name) for name in ("head_dim", "global_head_dim")]
    known = [each for each in said if type(each) is int]
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not known and type(width) is int and type(heads) is int and heads > 0:
        known = [width // heads]
    return max(known, default=0)


@rule("SF082", "useless-allow", warning=True)
def useless_allow(r: ResolvedRecipe) -> Iterator[Finding]:
    """`allow` names warnings.

    ## Why
    An error cannot be allowed: the recipe has no step. A code that does not exist silences nothing.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    allow: [SF012]
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    ```

    ## Fix
    Remove the code from `allow`.
    """
    for code in r.useless_allow:
        yield Finding(
            at="allow",
            message=f"`allow: {code}` silences nothing: it is no warning of specflow",
            help=f"remove {code} from `allow`",
            fix=Drop(f"allow.{code}"),
        )
