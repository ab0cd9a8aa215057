"""Weights that are made up: of folders with a config.json alone, in every format a draft has.

Random drafts are right by chance only, so what is proven is that such a recipe runs, that what it
makes is of the sizes the real one has, and that its output is still the target's.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode

from specflow import dummies, facts
from specflow.cli import main
from specflow.errors import RecipeError, RuntimeFault
from specflow.execute import make_session, notes_of, open_target, open_tokenizer
from specflow.facts import DraftFacts
from specflow.load import loads
from specflow.models import dummy
from specflow.models.adapters import adapt
from specflow.models.lm import LanguageModel
from specflow.models.tokenizer import ByteTokenizer
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.session import Session
from specflow.sizes import sizes_of_draft, sizes_of_target
from tests.differential.tiny_blocks import SPECFORGE, SPECULATORS, ZLAB, Look, Workshop
from tests.differential.tiny_drafts import (
    CHUNK,
    COVERED,
    LONGEST,
    PAIRS,
    Pair,
    edit_config,
    requests,
    write_tokenizer,
)
from tests.toys import tokens

# Formats whose config is silent on a part of the network, and which part a real one may lack.
SILENT = {
    "eagle": {"has_embedding", "embed_rows"},
    "eagle3_headless": {"vocab_size"},
}
LOOKS = {
    "deepspec": Look(),
    "gated": Look(markov="gated"),
    "rnn": Look(markov="rnn", config={"confidence_head_with_markov": False}),
    "no_trust": Look(trust=False, config={"enable_confidence_head": False}),
    "specforge": Look(layout=SPECFORGE),
    "speculators": Look(layout=SPECULATORS, covered=COVERED, config={"draft_vocab_size": 16}),
    "zlab": Look(layout=ZLAB, markov="", trust=False, rank=0),
    "window": Look(kinds=("sliding_attention", "sliding_attention"), rows=4),
}


class Silence:
    def say(self, text: str) -> None:
        """Nobody looks on."""


def bare(folder: Path, to: Path) -> Path:
    """A folder with the config.json of another, and nothing else."""
    to.mkdir(parents=True)
    shutil.copy(folder / "config.json", to)
    for inner in folder.glob("*/config.json"):
        bare(inner.parent, to / inner.parent.name)
    return to


def made_up(target: object, algorithm: str = "NONE", draft: object = "", **blocks: Any) -> Any:
    """A recipe of made up weights."""
    drafts = {"algorithm": algorithm} | ({"model": str(draft)} if draft else {})
    drafts |= blocks.pop("guess", {})
    run = {"load_format": "dummy", "batch_size": 4, "max_length": LONGEST, "prefill_chunk": CHUNK}
    written: dict[str, Any] = {"recipe": "tiny/dummy", "target": {"model": str(target)}}
    written |= {"draft": drafts, "run": run | blocks.pop("run", {})}
    return resolve(loads(yaml.safe_dump(written | blocks), "tiny.yaml"))


def opened(recipe: ResolvedRecipe) -> Session:
    """As `specflow run` opens it."""
    target, words = open_target(recipe, Silence())
    return make_session(recipe, target, words)


def said_by(recipe: ResolvedRecipe) -> dict[str, list[int]]:
    return tokens(opened(recipe), requests(7, 8))


def published(name: str, root: Path) -> Pair:
    """A pair; of a MiMo-7B the config counts its MTP layers, as the published one does."""
    pair = PAIRS[name](root)
    if name == "mtp_mimo":
        edit_config(pair.target, num_nextn_predict_layers=1)
    return pair


def bare_pair(name: str, root: Path) -> Pair:
    """A pair of which the configs are left."""
    pair = published(name, root / "whole")
    draft = pair.draft and bare(pair.draft, root / "bare" / "draft")
    return replace(pair, target=bare(pair.target, root / "bare" / "target"), draft=draft)


# -- every format ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_a_config_alone_tells_what_tensors_tell(name: str, tmp_path: Path) -> None:
    pair = published(name, tmp_path / "whole")
    target = facts.read_folder(pair.target)
    told = facts.describe_draft(target, pair.draft and facts.read_folder(pair.draft))
    meant = made_up(
        bare(pair.target, tmp_path / "target"),
        pair.algorithm,
        pair.draft and bare(pair.draft, tmp_path / "draft"),
    ).facts.net
    assert told.format
    assert differing(told, meant) <= SILENT.get(name, set())


@pytest.mark.parametrize("name", LOOKS)
def test_a_config_alone_tells_of_a_block(name: str, tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    made = shop(LOOKS[name])
    draft = bare(made.pair.home, tmp_path / "draft")
    recipe = made_up(bare(shop.home, tmp_path / "bare"), LOOKS[name].algorithm, draft)
    assert made.net.format
    assert differing(made.net, recipe.facts.net) == set()


def differing(one: DraftFacts, other: DraftFacts) -> set[str]:
    return {f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)}


FORMATS = [name for name in PAIRS if name != "eagle3_six"]  # of six words, which all repeat
TREES = [name for name in FORMATS if name != "mtp_layers"]  # a layer a step guesses no tree


@pytest.mark.parametrize(("name", "topk"), [*((n, 1) for n in FORMATS), *((n, 2) for n in TREES)])
def test_greedy_is_plain_decoding_in_every_format(name: str, topk: int, tmp_path: Path) -> None:
    pair = bare_pair(name, tmp_path)
    recipe = made_up(
        pair.target,
        pair.algorithm,
        pair.draft,
        guess={"num_steps": 3, "topk": topk} if topk > 1 else {"num_steps": 3},
    )
    plain = said_by(made_up(pair.target))
    assert said_by(recipe) == plain
    # It does not only repeat; weights are drawn by a folder's name, so how much it says varies.
    assert len({word for words in plain.values() for word in words}) > 2


@pytest.mark.parametrize("name", LOOKS)
def test_greedy_is_plain_decoding_by_blocks(name: str, tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    draft = bare(shop(LOOKS[name]).pair.home, tmp_path / "draft")
    target = bare(shop.home, tmp_path / "bare")
    recipe = made_up(target, LOOKS[name].algorithm, draft)
    assert said_by(recipe) == said_by(made_up(target))


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_made_up_is_what_would_be_loaded(name: str, tmp_path: Path) -> None:
    """Every weight there is, of the shape it has in the checkpoint: nothing is cheaper to run."""
    pair = published(name, tmp_path / "whole")
    draft = pair.draft and bare(pair.draft, tmp_path / "draft")
    target = bare(pair.target, tmp_path / "target")
    run, guess = {"load_format": "auto"}, {"num_steps": 3}
    real = opened(made_up(pair.target, pair.algorithm, pair.draft, guess=guess, run=run))
    made = opened(made_up(target, pair.algorithm, draft, guess=guess))
    loaded, shaped = shapes(real), shapes(made)
    silent = {f"{n}.weight" for n in ("embed_tokens", "lm_head")} if name in SILENT else set()
    assert {n: s for n, s in loaded.items() if n not in silent} == {
        n: s for n, s in shaped.items() if n not in silent
    }


def shapes(made: Session) -> dict[str, tuple[int, ...]]:
    """Of the weights of a target and its draft, by name."""
    nets = {"target": made.target.adapter.decoder}
    for model in made.drafter.models():
        nets["draft"] = (
            getattr(model, "net", None)
            or getattr(model, "model", None)
            or (
                model.adapter.decoder  # type: ignore[attr-defined]
            )
        )
    found = {f"{n} {k}": v for n, net in nets.items() for k, v in net.state_dict().items()}
    return {
        n.removeprefix("draft "): tuple(v.shape) for n, v in found.items() if torch.is_tensor(v)
    }


def test_a_name_is_a_seed(tmp_path: Path) -> None:
    """So a model that drafts for itself is always right, and every length of acceptance occurs."""
    pair = bare_pair("standalone", tmp_path)
    made = opened(made_up(pair.target, "STANDALONE", pair.target, guess={"num_steps": 3}))
    for request in requests(4, 12):
        made.submit(request)
    lengths = [n for done in made.run() for n in done.accept_lens[:-1]]  # the last is cut short
    assert lengths
    assert set(lengths) == {4}
    one, again, other = (
        dummy.causal_lm(replace(dummies.reader(facts.read)(str(pair.target)), model=name),
                        device="cpu", dtype="float32")
        for name in ("a", "a", "b")
    )  # fmt: skip
    words = [m.get_input_embeddings().weight for m in (one, again, other)]
    assert torch.equal(words[0], words[1])
    assert not torch.equal(words[0], words[2])


def test_all_that_is_drawn_is_of_the_seed(tmp_path: Path) -> None:
    """A class may draw more than matrices, here the sinks of its heads: a row is zeros."""
    pair = bare_pair("mtp_layers", tmp_path)
    before = torch.get_rng_state()
    one, again = (
        dict(
            dummy.causal_lm(
                dummies.reader(facts.read)(str(pair.target)), device="cpu", dtype="float32"
            ).named_parameters()
        )
        for _ in range(2)
    )
    assert any(name.endswith("sinks") for name in one)
    assert not any(weight.any() for name, weight in one.items() if name.endswith("sinks"))
    assert [name for name in one if not torch.equal(one[name], again[name])] == []
    assert torch.equal(before, torch.get_rng_state())


class Drawn(TorchDispatchMode):
    """Counts the numbers that are drawn."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and made.device.type != "meta":
            self.count += made.numel()
        return made


