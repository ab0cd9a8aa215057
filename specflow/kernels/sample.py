"""Laws and lossless draws: the target's law, and the rules that accept guesses without changing it.

B  requests    W  verified positions    K = W - 1  guesses    V  vocabulary

Sources: serial.md §3.2 (target-only tree sampling), §3.3 (chain rejection; block verification,
arXiv 2403.10444). Laws may be float32 or float64; float64 is what the tests enumerate in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.kernels.accept import tree_arrays

COLDEST = 2.0**-126  # float32 holds less only as a subnormal, which a GPU may divide by as by 0


def law_of(logits: Tensor, temperature: Tensor) -> Tensor:
    """The law a request samples from; at temperature 0 all mass on the likeliest token.

    logits       [B, ..., V]  finite, or -inf for what cannot be
    temperature  [B]          >= 0; one below COLDEST counts as 0
    returns      [B, ..., V]  float32, or float64 for float64 logits

    How far a logit is below the highest is divided, never the logit: none becomes infinite, so that
    a temperature near 0 gives the law that the rule for 0 is the limit of.
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    each = temperature.to(exact.dtype).view(-1, *[1] * (logits.ndim - 1))
    greedy = each < COLDEST
    scale = torch.where(greedy, 1.0, each)
    best = torch.zeros_like(exact).scatter_(-1, exact.argmax(-1, keepdim=True), 1.0)
    below = exact - exact.amax(-1, keepdim=True)
    return torch.where(greedy, best, (below / scale).softmax(-1))


