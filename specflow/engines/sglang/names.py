"""Flags that many rules speak of, under short names."""

from __future__ import annotations

NAME = "speculative_algorithm"
DRAFT = "speculative_draft_model_path"
STEPS = "speculative_num_steps"
TOPK = "speculative_eagle_topk"
TOKENS = "speculative_num_draft_tokens"
REJECTION = "speculative_use_rejection_sampling"
DRAFT_BACKEND = "speculative_draft_attention_backend"
# One for both phases, then one a phase.
ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