def test_no_number_is_drawn_twice(tmp_path: Path) -> None:
    """What a class would draw for itself is left out, by whichever function it asks for it."""
    found = dummies.reader(facts.read)(str(wide(tmp_path / "wide")))
    with Drawn() as drawn:
        model = dummy.causal_lm(found, device="cpu", dtype="bfloat16")
    assert drawn.count == sum(w.numel() for w in model.parameters() if w.dim() > 1)


# -- what is made, and where -----------------------------------------------------------------------

WIDE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096,
    "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "initializer_range": 1.0,  # which nothing goes by
}  # fmt: skip


def wide(root: Path, **changes: Any) -> Path:
    """A folder of a config that is large enough to count bytes of."""
    root.mkdir()
    (root / "config.json").write_text(json.dumps(WIDE | changes))
    return root


def allocated(make: Any) -> tuple[Any, int, int]:
    """What a call returns, the most bytes of tensors that it held at once, and its largest one."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as told:
        made = make()
    held = most = largest = 0
    for event in told.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most, largest = max(most, held), max(largest, event.nbytes())
    return made, most, largest


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_model_is_made_in_its_own_size(dtype: str, tmp_path: Path) -> None:
    """No copy of it in another type or elsewhere, neither as a whole nor of a matrix."""
    found = dummies.reader(facts.read)(str(wide(tmp_path / "wide")))
    make = lambda: dummy.causal_lm(found, device="cpu", dtype=dtype)  # noqa: E731
    make()  # what a library allocates the first time it is used is not of the model
    model, most, largest = allocated(make)
    weights = list(model.parameters())
    own = sum(w.numel() * w.element_size() for w in weights)
    assert {w.dtype for w in weights} == {getattr(torch, dtype)}
    assert own > 20_000_000
    assert most < 1.02 * own  # the rest are tables of rotations
    assert largest == max(w.numel() * w.element_size() for w in weights)


def test_a_layer_that_is_fused_is_held_once(tmp_path: Path) -> None:
    """Queries, keys and values become parts of one matrix: where it is made, nothing is twice."""
    found = dummies.reader(facts.read)(str(wide(tmp_path / "wide")))
    model = dummy.causal_lm(found, device="cpu", dtype="bfloat16")
    own = sum(w.numel() * w.element_size() for w in model.parameters())
    wrapped = LanguageModel.wrap(model)
    lean: Any = wrapped.adapter.run
    storages = {}
    for layer in lean.layers:
        for part in (layer.qkv, layer.out, layer.gate_up, layer.down):
            storages[part.weight.untyped_storage().data_ptr()] = part.weight.untyped_storage()
    for weight in (*wrapped.adapter.decoder.parameters(), wrapped.adapter.head.weight):
        storages[weight.untyped_storage().data_ptr()] = weight.untyped_storage()
    assert sum(each.nbytes() for each in storages.values()) < 1.001 * own


def test_eight_billion_weights_are_made_on_their_device_alone() -> None:
    """On a device without memory: 16 GB are asked of it, and next to nothing of the host."""
    found = dummies.reader(facts.read)("meta-llama/Llama-3.1-8B-Instruct")
    make = lambda: dummy.causal_lm(found, device="meta", dtype="bfloat16")  # noqa: E731
    model, most, _ = allocated(make)
    own = sum(w.numel() * w.element_size() for w in model.parameters())
    assert own == 2 * 8_030_261_248
    assert most < 2_000_000  # nothing of the host


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_logits_are_finite_and_tell_words_apart(dtype: str, tmp_path: Path) -> None:
    recipe = made_up(wide(tmp_path / "wide", num_hidden_layers=24), run={"dtype": dtype})
    target, _ = open_target(recipe, Silence())
    logits = target.window(target.pool(1, 16), 16).prefill(torch.arange(12))[0]
    assert torch.isfinite(logits).all()
    assert 0.1 < float(logits.float().std()) < 10  # of the order of one, by a matrix's scale


# -- records ---------------------------------------------------------------------------------------

RECORDED = [
    ("meta-llama/Llama-3.1-8B-Instruct", "EAGLE3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
    ("Qwen/Qwen3-8B", "DFLASH", "z-lab/Qwen3-8B-DFlash-b16"),
    ("Qwen/Qwen3-8B", "DFLASH", "deepseek-ai/dflash_qwen3_8b_block7"),
    ("Qwen/Qwen3-8B", "DSPARK", "deepseek-ai/dspark_qwen3_8b_block7"),
    ("Qwen/Qwen3-4B", "DFLASH", "z-lab/Qwen3-4B-DFlash-b16"),
    ("Qwen/Qwen3-4B", "DFLASH", "deepseek-ai/dflash_qwen3_4b_block7"),
    ("Qwen/Qwen3-4B", "DSPARK", "deepseek-ai/dspark_qwen3_4b_block7"),
]


@pytest.mark.parametrize(("target", "algorithm", "draft"), RECORDED)
def test_a_recorded_pair_is_as_large_as_is_counted(target: str, algorithm: str, draft: str) -> None:
    """By the library's own layers out of the whole config, and by the rules of `sizes`."""
    recipe = made_up(target, algorithm, draft)
    assert recipe.findings == ()
    adapter = adapt(dummy.causal_lm(recipe.facts["target"], device="meta", dtype="bfloat16"))
    make: Any = dummy.draft if algorithm == "EAGLE3" else dummy.block
    net = make(recipe.facts["draft"], recipe.facts.net, adapter).net
    counted = (sizes_of_target(recipe.facts["target"]), sizes_of_draft(recipe.facts))
    table = adapter.decoder.embed_tokens.weight
    head = adapter.head.weight.numel() if adapter.head.weight is not table else 0
    assert numbers(adapter.decoder) + head == total(counted[0])
    trust = net.confidence if algorithm == "DSPARK" else None  # too small to be counted
    assert numbers(net) - (numbers(trust) if trust is not None else 0) == total(counted[1])