def filter_law(law: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The law cut to its likeliest tokens: top-k, then top-p, then min-p, each renormalised.

    law    [B, W, V]
    top_k  [B]        0 keeps all
    top_p  [B]        1 keeps all; the token that crosses it is kept, so the likeliest always is
    min_p  [B]        0 keeps all; a share of the likeliest token's probability
    """
    ranked, tokens = law.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(law.shape[-1], device=law.device)
    most = torch.where(top_k > 0, top_k, law.shape[-1])[:, None, None]
    ranked = _renormalised(ranked * (rank < most))
    before = ranked.cumsum(-1) - ranked
    kept = (before < top_p[:, None, None]) | (top_p >= 1)[:, None, None] | (rank == 0)
    ranked = _renormalised(ranked * kept)
    ranked = _renormalised(ranked * (ranked >= min_p[:, None, None] * ranked[..., :1]))
    return torch.zeros_like(law).scatter_(-1, tokens, ranked)


def _renormalised(law: Tensor) -> Tensor:
    return law / law.sum(-1, keepdim=True)


def pick(weights: Tensor, coin: Tensor) -> Tensor:
    """The token at a coin of the cumulated weights, which need not sum to 1; never one of weight 0.

    weights  [..., V]  >= 0, not all 0
    coin     [...]     in [0, 1)
    returns  [...]     the first token whose running sum exceeds coin times the sum; the last with
                       weight if rounding leaves none
    """
    running = weights.cumsum(-1)
    beyond = (running > coin[..., None].to(weights.dtype) * running[..., -1:]) & (weights > 0)
    ids = torch.arange(weights.shape[-1], device=weights.device)
    first = torch.where(beyond, ids, weights.shape[-1]).amin(-1)
    last = torch.where(weights > 0, ids, 0).amax(-1)
    return torch.where(first < weights.shape[-1], first, last)


def propose(
    logits: Tensor, temperature: Tensor, coin: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What a draft proposes: its law, and the token drawn from it.

    logits       [B, V]
    temperature  [B]
    coin         [B]
    bias         [B, V]  what the token before adds to each logit
    returns      law [B, V], as of `law_of`; token [B]
    """
    law = law_of(logits if bias is None else logits + bias, temperature)
    return law, pick(law, coin)


def chain_parents(guesses: Tensor) -> Tensor:
    """The parents [B, K] of a chain: each guess hangs from the one before it."""
    return torch.arange(guesses.shape[1], device=guesses.device).expand_as(guesses)


def accept_sampled(
    guesses: Tensor, parents: Tensor, law: Tensor, coins: Tensor, single: float, acc: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk the tree by the target's law alone: inverse-CDF sampling with the children placed first.

    guesses  [B, K]     token of node i + 1; -1 is no guess
    parents  [B, K]     node that node i + 1 hangs from
    law      [B, W, V]  the target's law after each node
    coins    [B, W + 1] one a node, then the one of the last token
    single   a child at least this likely is accepted outright; 1 is lossless
    acc      divides the running sum of the children's probabilities; 1 is lossless
    returns  path [B, W] nodes then -1; accept length [B]; tokens gained [B, W], past the length
             anything
    """
    width, vocab = law.shape[1], law.shape[2]
    real = guesses >= 0
    token = guesses.clamp(min=0)
    chance = (
        law.flatten(1).gather(1, parents * vocab + token) * real
    )  # [B, K], of a child given its parent
    kin = parents[:, :, None] == parents[:, None, :]
    elder = kin & torch.ones_like(kin).tril()
    running = (chance[:, None, :] * elder).sum(-1)
    coin = coins.gather(1, parents).to(law.dtype)
    taken = real & (chance > 0) & ((coin < running / max(acc, 1e-9)) | (chance >= single))
    eldest = taken & ~(taken[:, None, :] & kin & torch.ones_like(kin).tril(-1)).any(-1)
    _, sees = tree_arrays(parents)
    holds = torch.cat([torch.ones_like(eldest[:, :1]), eldest], 1)
    on_path = (holds[:, None, :] | ~sees).all(-1)
    length = on_path.long().sum(1)
    nodes = torch.arange(width, device=law.device)
    path = torch.where(on_path, nodes, width).sort(1).values
    last = path.gather(1, length[:, None] - 1)  # [B, 1]
    rest = law.gather(1, last[:, :, None].expand(-1, 1, vocab))[:, 0]
    # Tokens refused at the last node; a token that two siblings share is refused once.
    refused = torch.zeros_like(rest).scatter_reduce_(
        1, token, (real & (parents == last)).to(rest.dtype), "amax"
    )
    final = pick(rest * (1 - refused), coins[:, width])
    ahead = path[:, 1:].clamp(max=width - 1) - 1
    gained = torch.cat([token.gather(1, ahead.clamp(min=0)), final[:, None]], 1)
    gained = torch.where(nodes == length[:, None] - 1, final[:, None], gained)
    return path.masked_fill(path == width, -1), length, gained


def accept_rejection(
    guesses: Tensor, proposed: Tensor, law: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """Chain rejection: keep a guess with chance min(1, p / q), else draw from the residual.

    guesses   [B, K]
    proposed  [B, K, V]  the law each guess was drawn from
    law       [B, W, V]  the target's
    coins     [B, W + 1]
    returns   accept length [B]; tokens gained [B, W]
    """
    p = law[:, :-1].gather(2, guesses[:, :, None])[..., 0]
    q = proposed.gather(2, guesses[:, :, None])[..., 0]
    kept = _proper(q) & (coins[:, : guesses.shape[1]].to(law.dtype) * q < p)
    count = kept.long().cumprod(1).sum(1)
    ones = torch.ones_like(law[:, 0, 0])
    return _finish(guesses, proposed, law, coins, count, ones)


def accept_block(
    guesses: Tensor, proposed: Tensor, law: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """Block verification: judge prefixes whole, on average never shorter than one by one.

    Shapes as in `accept_rejection`.
    """
    count = guesses.shape[1]
    p = law[:, :-1].gather(2, guesses[:, :, None])[..., 0]
    q = proposed.gather(2, guesses[:, :, None])[..., 0]
    share = torch.where(_proper(q), p / torch.where(_proper(q), q, 1.0), 0.0)
    ratios = [torch.ones_like(share[:, 0])]
    for i in range(count):
        ratios.append((ratios[-1] * share[:, i]).clamp(max=1.0))
    ratio = torch.stack(ratios, 1)  # [B, K + 1], r_0 .. r_K
    mass = (ratio[:, 1:-1, None] * law[:, 1:-1] - _clean(proposed)[:, 1:]).clamp(min=0).sum(-1)
    inner = torch.where(
        ratio[:, 1:-1] >= 1, 1.0, mass / (mass + 1 - ratio[:, 1:-1]).clamp(min=1e-38)
    )
    chance = torch.cat([inner, ratio[:, -1:]], 1)  # [B, K]
    kept = coins[:, :count].to(law.dtype) < chance
    steps = torch.arange(1, count + 1, device=law.device)
    longest = torch.where(kept, steps, 0).amax(1)
    return _finish(guesses, proposed, law, coins, longest, ratio.gather(1, longest[:, None])[:, 0])


def _finish(
    guesses: Tensor, proposed: Tensor, law: Tensor, coins: Tensor, count: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The token after `count` kept guesses: from the residual, or the law where all were kept."""
    width, vocab = law.shape[1], law.shape[2]
    row = law.gather(1, count[:, None, None].expand(-1, 1, vocab))[:, 0]
    none = torch.zeros_like(proposed[:, :1])
    taken = torch.cat([_clean(proposed), none], 1).gather(
        1, count[:, None, None].expand(-1, 1, vocab)
    )[:, 0]
    scale = torch.where(count == width - 1, 1.0, scale)
    residual = (scale[:, None] * row - taken).clamp(min=0)
    # All rounded away (p equal to q, and still refused): the law itself is what is left to draw
    # from.
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, row)
    final = pick(residual, coins[:, width])
    nodes = torch.arange(width, device=law.device)
    run = torch.cat([guesses, final[:, None]], 1)
    return count + 1, torch.where(nodes == count[:, None], final[:, None], run)


def _proper(q: Tensor) -> Tensor:
    """Whether a proposal's probability is one."""
    return (q > 0) & (q <= 1)


def _clean(proposed: Tensor) -> Tensor:
    """A proposal's law with entries that are no probabilities as 0."""
    return torch.where(_proper(proposed), proposed, 0.0)
