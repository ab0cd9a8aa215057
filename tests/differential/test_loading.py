"""Does a model load whole or not at all, and does a bad folder say what is wrong?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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

from specflow import facts
from specflow.errors import RuntimeFault
from specflow.models import lm, loading
from specflow.models.lm import LanguageModel
from specflow.models.loading import load_weights, open_model
from specflow.models.tokenizer import Tokenizer
from tests.differential.tiny_models import BASE, build

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
    logits = model.window(model.pool(1, 8), 8).prefill(torch.tensor([3, 4, 5]))
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
    with pytest.raises(RuntimeFault, match="lacks model-00001-of.*, which its index names"):
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
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RuntimeFault, match=r"pip install 'specflow\[gguf\]'"):
        open_model(str(file))


def test_gguf_conversion_leaves_nothing_half_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(loading, "user_cache_path", lambda _: cache)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")

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
    file.write_bytes(b"GGUF and more")
    assert open_model(str(file)) != converted


def test_a_gguf_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setattr(loading, "user_cache_path", lambda _: tmp_path / "cache")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(RuntimeFault, match="does not begin as a GGUF file"):
        open_model(str(file))
    file.write_bytes(b"GGUF and nothing of the kind")
    with pytest.raises(RuntimeFault, match="cannot be read as GGUF: .*; download the model again"):
        open_model(str(file))
    assert not list((tmp_path / "cache" / "gguf").iterdir())


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
        (lambda: GptOssForCausalLM(GptOssConfig(**BASE, **MOE)), "`s_aux`"),
        (lambda: StableLmForCausalLM(StableLmConfig(**BASE)), "drops keywords"),
    ],
)
def test_what_cannot_be_driven_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(RuntimeFault, match=says):
        LanguageModel.wrap(make())


@pytest.mark.parametrize(
    "make",
    [
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
    for folder in facts.builtins().values():
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
