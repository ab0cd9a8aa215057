"""Does a model load whole or not at all, and does a bad folder say what is wrong?"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Tokens
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from specflow import facts, pools
from specflow.errors import RuntimeFault
from specflow.models import lm, loading, tokenizer
from specflow.models.lm import LanguageModel
from specflow.models.loading import load_weights, open_model
from specflow.models.tokenizer import Tokenizer
from tests.differential.tiny_models import BASE, build
from tests.gguf_files import made

WORDS = "the model says what the model would say, and nothing else: 1 + 2 = 3\n\n  été 😀"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<{{ m['role'] }}>{% generation %}{{ m['content'] | tojson }}{% endgeneration %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole tiny Llama."""
    torch.set_num_threads(1)
    build("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_whole_folder_loads(folder: Path) -> None:
    model = LanguageModel.load(open_model(str(folder)), device="cpu", dtype="float32")
    assert (model.vocab_size, model.max_positions, model.layers) == (97, 256, 4)
    assert model.stop_ids == {1}
    logits, _, _ = model.window(model.pool(1, 8), 8).prefill(torch.tensor([3, 4, 5]))
    stock = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(
        logits, stock(torch.tensor([[3, 4, 5]])).logits[:, -1], atol=1e-4, rtol=1e-4
    )


def test_a_split_folder_loads(folder: Path) -> None:
    stock = LlamaForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    stock.save_pretrained(folder, max_shard_size="100KB")
    assert len(loading.weight_files(open_model(str(folder)))) > 1
    LanguageModel.load(folder, device="cpu", dtype="bfloat16")
    loading.weight_files(folder)[0].unlink()
    with pytest.raises(RuntimeFault, match=r"lacks model-00001-of.*, which its index names"):
        open_model(str(folder))


def test_a_tied_head_is_not_missing(tmp_path: Path) -> None:
    build("qwen2").save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    load_weights(tmp_path, device="cpu", dtype="float32")


def break_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def cut_in_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def nonsense(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not a model")


def grown(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")


def renamed(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")


def marked(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text(), encoding="utf-8-sig")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (break_config, "has no config.json"),
        (only_pickle, "as a pickle only"),
        (no_weights, "has no safetensors file"),
        (cut_off, "bytes where its header says"),
        (cut_in_header, "cut short in its header"),
        (nonsense, "is no safetensors file"),
        (grown, "bytes where its header says"),
        (renamed, "only other.safetensors"),
        (marked, "not a JSON object in UTF-8"),
    ],
)
def test_a_broken_folder_is_refused(
    folder: Path, damage: Callable[[Path], None], says: str
) -> None:
    damage(folder)
    for attempt in (
        lambda: open_model(str(folder)),
        lambda: LanguageModel.load(folder, device="cpu", dtype="float32"),
    ):
        with pytest.raises(RuntimeFault, match=says) as caught:
            attempt()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: w.pop("model.layers.2.mlp.up_proj.weight"), "missing weights, `model.layers.2"),
        (
            lambda w: w.update({"model.layers.0.extra": torch.zeros(2)}),
            "weights nothing reads, `model.layers.0.extra`",
        ),
        (
            lambda w: w.update({"lm_head.weight": torch.zeros(5, 64)}),
            "another shape, `lm_head.weight`",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    folder: Path, change: Callable[..., object], says: str
) -> None:
    edit_weights(folder, change)
    with pytest.raises(RuntimeFault, match=says):
        LanguageModel.load(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "no_such_model"}, "does not load"),
        ({"num_attention_heads": "many"}, "does not load"),
        ({"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}, "does not load"),
    ],
)
def test_a_config_nobody_knows_is_refused(
    folder: Path, changes: dict[str, object], says: str
) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(RuntimeFault, match=says):
        LanguageModel.load(folder, device="cpu", dtype="float32")


def test_a_config_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(RuntimeFault, match="is not a JSON object"):
        LanguageModel.load(folder, device="cpu", dtype="float32")


