"""Train the embedded models: `python -m specflow.models.pico.train llama --work build/pico`.

Each run is checkpointed once a minute into the work folder and goes on where it stopped. `export`
writes the Hugging Face folder that ships with specflow, in bfloat16, with the figures of the run
beside it in training.json.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specflow.models.families import register
from specflow.models.pico.corpus import BOS, SPECIALS, VOCABULARY, prepare

HERE = Path(__file__).parent
SEED = 1729
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' if m['role'] != 'system' else '' }}"
    "{{ m['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Plan:
    """How one embedded model is made."""

    tokens: int  # seen in training
    batch: int  # tokens a step
    peak: float  # learning rate of Muon, the matrices
    teacher: str | None  # a plan trained before, whose distribution this one learns
    family: str  # what transformers calls the model type
    shape: dict[str, object]  # fields of its config
    length: int = 512  # tokens a sequence
    long: float = 0.2  # the last share of the run, at 1024 tokens a sequence instead
    begins: str | None = None  # a plan trained before, whose weights this one begins with
    publishes: str | None = None  # what config.json calls its class, where that is not ours


PLANS = {
    "llama": Plan(
        tokens=16_000_000,
        batch=8192,
        peak=0.02,
        teacher=None,
        family="llama",
        shape={
            "tie_word_embeddings": True,
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    ),
    "llama-s": Plan(
        tokens=6_000_000,
        batch=8192,
        peak=0.02,
        teacher="llama",
        family="llama",
        shape={
            "tie_word_embeddings": True,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ),
    "deepseek": Plan(
        tokens=3_600_000,
        batch=4096,
        peak=0.02,
        teacher="llama",
        family="deepseek_v3",
        length=256,
        long=0.15,
        shape={
            "hidden_size": 192,
            "intermediate_size": 512,
            "num_hidden_layers": 3,
            "num_nextn_predict_layers": 1,
            "first_k_dense_replace": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": 96,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 192,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
        },
    ),
    "mimo": Plan(
        tokens=3_600_000,
        batch=4096,
        peak=0.02,
        teacher="llama",
        family="mimo_v2_flash",
        length=256,
        long=0.1,
        shape={
            "hidden_size": 192,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "layer_types": [FULL, SLIDING, SLIDING, FULL],
            "sliding_window": 128,
            "mlp_layer_types": ["dense", "dense", "sparse", "dense"],
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 48,
            "v_head_dim": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 192,
        },
    ),
    "gemma4": Plan(
        tokens=3_600_000,
        batch=4096,
        peak=0.02,
        teacher="llama",
        family="gemma4_text",
        length=256,
        long=0.15,
        shape={
            "hidden_size": 192,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
            "sliding_window": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 48,
            "global_head_dim": 64,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
            "final_logit_softcapping": 30.0,
        },
    ),
    "qwen3": Plan(
        tokens=1_600_000,
        batch=4096,
        peak=0.02,
        teacher="llama",
        family="qwen3",
        length=256,
        long=0.15,
        shape={
            "tie_word_embeddings": True,
            "hidden_size": 160,
            "intermediate_size": 448,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 40,
        },
    ),
    "glm": Plan(
        tokens=1_400_000,
        batch=4096,
        peak=0.02,
        teacher="llama",
        family="glm4_moe",
        length=256,
        long=0.15,
        shape={
            "hidden_size": 160,
            "intermediate_size": 448,
            "num_hidden_layers": 3,
            "num_nextn_predict_layers": 1,
            "first_k_dense_replace": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 40,
            "use_qk_norm": True,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 160,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
        },
    ),
    "kimi": Plan(
        tokens=1_400_000,
        batch=4096,
        peak=0.012,
        teacher="llama",
        family="kimi_k2",
        length=256,
        long=0.25,
        begins="deepseek",
        publishes="DeepseekV3ForCausalLM",
        shape={
            "hidden_size": 192,
            "intermediate_size": 512,
            "num_hidden_layers": 3,
            "num_nextn_predict_layers": 0,
            "first_k_dense_replace": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": 96,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 192,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.827,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        },
    ),
}
CORPUS_TOKENS = 14_000_000
UPCYCLED = 0.01  # noise on a copy of an expert, in units of its spread
BALANCE = 0.002  # what a step moves a routing bias by


def build(plan: Plan) -> PreTrainedModel:
    """A fresh model of the plan's family and shape."""
    torch.manual_seed(SEED)
    config = AutoConfig.for_model(
        plan.family,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        **plan.shape,
    )
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    if plan.begins is not None:
        begin_as(model, AutoModelForCausalLM.from_pretrained(HERE / plan.begins))
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.register_forward_hook(balance)
    return model