def numbers(net: Any) -> int:
    return sum(weight.numel() for weight in net.parameters())


def total(counted: Any) -> int:
    return int(counted.total)


# -- what is said ----------------------------------------------------------------------------------


def test_a_report_says_what_is_random(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = bare_pair("eagle3", tmp_path)
    recipe, out = tmp_path / "r.yaml", tmp_path / "out"
    recipe.write_text(yaml.safe_dump({
        "target": {"model": str(pair.target)},
        "sampling": {"max_new_tokens": 9, "ignore_eos": True},
        "draft": {"algorithm": "EAGLE3", "model": str(pair.draft)},
        "run": {"load_format": "dummy", "max_length": 64},
    }))  # fmt: skip
    words = ["run", str(recipe), "--prompt", "caf\u00e9", "--check-lossless", "--out", str(out)]
    assert main(words) == 0
    said = json.loads((out / "report.json").read_text())
    random, bytes_ = said["warnings"][:2]
    assert random.startswith("weights are random (`run.load_format: dummy`)")
    assert "accept lengths" in random
    assert bytes_ == "the target has no tokenizer here: a prompt's bytes are its ids"
    assert (said["lossless"]["failed"], said["lossless"]["identical"]) == (False, 1)
    line = json.loads((out / "completions.jsonl").read_text())
    assert line["prompt_tokens"] == 5  # bytes of four characters
    shown = capsys.readouterr().out
    assert random in " ".join(shown.split())
    rows = {line.partition("  ")[0] for line in shown.splitlines()}
    assert {"a step", "of it", "a plain step", "breaks even at", "lossless"} <= rows
    assert not rows & {"accept length", "draft accept rate", "speed", "speedup", "looping"}
    assert json.loads((out / "completions.jsonl").read_text())["text"] not in shown
    step = said["step_ms"]
    assert said["steps"] == said["totals"]["verifies"]  # of one request, after its first token
    assert step["total"] == pytest.approx(step["draft"] + step["verify"] + step["commit"])
    for phase in ("draft", "verify", "commit"):
        assert step[phase] == pytest.approx(1000 * said["seconds"][phase] / said["steps"])
    assert said["baseline"]["steps"] == 8


@pytest.mark.parametrize("key", ["n_group", "num_experts_per_tok", "qk_rope_head_dim"])
def test_what_the_library_fills_in_may_not_go_with_the_rest(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((facts.PICO / "deepseek" / "config.json").read_text())
    config.pop(key)
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [f"target.model={tmp_path}", "run.load_format=dummy", "--prompt", "ab"]
    assert main(["run", "pico/plain", *words]) == 1
    said = capsys.readouterr()
    assert f"the sizes in config.json of `{tmp_path}` do not go together" in said.out + said.err
    assert "SF090" not in said.out + said.err


def test_of_a_record_an_error_is_not_the_configs() -> None:
    found = facts.ModelFacts("org/name", dummy=True, recorded="its record")
    with pytest.raises(IndexError), dummy.first_forward(found):
        raise IndexError
    with pytest.raises(RuntimeFault), dummy.first_forward(replace(found, recorded="")):
        raise IndexError


def test_a_tokenizer_that_is_there_is_read(tmp_path: Path) -> None:
    pair = bare_pair("standalone", tmp_path)
    write_tokenizer(pair.target, 24)
    recipe = made_up(pair.target)
    assert [n for n in notes_of(recipe, 0) if "bytes" in n] == []
    assert open_tokenizer(recipe).encode("w7") == [7]


def test_bytes_are_ids() -> None:
    words = ByteTokenizer(24, frozenset({1}))
    assert words.encode("a\u00e9") == [97 % 24, 0xC3 % 24, 0xA9 % 24]
    wide_words = ByteTokenizer(128256, frozenset())
    assert wide_words.decode(wide_words.encode("a\u00e9")) == "a\u00e9"
    assert wide_words.decode([97, 128000]) == "a\N{REPLACEMENT CHARACTER}"
    chat = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert wide_words.encode_chat(chat) == list(b"a\nb")
    assert (words.stop_ids, words.has_chat_template) == ({1}, True)


# -- what cannot be made ---------------------------------------------------------------------------


def test_a_model_of_no_known_type_is_refused(tmp_path: Path) -> None:
    folder = wide(tmp_path / "wide", model_type="unheard_of")
    with pytest.raises(RuntimeFault, match="which the library does not know; correct its config"):
        open_target(made_up(folder), Silence())


def test_what_does_not_fit_is_refused_before_it_is_made(tmp_path: Path) -> None:
    folder = wide(tmp_path / "wide", vocab_size=2**31 - 1, hidden_size=2**16, head_dim=64)
    with pytest.raises(RuntimeFault, match=r"take \d+\.\d GiB, and .* free on cpu; name a "):
        open_target(made_up(folder), Silence())


def test_a_container_has_less_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dummy, "CGROUP", tmp_path)
    machine = dummy.free_bytes(torch.device("cpu"))
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert dummy.free_bytes(torch.device("cpu")) == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert dummy.free_bytes(torch.device("cpu")) != 3000
    assert machine is None or machine > 3000


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"text_config": {"vocab_size": 9}}, "says no|is no config"),
        ({"num_attention_heads": 0}, "heads"),
        ({"hidden_size": -8}, "hidden_size"),
        ({"num_key_value_heads": 3}, "divide"),
        ({"rms_norm_eps": "small"}, "no config"),
        ({"hidden_act": "unheard_of"}, "no weights can be made"),
        ({"num_hidden_layers": 0}, "says no `num_hidden_layers`"),
        ({"head_dim": 3}, "says heads of 3"),
    ],
)
def test_a_broken_config_is_told(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    folder = wide(tmp_path / "wide", **changes)
    with pytest.raises((RecipeError, RuntimeFault), match=says):
        opened(made_up(folder, "NONE"))


def test_a_draft_of_another_target_is_told(tmp_path: Path) -> None:
    """What is told from headers of a real draft is told from the config of a made up one."""
    pair = bare_pair("eagle3", tmp_path)
    edit_config(pair.target, hidden_size=48, num_attention_heads=4)
    with pytest.raises(RecipeError, match=r"SF02[356]"):
        made_up(pair.target, "EAGLE3", edited(pair.draft, target_hidden_size=32))


def edited(folder: Path | None, **changes: object) -> Path:
    assert folder is not None
    edit_config(folder, **changes)
    return folder