def test_unknown_dtype_and_device_are_refused(folder: Path) -> None:
    with pytest.raises(RuntimeFault, match="`fp8` is not a dtype"):
        load_weights(folder, device="cpu", dtype="fp8")
    with pytest.raises(RuntimeFault, match="cannot put"):
        load_weights(folder, device="cuda:99", dtype="float32")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("builtin:pico-lama", "specflow ships no `pico-lama`"),
        ("/nowhere/at/all", "does not exist"),
        ("/nowhere/at/all.gguf", "does not exist"),
        ("Qwen/Qwen3-8B", "only a record is here.*hf download Qwen/Qwen3-8B"),
        (__file__, "neither a folder nor a GGUF file"),
    ],
)
def test_a_path_to_nothing_is_refused(path: str, says: str) -> None:
    with pytest.raises(RuntimeFault, match=says):
        open_model(path)


def test_builtin_names_are_the_folders_that_exist(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "PICO", folder.parent)
    assert facts.builtins() == {"pico-llama": folder}
    assert open_model("builtin:pico-llama") == folder
    with pytest.raises(RuntimeFault, match="built in are builtin:pico-llama"):
        open_model("builtin:pico-lama")


def test_gguf_without_its_packages_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "user_cache_path", lambda _: tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "gguf", None)
    file = tmp_path / "model.gguf"
    file.write_bytes(made())
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RuntimeFault, match=r"pip install gguf accelerate"):
        open_model(str(file))


def test_gguf_conversion_leaves_nothing_half_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(loading, "user_cache_path", lambda _: cache)
    file = tmp_path / "model.gguf"
    file.write_bytes(made())

    def killed(_: Path, aside: Path) -> None:
        (aside / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "_write_converted", killed)
    with pytest.raises(KeyboardInterrupt):
        open_model(str(file))
    assert not list((cache / "gguf").iterdir())

    calls = []

    def written(_: Path, aside: Path) -> None:
        calls.append(aside)
        for each in folder.iterdir():
            (aside / each.name).write_bytes(each.read_bytes())

    monkeypatch.setattr(loading, "_write_converted", written)
    converted = open_model(str(file))
    assert open_model(str(file)) == converted
    assert len(calls) == 1
    LanguageModel.load(converted, device="cpu", dtype="float32")
    file.write_bytes(made(weights=96))
    assert open_model(str(file)) != converted


def test_a_gguf_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setattr(loading, "user_cache_path", lambda _: tmp_path / "cache")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(RuntimeFault, match="does not begin as a GGUF file"):
        open_model(str(file))
    file.write_bytes(made())  # a whole header, and no model
    with pytest.raises(RuntimeFault, match=r"cannot be read as GGUF: .*; download the model again"):
        open_model(str(file))
    assert not list((tmp_path / "cache" / "gguf").iterdir())


def test_an_unwritable_cache_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setattr(loading, "user_cache_path", lambda _: tmp_path / "cache")
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda _: True)
    file = tmp_path / "model.gguf"
    file.write_bytes(made())
    with pytest.raises(
        RuntimeFault, match=r"cannot write to .*; free the folder, or set XDG_CACHE"
    ):
        open_model(str(file))