@torch.no_grad()
def begin_as(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Take over another model's weights; where there are more experts, they are noisy copies."""
    given = other.state_dict()
    for name, mine in model.state_dict().items():
        theirs = given[name].to(mine.dtype)
        if theirs.shape != mine.shape:
            copies = mine.shape[0] // theirs.shape[0]
            theirs = torch.cat([theirs] * copies)
            theirs = theirs + UPCYCLED * theirs.std() * torch.randn_like(theirs)
        mine.copy_(theirs)


def balance(router: torch.nn.Module, _: object, routed: tuple[Tensor, ...]) -> None:
    """Favour the experts that a training step used less than their share, by their bias alone."""
    if router.training:
        bias = router.e_score_correction_bias
        used = torch.bincount(routed[2].flatten(), minlength=bias.numel()).float()
        bias += BALANCE * (used.mean() - used).sign()


def optimisers(model: torch.nn.Module, peak: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embedding, head, routers, the rest."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, p in model.named_parameters():
        inner = p.ndim == 2 and not any(part in name for part in ("embed", "lm_head", "mlp.gate."))
        (matrices if inner else others).append(p)
    return [
        torch.optim.Muon(
            matrices, lr=peak, weight_decay=0.01, momentum=0.95, adjust_lr_fn="original"
        ),
        torch.optim.AdamW(others, lr=peak * 0.15, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def schedule(done: float) -> float:
    """Learning rate as a share of its peak: a short warm-up, a plateau, a linear decay to 2 %."""
    return min(1.0, done / 0.01 + 0.01, 0.02 + 0.98 * (1.0 - done) / 0.6)


def draw(tokens: np.ndarray, step: int, rows: int, length: int) -> Tensor:
    """`rows` windows of length + 1 tokens by the step's seed, so a resumed run sees the same."""
    starts = np.random.default_rng((SEED, step)).integers(0, tokens.size - length - 1, rows)
    return torch.from_numpy(np.stack([tokens[s : s + length + 1] for s in starts]).astype(np.int64))


def logits_of(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """Logits [N, V] in float32 of a forward under bfloat16 autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        return model(input_ids=ids, use_cache=False).logits.float().flatten(0, 1)


def loss_of(model: torch.nn.Module, teacher: torch.nn.Module | None, batch: Tensor) -> Tensor:
    """Cross entropy with the text, or with a teacher's distribution where there is one."""
    logits = logits_of(model, batch[:, :-1])
    if teacher is None:
        return F.cross_entropy(logits, batch[:, 1:].flatten())
    with torch.no_grad():
        wanted = logits_of(teacher, batch[:, :-1]).softmax(-1)
    return F.cross_entropy(logits, wanted)


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, test: np.ndarray, rows: int = 64) -> float:
    """Nats a token on `rows` spread windows of 512 held-out tokens."""
    starts = np.linspace(0, test.size - 514, rows).astype(int)
    batch = torch.from_numpy(np.stack([test[s : s + 513] for s in starts]).astype(np.int64))
    losses = [
        F.cross_entropy(logits_of(model, b[:, :-1]), b[:, 1:].flatten()) for b in batch.split(8)
    ]
    return float(torch.stack(losses).mean())


def run(
    model: torch.nn.Module,
    loss: Callable[[Tensor], Tensor],
    plan: Plan,
    tokens: np.ndarray,
    folder: Path,
) -> float:
    """Train to the plan's end, from the last checkpoint if one is there; returns seconds spent."""
    opts = optimisers(model, plan.peak)
    peaks = [g["lr"] for o in opts for g in o.param_groups]
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "last.pt"
    step, seen, spent = 0, 0, 0.0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        for opt, kept in zip(opts, state["opts"], strict=True):
            opt.load_state_dict(kept)
        step, seen, spent = state["step"], state["seen"], state["spent"]
    began = at = time.monotonic()
    while seen < plan.tokens:
        long = seen >= plan.tokens * (1 - plan.long)
        length = 1024 if long else plan.length
        rows = plan.batch // length
        share = schedule(seen / plan.tokens)
        for group, peak in zip((g for o in opts for g in o.param_groups), peaks, strict=True):
            group["lr"] = peak * share
        value = loss(draw(tokens, step, rows, length))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + rows * length
        if time.monotonic() - at > 60 or seen >= plan.tokens:
            at = time.monotonic()
            state = {
                "model": model.state_dict(),
                "opts": [o.state_dict() for o in opts],
                "step": step,
                "seen": seen,
                "spent": spent + at - began,
            }
            torch.save(state, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
            print(
                f"{seen / 1e6:.2f}M tokens, loss {float(value):.3f}, {spent + at - began:.0f} s",
                flush=True,
            )
    return spent + time.monotonic() - began


def export(
    model: PreTrainedModel,
    work: Path,
    folder: Path,
    figures: dict[str, object],
    publishes: str | None = None,
) -> None:
    """Write the Hugging Face folder: config, bfloat16 weights, tokenizer, figures of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    if publishes is not None:
        config = folder / "config.json"
        said = json.loads(config.read_text()) | {"architectures": [publishes]}
        config.write_text(json.dumps(said, indent=2) + "\n")
    shutil.copy(work / "tokenizer.json", folder / "tokenizer.json")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": BOS,
        "pad_token": SPECIALS[1],
        "mask_token": SPECIALS[2],
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "training.json").write_text(json.dumps(figures, indent=1) + "\n")


def main() -> None:
    """Train one plan, measure it on held-out files, write it into the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(PLANS))
    parser.add_argument("--work", type=Path, default=Path("build/pico"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    register()
    plan = PLANS[args.name]
    tokens, test = prepare(args.work, SEED, CORPUS_TOKENS)
    print(f"corpus: {tokens.size / 1e6:.1f}M tokens, {test.size / 1e6:.2f}M held out", flush=True)
    teacher = None
    if plan.teacher is not None:
        teacher = AutoModelForCausalLM.from_pretrained(HERE / plan.teacher, dtype=torch.float32)
        teacher.eval()
    model = build(plan)
    spent = run(
        model, lambda batch: loss_of(model, teacher, batch), plan, tokens, args.work / args.name
    )
    nats = held_out_loss(model.eval(), test)
    figures: dict[str, object] = {
        "held_out_nats_per_token": round(nats, 4),
        "held_out_perplexity": round(math.exp(nats), 2),
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(spent),
        "seed": SEED,
        "corpus": json.loads((args.work / "corpus.json").read_text()),
        "plan": asdict(plan),
    }
    print(json.dumps(figures), flush=True)
    export(model, args.work, HERE / args.name, figures, plan.publishes)


if __name__ == "__main__":
    main()
