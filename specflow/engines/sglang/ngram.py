"""Step 8 for NGRAM: no draft model, a trie."""

from __future__ import annotations

from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang.eagle import cap_requests, no_overlap_on_cpu
from specflow.engines.sglang.names import STEPS, TOKENS, TOPK
from specflow.engines.sglang.start import Given, attention_dp
from specflow.engines.sglang.tables import NGRAM_TOKENS


def ngram(run: Run, given: Given) -> None:  # noqa: ARG001
    """G1 to G8, A3."""
    if run["device"] not in ("cuda", "cpu", "xpu"):
        run.refuse("G1", f"NGRAM runs on CUDA, CPU and XPU, not on {run['device']}")
    no_overlap_on_cpu(run)
    cap_requests(run)
    run.set("enable_mixed_chunk", False, "G3", "NGRAM does not mix prefill and verify")
    breadth = run["speculative_ngram_max_bfs_breadth"]
    run.set(TOPK, breadth, "G4", "topk of NGRAM is --speculative-ngram-max-bfs-breadth")
    if run[TOKENS] is None:
        run.set(TOKENS, NGRAM_TOKENS, "3.2", "what NGRAM verifies")
    if run[STEPS] is None:
        if breadth == 0:
            run.crash("G8", "--speculative-ngram-max-bfs-breadth is 0", "ZeroDivisionError")
        run.set(STEPS, run[TOKENS] // breadth, "3.2", "draft tokens by breadth")
    _corpus(run)
    page, backend = run["page_size"], run["attention_backend"]
    if breadth > 1 and page > 1 and backend != "flashinfer":
        said = f"breadth {breadth} with a page of {page} is right on flashinfer alone"
        run.refuse("A3", f"{said}, not on {backend}")
    if attention_dp(run):
        run.refuse("G2", "NGRAM does not go with attention DP")


def _corpus(run: Run) -> None:
    """G5: a corpus takes a share of the nodes."""
    budget = run["speculative_ngram_external_sam_budget"]
    if run["speculative_ngram_external_corpus_path"] is None:
        if budget:
            said = "--speculative-ngram-external-sam-budget without a corpus"
            run.note("G7", Kind.UNCHECKED, said)
        return
    most = run[TOKENS] - 1
    if budget <= 0:
        run.refuse("G5", f"a corpus needs a budget of nodes, not {budget}")
    if run["speculative_ngram_external_corpus_max_tokens"] <= 0:
        run.refuse("G5", "--speculative-ngram-external-corpus-max-tokens is not positive")
    if budget > most:
        run.refuse("G5", f"a budget of {budget} nodes is above draft tokens - 1 = {most}")
