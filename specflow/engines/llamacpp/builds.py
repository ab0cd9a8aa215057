"""llama.cpp by build: what each calls its flags, and which ways of drafting it has.

| build | known from |
|---|---|
| b5142 | source of the months before and after it, which agree, and its use in a public report |
| b9102 | source, commit 7d442abf |
| b9445 | source, commit af6528e6d |
| b11312 | source, commit 0c1e57098 |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from specflow.diagnostics import closest
from specflow.engines.flags import Flags
from specflow.engines.outcome import Refusal, Refused

TITLE = "llama.cpp"
LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
SIZED = LOOKUPS[:3]  # with flags for the tokens matched and the tokens guessed
SIMPLE, EAGLE3, MTP = "draft-simple", "draft-eagle3", "draft-mtp"
DFLASH, DSPARK = "draft-dflash", "draft-dspark"
NONE = "none"


@dataclass(frozen=True)
class Build:
    """One build of llama.cpp.

    types     what `--spec-type` takes, besides none
    runs      ways of drafting that it has; a type it takes and does not run is ignored
    explicit  a draft model alone drafts nothing: `--spec-type` names the way
    listed    `--spec-type` takes several, with commas
    model     the flag of the draft model; so the other names
    gone      flags of other builds, and what this one has for them
    """

    version: str
    types: tuple[str, ...]
    runs: tuple[str, ...]
    explicit: bool
    listed: bool
    model: str
    repository: str
    most: str
    least: str
    surest: str
    layers: str
    all_layers: int | str
    gone: Mapping[str, str]

    @property
    def title(self) -> str:
        """How messages say it."""
        return f"{TITLE} {self.version}"

    @cached_property
    def flags(self) -> Flags:
        """Its flags."""
        file = f"flags-{self.version}.tsv"
        package = "specflow.engines.llamacpp"
        return Flags(self.title, package, file, gone=self.gone, bound=False, server=_SERVER)

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """Variables that stand for a flag where the line has none, and that flag."""
        own = {**_VARIABLES, "N_GPU_LAYERS_DRAFT": self.layers}
        if self.types:
            own |= {name.upper(): name for name in _SPOKEN}
            own |= {"SPEC_DRAFT_HF_REPO": self.repository}
        else:
            own |= {"MODEL_DRAFT": self.model, "HFD_REPO": self.repository}
            own |= {"DRAFT_P_MIN": self.surest}
        return {f"LLAMA_ARG_{name}": flag for name, flag in own.items()}

    def chosen(self, text: str) -> list[str]:
        """The ways of drafting that a `--spec-type` names; none of them is an empty list.

        Raises `Refusal` for one that the build has not.
        """
        names = text.split(",") if self.listed else [text]
        for name in names:
            if name not in (NONE, *self.types):
                near = closest(name, self.types) or self.types
                said = f"{self.title} has no `--spec-type {name[:60]}`; it has {', '.join(near)}"
                raise Refusal(Refused("L1", said, "SystemExit"))
        return [] if NONE in names else list(dict.fromkeys(names))


# The binary by any of its names, or a container whose image is followed by flags.
_SERVER = (
    (r"(.*/)?llama-(server|cli|speculative\S*)(\.exe)?",),
    (r".*/server(\.exe)?",),
    (r"\S*llama\.cpp[:@]\S*",),
)
# A flag that the build has not any more is refused by its variable too.
_VARIABLES = {
    "MODEL": "model",
    "HF_REPO": "hf_repo",
    "CTX_SIZE": "ctx_size",
    "N_PARALLEL": "parallel",
    "N_GPU_LAYERS": "gpu_layers",
    "N_PREDICT": "predict",
    "THREADS": "threads",
    "UBATCH": "ubatch_size",
    "DRAFT_MAX": "draft_max",
    "DRAFT_MIN": "draft_min",
}
_SPOKEN = (
    *("spec_type", "spec_draft_model", "spec_draft_n_max", "spec_draft_n_min"),
    *("spec_draft_p_min", "spec_draft_p_split"),
)
_OLD = {
    "draft": "draft_max",
    "draft_n": "draft_max",
    "draft_max": "draft_max",
    "draft_min": "draft_min",
    "draft_n_min": "draft_min",
}
_NEW = {
    "draft_max": "it was removed; write --spec-draft-n-max, or --spec-ngram-mod-n-max",
    "draft_min": "it was removed; write --spec-draft-n-min, or --spec-ngram-mod-n-min",
}
_REMOVED = {name: _NEW[kind] for name, kind in _OLD.items()} | {
    f"spec_ngram_{what}": f"it was removed; write --spec-ngram-TYPE-{what.replace('_', '-')}"
    for what in ("size_n", "size_m", "min_hits")
}
_LATER = {
    "spec_draft_n_max": "it came later; write --draft-max",
    "spec_draft_n_min": "it came later; write --draft-min",
    "spec_draft_p_min": "it came later; write --draft-p-min",
    "spec_draft_p_split": "it came later",
    "spec_draft_model": "it came later; write --model-draft",
    "spec_draft_hf": "it came later; write --hf-repo-draft",
    "spec_draft_ngl": "it came later; write --gpu-layers-draft",
    "spec_type": "it came later; this build drafts by a draft model alone",
}
_CONTEXT = dict.fromkeys(
    ("spec_draft_ctx_size", "ctx_size_draft", "cd"),
    "it was removed; a draft's context is the target's",
)


def _named(version: str, types: tuple[str, ...], runs: tuple[str, ...], **more: bool) -> Build:
    """A build since the flags of drafts begin with `spec`."""
    gone = _REMOVED | (_CONTEXT if more["listed"] else {})
    return Build(
        version=version,
        types=types,
        runs=runs,
        model="spec_draft_model",
        repository="spec_draft_hf",
        most="spec_draft_n_max",
        least="spec_draft_n_min",
        surest="spec_draft_p_min",
        layers="spec_draft_ngl",
        all_layers="all",
        gone=gone,
        **more,
    )


_OLDEST = Build(
    version="b5142",
    types=(),
    runs=(SIMPLE,),
    explicit=False,
    listed=False,
    model="model_draft",
    repository="hf_repo_draft",
    most="draft_max",
    least="draft_min",
    surest="draft_p_min",
    layers="gpu_layers_draft",
    all_layers=999,
    gone=_LATER,
)
_FIRST = (SIMPLE, EAGLE3, MTP, *LOOKUPS)
_ALL = (SIMPLE, EAGLE3, MTP, DFLASH, DSPARK, *LOOKUPS)
_BUILDS = (
    _OLDEST,
    _named("b9102", LOOKUPS, (SIMPLE, *LOOKUPS), explicit=False, listed=False),
    _named("b9445", _FIRST, (SIMPLE, MTP, *LOOKUPS), explicit=False, listed=True),
    _named("b11312", _ALL, _ALL, explicit=True, listed=True),
)
BUILDS: Mapping[str, Build] = {build.version: build for build in _BUILDS}