def test_what_killed_conversions_left_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".writing-old", tmp_path / ".writing-new"
    for each in (old, new):
        each.mkdir()
        (each / "model.safetensors").write_bytes(b"half")
    os.utime(old, (0, 0))
    loading._sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_no_floats_are_refused(folder: Path, dtype: torch.dtype) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(folder, lambda w: w.update({name: w[name].to(dtype)}))
    with pytest.raises(RuntimeFault, match=f"stores `{name}` as .*; use float weights"):
        load_weights(open_model(str(folder)), device="cpu", dtype="float32")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(folder: Path, value: float) -> None:
    edit_weights(folder, lambda w: w["model.norm.weight"].fill_(value))
    with pytest.raises(RuntimeFault, match=r"`model\.norm\.weight` of .* not finite"):
        load_weights(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize("said", [[[1]], {"a": 1}, "1", [True]])
def test_odd_stop_ids_are_refused(said: object) -> None:
    model = build("llama")
    object.__setattr__(model.generation_config, "eos_token_id", said)
    with pytest.raises(RuntimeFault, match="is no token id"):
        lm.find_stop_ids(model)


def test_a_reason_has_its_type_and_all_its_lines(folder: Path) -> None:
    edit_json(folder / "config.json", num_attention_heads="many")
    with pytest.raises(RuntimeFault, match=r"Error: .*num_attention_heads.*many") as caught:
        load_weights(folder, device="cpu", dtype="float32")
    assert str(caught.value).endswith("; download the model again, or name another")
    assert loading.one_line(KeyError("nope")) == "KeyError: 'nope'"
    assert loading.one_line(ValueError()) == "ValueError"
    assert len(loading.one_line(ValueError("x\n" * 500))) <= 220


def test_a_signal_passes_the_boundary_and_a_panic_does_not() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(RuntimeFault, match="PanicException"), loading.foreign("it"):
        raise panic
    with pytest.raises(KeyboardInterrupt), loading.foreign("it"):
        raise KeyboardInterrupt


QWEN3_NEXT = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "head_dim": 16, "linear_num_value_heads": 2,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
MOE = {"num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 16}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: build(
                "llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
            ),
            "rope type `dynamic`",
        ),
        (lambda: Qwen3NextForCausalLM(Qwen3NextConfig(**BASE, **QWEN3_NEXT)), "`linear_attention`"),
        (
            lambda: Llama4ForCausalLM(Llama4TextConfig(**BASE, **MOE, intermediate_size_mlp=32)),
            "`chunked_attention`",
        ),
        (lambda: StableLmForCausalLM(StableLmConfig(**BASE)), "drops keywords"),
    ],
)
def test_what_cannot_be_driven_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(RuntimeFault, match=says):
        LanguageModel.wrap(make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: GptOssForCausalLM(GptOssConfig(**BASE, **MOE)),
        lambda: Olmo2ForCausalLM(Olmo2Config(**BASE)),
        lambda: Starcoder2ForCausalLM(Starcoder2Config(**BASE, sliding_window=8)),
    ],
)
def test_an_unlisted_architecture_is_tried_at_load(
    make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    LanguageModel.wrap(make())
    monkeypatch.setattr(lm, "stock_trial", lambda model: torch.ones(4, model.config.vocab_size))
    with pytest.raises(RuntimeFault, match="says something else"):
        LanguageModel.wrap(make())


def write_tokenizer(folder: Path, *, beside: bool) -> None:
    tokens = Tokens(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokens.train_from_iterator([WORDS] * 4, trainer)
    tokens.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
    }
    if beside:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    else:
        config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


CHAT = [{"role": "user", "content": "hello 😀"}, {"role": "assistant", "content": "1 < 2"}]


@pytest.mark.parametrize("beside", [False, True])
def test_tokenizer_agrees_with_the_library(tmp_path: Path, beside: bool) -> None:
    write_tokenizer(tmp_path, beside=beside)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    ours = Tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "</s>"}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in (WORDS, "", " x", "<s>the</s>", "\t\r\n"):
        ids = ours.encode(text)
        assert ids == theirs(text).input_ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert ours.render_chat(CHAT) == expected
    assert ours.encode_chat(CHAT) == theirs(expected, add_special_tokens=False).input_ids
    assert (ours.vocab_size, ours.stop_ids, ours.has_chat_template) == (len(theirs), {1}, True)


def test_embedded_tokenizers_agree_with_the_library() -> None:
    targets = [f for f in facts.builtins().values() if (f / "tokenizer.json").is_file()]
    assert len(targets) >= 5  # a draft network brings none
    for folder in targets:
        ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
        assert ours.encode(WORDS) == theirs(WORDS).input_ids
        expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
        assert ours.render_chat(CHAT) == expected


def test_a_template_may_refuse(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, beside=True)
    with pytest.raises(RuntimeFault, match="no tools"):
        Tokenizer(tmp_path).encode_chat([{"role": "tool", "content": "x"}])


def test_a_template_runs_in_a_sandbox(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, beside=True)
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(RuntimeFault, match="refuses"):
        Tokenizer(tmp_path).encode_chat(CHAT)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RuntimeFault, match="is not a tokenizer"):
        Tokenizer(tmp_path)
    write_tokenizer(tmp_path, beside=True)
    (tmp_path / "chat_template.jinja").unlink()
    plain = Tokenizer(tmp_path)
    assert not plain.has_chat_template
    with pytest.raises(RuntimeFault, match="no chat template"):
        plain.encode_chat(CHAT)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "RecursionError"),
        ("{% if 1 %}" * 2000 + "{% endif %}" * 2000, "does not parse: RecursionError"),
        # Which limit ends these first, memory or time, is the machine's affair.
        ("{{ '%1000000000d' % 1 }}", "MemoryError|TimeoutError"),
        ("{{ messages | tojson(indent=99999999) }}", "MemoryError|TimeoutError"),
        ("{{ 'x' * 5000000 }}", "writes 5000000 characters"),
        ("{% set n = namespace(s=9) %}{% for _ in 'x' * 99 %}{% set n.s = n.s ~ n.s %}{% endfor %}",
         "MemoryError|TimeoutError"),
        ("{{ messages[9].content.x }}", "UndefinedError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ '\\ud800' }}", "refuses this text"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for _ in range(99999) %}{% for _ in range(99999) %}{% endfor %}{% endfor %}",
         "TimeoutError: not done after"),
        ("{{ 9 ** (9 ** 9) }}", "TimeoutError"),  # one call of C, folded as the template compiles
    ],
)  # fmt: skip
def test_a_template_has_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, says: str
) -> None:
    monkeypatch.setattr(tokenizer, "LONGEST_RENDER", 0.3)
    write_tokenizer(tmp_path, beside=True)
    (tmp_path / "chat_template.jinja").write_text(template)
    before = signal.getsignal(signal.SIGALRM), resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(RuntimeFault, match=says):
        Tokenizer(tmp_path).encode_chat(CHAT)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert (signal.getsignal(signal.SIGALRM), resource.getrlimit(resource.RLIMIT_AS)) == before


def test_a_timer_that_ran_before_goes_on() -> None:
    def spin() -> None:
        with tokenizer._time_limit(0.01):
            while True:
                pass

    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        with pytest.raises(TimeoutError):
            spin()
        assert 50 < signal.setitimer(signal.ITIMER_REAL, 0)[0] < 60
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_template_renders_outside_the_main_thread(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, beside=True)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: Tokenizer(tmp_path).render_chat(CHAT)).result()


@pytest.mark.parametrize(
    "said", [5, [1], [{"name": "default"}], [{"name": [1], "template": "x"}], [[]], {"a": 1}]
)
def test_a_config_without_a_template_that_is_one(tmp_path: Path, said: object) -> None:
    write_tokenizer(tmp_path, beside=False)
    edit_json(tmp_path / "tokenizer_config.json", chat_template=said)
    assert not Tokenizer(tmp_path).has_chat_template


def break_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")


def break_normalizer(folder: Path) -> None:
    broken = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}  # a panic of the library
    edit_json(folder / "tokenizer.json", normalizer=broken)


def break_stop_ids(folder: Path) -> None:
    (folder / "config.json").write_text('{"eos_token_id": [[1]]}')


@pytest.mark.parametrize("damage", [break_template, break_normalizer, break_stop_ids])
def test_a_broken_tokenizer_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    write_tokenizer(tmp_path, beside=True)
    damage(tmp_path)
    with pytest.raises(RuntimeFault, match="; download "):
        Tokenizer(tmp_path)


def test_a_text_the_tokenizer_cannot_take_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, beside=True)
    ours = Tokenizer(tmp_path)
    for attempt in (lambda: ours.encode("\ud800"), lambda: ours.decode([-1])):
        with pytest.raises(RuntimeFault, match="the tokenizer"):
            attempt()
    words = Tokens(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RuntimeFault, match="refuses this text"):
        Tokenizer(tmp_path).encode("b")


def test_a_pool_larger_than_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {0: pools.LayerShape(1, 64, 64)}
    for length in (2**33, 2**60, 2**70):
        with pytest.raises(RuntimeFault, match=r"GiB.*; lower `run\.batch_size` or `run\.max_"):
            pools.KVPool(64, length, shapes)
    with pytest.raises(
        RuntimeFault, match=r"take 4097\.0 GiB where \d+\.\d GiB of memory are free"
    ):
        pools.KVPool(64, 2**27, shapes)
    monkeypatch.setattr(pools, "MEMORY", Path("/nowhere"))
    with pytest.raises(RuntimeFault, match="and cannot be allocated"):
        pools.KVPool(64, 2**45, shapes)
