"""Files that mean harm, or are none: no traceback, no waiting, no memory beyond their own size."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specflow import header_entries
from specflow.diagnostics import Diagnostic
from specflow.errors import RecipeError
from specflow.facts import builtins, describe_draft, read
from specflow.headers import LARGEST_HEADER, parsed_size
from specflow.load import loads
from specflow.resolve import resolve
from tests.checkpoint_files import (
    CONFIG,
    DFLASH,
    DFLASH_CONFIG,
    DSPARK,
    DSPARK_CONFIG,
    EAGLE,
    EAGLE3,
    HIDDEN,
    LM,
    ONE,
    RANK,
    VOCAB,
    Shapes,
    write,
    write_tokenizer,
)

FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
PATIENCE = 60  # seconds: what hangs hangs for ever, what is slow here takes two
MB = 1_000_000


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """A reader that waits fails its test, and not the whole run."""
    signal.signal(signal.SIGALRM, _waited)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)


def _waited(*_: object) -> None:
    raise AssertionError("a reader waits for what will not come")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded target."""
    return Path(shutil.copytree(builtins()["pico-llama"], tmp_path / "model"))


def found(text: str) -> list[Diagnostic]:
    """The findings of a recipe, each of which has a place and a way out."""
    try:
        findings = list(resolve(loads(text)).findings)
    except RecipeError as error:
        findings = list(error.diagnostics)
    assert all(each.labels and each.help for each in findings)
    assert "SF090" not in [each.code for each in findings]
    return findings


def of_target(model: Path | str) -> list[Diagnostic]:
    return found(f"target: {{model: '{model}'}}\ndraft: {{algorithm: NGRAM}}")


def codes(model: Path | str) -> list[str]:
    return [each.code for each in of_target(model)]


def raw_header(file: Path, text: bytes, size: int = 8) -> None:
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))


def weight(begin: int = 0, end: int = 8, **changes: object) -> dict[str, Any]:
    spec = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    return spec | changes


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (json.dumps({"a": weight(), "b": weight(4, 8)}), "overlap"),
        (json.dumps({"a": weight(0, 4), "b": weight(6, 8)}), "leave a gap"),
        (json.dumps({"a": weight(0, 2**62)}), "where its header says"),
        (json.dumps({"a": weight(-8, 0)}), "broken header"),
        ('{"a": ' + json.dumps(weight()) + ', "a": ' + json.dumps(weight()) + "}", "in it twice"),
        ('{"a": ' + json.dumps(weight()) + ', "\\u0061": ' + json.dumps(weight()) + "}", "twice"),
        (json.dumps({"a": weight()}) + "{}", "broken header"),
        ('{"a":' * 5000, "broken header"),
        ('{"a": {"shape":' + "[" * 4000 + "}}", "broken header"),
        ('{"a": {"dtype":"F32","shape":[1' + "0" * 4400 + "]}}", "broken header"),
        ('{"a": {"dtype":"F32","shape":[1e400],"data_offsets":[0,8]}}', "broken header"),
        ('{"a": {"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', "broken header"),
        ('{"__metadata__": {"a": {"b": "c"}}}', "broken header"),
        ('{"__metadata__": {}, "__metadata__": {}}', "broken header"),
        ('{"a" 1}', "broken header"),
        ("{ ", "broken header"),
        ("{}", "where its header says"),
    ],
)
def test_a_header_that_lies(folder: Path, header: str, says: str) -> None:
    raw_header(folder / WEIGHTS, header.encode())
    (finding,) = of_target(folder)
    assert finding.code == "SF063"
    assert says in finding.message


def test_a_header_in_other_words_is_the_same(folder: Path) -> None:
    """Spaces, the order of keys, escapes and notes with brackets in them."""
    text = r"""  { "__metadata__" : {"format":"pt","of":"{\"a\": [}","x\"y":""} ,
      "\u0061\n.weight":{"data_offsets":[0,8],"shape":[ 2 ],"dtype":"F32"} }   """
    raw_header(folder / WEIGHTS, text.encode())
    assert read(str(folder)).shapes == {"a\n.weight": (2,)}
    assert list(header_entries.entries(b"{}  ")) == []


@pytest.mark.parametrize("length", [0, 1, 100, LARGEST_HEADER + 1, 2**63, 2**64 - 1])
def test_a_header_longer_than_its_file(folder: Path, length: int) -> None:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", length) + b"{}")
    assert codes(folder) == ["SF063"]


def test_headers_are_bounded_together(folder: Path) -> None:
    """Many shards, each just below the limit, are refused at the second."""
    (folder / WEIGHTS).unlink()
    names = [f"model-{i:05}.safetensors" for i in range(1000)]
    for name in names:
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", LARGEST_HEADER // 2 + 1) + b'{"a":')
            file.truncate(LARGEST_HEADER)
    content = b"{" + b" " * (LARGEST_HEADER // 2 - 1) + b"}"
    (folder / names[0]).write_bytes(struct.pack("<Q", len(content)) + content)
    (folder / INDEX).write_text(json.dumps({"weight_map": {n: n for n in names}}))
    (finding,) = of_target(folder)
    assert "are the most that is read of all files" in finding.message


BOMBS = {
    "lists": (b"[],", b"[", b"0]"),
    "objects": (b'{"":{}},', b"[", b"0]"),
    "numbers": (b"1e1,", b"[", b"0]"),
    "texts": (b'"ab",', b"[", b"0]"),
}
GROWTH = """
import sys
from specflow.facts import read
def most(): return 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = most()
facts = read(sys.argv[1])
said = facts.problem or facts.tokenizer_problem
print(most() - before, bool(said), facts.tokenizer_size)
"""


def growth(model: Path) -> tuple[int, bool, int]:
    """Bytes that reading a model takes at most, whether it is refused, and its tokens."""
    run = subprocess.run(
        [sys.executable, "-c", GROWTH, str(model)], capture_output=True, text=True, check=True
    )
    grown, refused, tokens = run.stdout.split()
    return int(grown), refused == "True", int(tokens)


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("name", ["config.json", INDEX, "tokenizer.json", WEIGHTS])
def test_what_unfolds_when_it_is_parsed(folder: Path, name: str, bomb: str) -> None:
    """Two bytes of JSON may be a hundred of memory: 50 MB would be 2 GB."""
    part, begin, end = BOMBS[bomb]
    text = b'{"a":' + begin + part * (50 * MB // len(part)) + end + b"}"
    if name == WEIGHTS:
        raw_header(folder / name, text)
    else:
        (folder / name).write_bytes(text)
    grown, refused, _ = growth(folder)
    assert refused or name == "config.json"  # a config may say more than is read
    # Brackets are refused by the text alone, which is held twice; what has none may be parsed, up
    # to the bound on that.
    assert grown < (300 if bomb in ("lists", "objects") else 1300) * MB


def test_what_json_takes_is_told_before_it_is_parsed() -> None:
    assert parsed_size(b"[" + b"[]," * 1000 + b"0]") > 100 * 1000
    assert parsed_size("é".encode() * 1000) > parsed_size(b"ee" * 1000)


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILES, INDEX])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0" * 4096,
        '{"a": 1}'.encode("utf-16"),
        b'{"a": ' * 100_000,
        b'{"a": 1' + b"0" * 100_000 + b"}",
        b'{"a": \xff}',
        b"{} {}",
        b"null",
    ],
)
def test_a_text_that_is_no_object(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert codes(folder) == ["SF063"]


@pytest.mark.parametrize(
    "changes",
    [
        {"text_config": [1, 2]},
        {"text_config": {"text_config": {"text_config": {"vocab_size": 1}}}},
        {"text_config": {"vocab_size": "x"}},
        {"text_config": {"num_hidden_layers": 1e400}},
        {"architectures": {"a": 1}},
        {"architectures": [[["x"]]]},
        {"layer_types": {"a": 1}},
        {"layer_types": [[1], None]},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 10**4000},
        {"model_type": ["llama"]},
        {"sliding_window": 2**63},
        {"sliding_window": 1e20},
        {"max_position_embeddings": 1},
        {"num_attention_heads": 4, "num_key_value_heads": 3},
        {"num_attention_heads": 4, "num_key_value_heads": 0},
        {"eos_token_id": [2**70]},
        {"a\0b": "\0"},
    ],
)
def test_a_config_that_says_odd_things(folder: Path, changes: dict[str, Any]) -> None:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | changes))
    assert set(codes(folder)) <= {"SF063", "SF020", "SF044"}


def test_a_key_that_is_said_twice_is_the_last(folder: Path) -> None:
    """As every reader of it does."""
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"vocab_size": 7,', 1))
    assert read(str(folder)).vocab_size == 2048


def test_a_tokenizer_of_a_million_tokens(folder: Path) -> None:
    vocab = {f"token{i}": i for i in range(1_000_000)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    grown, refused, tokens = growth(folder)
    assert (refused, tokens) == (False, 1_000_000)
    assert grown < 500 * MB  # its text, a million words and ids, and one copy of the table
    assert codes(folder) == ["SF020"]


# -- what is no file, and what lies elsewhere ------------------------------------------------------


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_socket(path: Path) -> None:
    place = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(f"/proc/self/fd/{place}/{path.name}")  # a path of a socket is short
    os.close(place)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_folder(path: Path) -> None:
    path.mkdir()


def put_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("put", [put_fifo, put_socket, put_device, put_folder, put_nothing])
@pytest.mark.parametrize("name", [*FILES, WEIGHTS, INDEX])
def test_a_name_that_is_no_file(folder: Path, name: str, put: Any) -> None:
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    needed = name in ("config.json", "tokenizer.json", WEIGHTS)
    assert codes(folder) == ["SF063"] * needed


@pytest.mark.parametrize("put", [put_fifo, put_socket, put_device, put_folder, put_nothing])
@pytest.mark.parametrize("name", ["x", "x.gguf", "x.safetensors"])
def test_a_model_that_is_no_file(tmp_path: Path, name: str, put: Any) -> None:
    put(tmp_path / name)
    assert codes(tmp_path / name) in (["SF063"], ["SF061"])


@pytest.mark.parametrize("put", [put_fifo, put_socket, put_device, put_folder, put_nothing])
@pytest.mark.parametrize("field", ["cost_table", "temperatures"])
def test_a_measured_file_that_is_none(tmp_path: Path, field: str, put: Any) -> None:
    put(tmp_path / "x.json")
    findings = found(
        "target: {model: builtin:pico-llama}\n"
        "draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}\n"
        f"verify: {{shape: ragged, {field}: '{tmp_path}/x.json'}}"
    )
    said = " ".join(each.message for each in findings)
    assert f"{tmp_path}/x.json" in said
    assert ("there is no file" in said) == (put is put_nothing)


def test_the_cache_of_the_hub_is_links(tmp_path: Path) -> None:
    """A snapshot there is a folder of links to blobs that lie beside it."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for at, file in enumerate(sorted(builtins()["pico-llama"].iterdir())):
        if file.is_file():
            shutil.copy(file, blobs / f"{at:040}")
            (snapshot / file.name).symlink_to(f"../../blobs/{at:040}")
    assert codes(snapshot) == []


@pytest.mark.parametrize("name", ["..", ".", "../model.safetensors", "/etc/passwd", "a/../b", ""])
def test_an_index_names_files_beside_it(folder: Path, name: str) -> None:
    (folder / WEIGHTS).rename(folder.parent / WEIGHTS)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    (finding,) = of_target(folder)
    assert f"names `{name}`, which is no file beside it" in finding.message


def test_a_tensor_in_two_shards(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    shards = {"x": "a.safetensors", "y": "b.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": shards}))
    (finding,) = of_target(folder)
    assert "is both in a.safetensors and in b.safetensors" in finding.message


@pytest.mark.parametrize("part", ["..", "../..", "../llama", "x", "x/y", "/etc", "config.json"])
def test_a_builtin_has_no_way_out(part: str) -> None:
    facts = read(f"builtin:pico-deepseek/{part}")
    assert facts.problem is not None
    assert facts.problem.message == f"`builtin:pico-deepseek` has no part `{part}`"
    assert "builtin:pico-deepseek/dspark" in facts.problem.help
    assert read("builtin:pico-deepseek/dspark").problem is None


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_an_empty_name_is_not_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    assert read(name).problem is not None
    text = f"target: {{model: builtin:pico-llama}}\ndraft: {{algorithm: DSPARK, model: '{name}'}}"
    assert {each.code for each in found(text)} == {"SF061"}


def test_what_may_not_be_read(folder: Path) -> None:
    (folder / "config.json").chmod(0)
    (folder / WEIGHTS).chmod(0)
    with someone():
        (finding,) = of_target(folder)
        (other,) = of_target(folder / "config.json" / "x")
    assert "cannot be read: Permission denied" in finding.message
    assert finding.help == "check its path and permissions"
    assert other.code in ("SF061", "SF063")


@contextmanager
def someone() -> Iterator[None]:
    """As a user who may not read everything: the owner of the machine may."""
    who, group = os.geteuid(), os.getegid()
    if who:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(who)
        os.setegid(group)


# -- drafts ----------------------------------------------------------------------------------------

DRAFTS: dict[str, tuple[str, Shapes, Mapping[str, Any]]] = {
    "eagle": ("EAGLE", EAGLE, ONE),
    "eagle3": ("EAGLE3", EAGLE3, ONE),
    "dflash": ("DFLASH", DFLASH, DFLASH_CONFIG),
    "dspark": ("DSPARK", DSPARK, DSPARK_CONFIG),
}


def of_draft(
    folder: Path, kind: str, shapes: Shapes | None = None, without: str = "", **config: Any
) -> list[Diagnostic]:
    algorithm, ours, said = DRAFTS[kind]
    target = write_tokenizer(write(folder / "target", LM, **CONFIG))
    draft = folder / "draft"
    kept = {k: v for k, v in (dict(said) | config).items() if k != without}
    write(draft, {**ours, **(shapes or {})}, **kept)
    return found(
        f"target: {{model: '{target}'}}\ndraft: {{algorithm: {algorithm}, model: '{draft}'}}"
    )


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_whole_draft(tmp_path: Path, kind: str) -> None:
    assert of_draft(tmp_path, kind) == []


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_draft_without_tensors(tmp_path: Path, kind: str) -> None:
    of_draft(tmp_path, kind)
    raw_header(tmp_path / "draft" / WEIGHTS, b"{}", 0)
    algorithm = DRAFTS[kind][0]
    findings = found(
        f"target: {{model: '{tmp_path}/target'}}\n"
        f"draft: {{algorithm: {algorithm}, model: '{tmp_path}/draft'}}"
    )
    assert "hold no tensor" in findings[0].message


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_gguf_that_says_nothing_is_no_draft(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64))
    (finding,) = found(
        "target: {model: builtin:pico-llama}\n"
        f"draft: {{algorithm: {DRAFTS[kind][0]}, model: '{tmp_path}/x.gguf'}}"
    )
    assert finding.code == "SF060"


@pytest.mark.parametrize("said", [0, 1, 2**30])
def test_a_gguf_whose_header_does_not_end(tmp_path: Path, said: int) -> None:
    """A list of so many texts, or a text of so many bytes, and nothing behind it."""
    begin = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    for rest in (
        struct.pack("<IIQQ", 9, 8, said + 1, 2**62),
        struct.pack("<IQ", 8, said + 1),
        struct.pack("<IIQ", 9, 12, 2**23 + said),
    ):
        (tmp_path / "x.gguf").write_bytes(begin + rest)
        assert codes(tmp_path / "x.gguf") == ["SF063"]


@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_attention_heads"])
def test_a_draft_whose_config_lacks_a_size(tmp_path: Path, kind: str, key: str) -> None:
    (finding,) = of_draft(tmp_path, kind, without=key)
    assert finding.code == "SF026"
    assert f"has no `{key}` in config.json" in finding.message


@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"hidden_size": 16}, "and its config.json means"),
        ({"hidden_size": 2**20}, "and its config.json means"),
        ({"hidden_size": 0}, "is no size"),
        ({"hidden_size": True}, "is not a whole number"),
        ({"intermediate_size": 2**30}, "and its config.json means"),
        ({"intermediate_size": 0}, "is no size"),
        ({"intermediate_size": [16]}, "is no size"),
        ({"num_attention_heads": 4}, "and its config.json means"),
        ({"num_attention_heads": 0}, "heads"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "do not divide"),
        ({"num_attention_heads": 2**40}, "heads"),
        ({"head_dim": 5}, "halves are turned"),
        ({"head_dim": 2**30}, "and its config.json means"),
        ({"rms_norm_eps": float("inf")}, "is no number"),
        ({"rope_theta": float("nan")}, "is no number"),
        ({"rope_theta": "x"}, "is no number"),
        ({"rope_theta": 10**400}, "is no number"),
        ({"layer_types": ["linear_attention"]}, "does not run in a draft"),
        ({"layer_types": ["chunked_attention"]}, "does not run in a draft"),
        ({"layer_types": [["full_attention"]]}, "does not run in a draft"),
    ],
)
def test_a_draft_that_its_config_contradicts(
    tmp_path: Path, kind: str, config: dict[str, Any], says: str
) -> None:
    findings = of_draft(tmp_path, kind, **config)
    assert any(says in each.message for each in findings), [each.message for each in findings]
    assert {each.code for each in findings} <= {"SF026", "SF063"}


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"num_hidden_layers": 2}, "has weights of 1 layers, and its config.json says 2"),
        ({"num_hidden_layers": 4096}, "has weights of 1 layers"),
        ({"num_hidden_layers": 10**6}, "says 1000000 layers"),
        ({"layer_types": ["sliding_attention"]}, "no `sliding_window`"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 1e20}, "no `sliding_window`"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 2**63}, "not a whole number"),
        ({"layer_types": ["full_attention"] * 2}, "lists no `layer_types` of 1 layers"),
        ({"block_size": 100}, "guesses blocks of 100, and 63 are the most"),
        ({"block_size": 2**70}, "63 are the most"),
        ({"output_multiplier": float("inf")}, "is no number"),
        ({"logits_start": 5}, "both that rows guess ahead and that not"),
    ],
)
def test_a_block_draft_that_its_config_contradicts(
    tmp_path: Path, kind: str, config: dict[str, Any], says: str
) -> None:
    findings = of_draft(tmp_path, kind, **config)
    assert any(says in each.message for each in findings), [each.message for each in findings]
    assert {each.code for each in findings} <= {"SF026", "SF063"}


def test_a_window_wider_than_any_text_sees_all(tmp_path: Path) -> None:
    kinds = {"layer_types": ["sliding_attention"], "sliding_window": 2**31 - 1}
    assert of_draft(tmp_path, "dspark", **kinds) == []


@pytest.mark.parametrize(("start", "kind"), [(0, "dspark"), (1, "dflash")])
def test_the_first_row_that_is_scored_is_the_first_that_guesses(
    tmp_path: Path, start: int, kind: str
) -> None:
    assert of_draft(tmp_path, kind, logits_start=start) == []
    assert [f.code for f in of_draft(tmp_path, kind, logits_start=1 - start)] == ["SF063"]


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dspark"])
def test_a_draft_of_a_hundred_taps(tmp_path: Path, kind: str) -> None:
    wide = {"fc.weight": (HIDDEN, 100 * HIDDEN)}
    findings = of_draft(tmp_path, kind, wide, target_layer_ids=[0] * 100)
    assert [each.code for each in findings] == ["SF026"]
    assert "reads 100 layers, and 16 are the most" in findings[0].message


HEAD = "markov_head.markov_w1.weight"
TRUST = "confidence_head.proj.weight"


@pytest.mark.parametrize(
    "shapes",
    [
        {TRUST: (1, HIDDEN + RANK + 1)},
        {TRUST: (1, HIDDEN - 1)},
        {TRUST: (2, HIDDEN)},
        {TRUST: (HIDDEN,)},
        {TRUST: ()},
        {"confidence_head.proj.bias": (2,)},
        {HEAD: ()},
        {HEAD: (VOCAB,)},
        {HEAD: (VOCAB, RANK + 1)},
        {HEAD: (VOCAB, RANK, 1)},
        {"markov_head.markov_w2.weight": (VOCAB,)},
        {"markov_head.gate_proj.weight": (RANK, HIDDEN)},
        {"markov_head.joint_proj.weight": (RANK, HIDDEN)},
        {
            "markov_head.gate_proj.weight": (RANK, HIDDEN + RANK),
            "markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + HIDDEN),
        },
        {"fc.weight": ()},
        {"fc.weight": (HIDDEN, 0)},
        {"hidden_norm.weight": ()},
        {"norm.weight": (HIDDEN, 1)},
        {"layers.0.self_attn.k_proj.weight": ()},
        {"layers.0.self_attn.k_norm.weight": (HIDDEN,)},
        {"layers.0.mlp.up_proj.weight": (0, HIDDEN)},
        {"model.fc.weight": (HIDDEN, 2 * HIDDEN)},
        {"logit_head." + HEAD: (VOCAB, RANK)},
        {"layers.1.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN)},
        {"layers.9999999999.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN)},
    ],
)
def test_a_block_draft_of_other_shapes(tmp_path: Path, shapes: Shapes) -> None:
    findings = of_draft(tmp_path, "dspark", shapes)
    assert {each.code for each in findings} & {"SF026", "SF063"}
    assert not any("Error" in each.message for each in findings)


# Without one of these it is another kind of draft, or none.
MARKS = {
    "eagle": {"fc.weight", "layers.0.self_attn.q_proj.weight"},
    "eagle3": {"fc.weight", "midlayer.hidden_norm.weight"},
    "dflash": {"fc.weight", "hidden_norm.weight", "layers.0.self_attn.k_norm.weight"},
    "dspark": {"fc.weight", "hidden_norm.weight", "layers.0.self_attn.k_norm.weight", HEAD},
}


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_draft_lacks_no_tensor(tmp_path: Path, kind: str) -> None:
    """Each of them is missed by its published name, and none when it is there."""
    ours = DRAFTS[kind][1]
    told = {"d2t", "t2d", "lm_head.weight", TRUST, "fc.bias"}  # may be absent
    missed = [name for name in ours if name not in told | MARKS[kind]]
    assert len(missed) > 6
    for name in missed:
        kept = {n: s for n, s in ours.items() if n != name}
        folder = tmp_path / name
        folder.mkdir()
        algorithm, _, said = DRAFTS[kind]
        target = write_tokenizer(write(folder / "target", LM, **CONFIG))
        draft = write(folder / "draft", kept, **dict(said))
        (finding,) = found(
            f"target: {{model: '{target}'}}\ndraft: {{algorithm: {algorithm}, model: '{draft}'}}"
        )
        assert finding.message == f"`{draft}` lacks `{name}`"


@pytest.mark.parametrize("taps", ["[]", str([0] * 17)])
def test_taps_of_another_number_say_the_way_out(taps: str) -> None:
    (finding,) = found(
        "target: {model: builtin:pico-llama}\n"
        f"draft: {{algorithm: EAGLE3, model: builtin:pico-llama-eagle3, taps: {taps}}}"
    )
    assert "expected at " in finding.message
    assert "should" not in finding.message
    assert (finding.help or "").startswith("leave `draft.taps` out for the draft's own")


@pytest.mark.parametrize("layer", ["5", "99999999999", "9" * 5000])
def test_a_draft_layer_beyond_the_others(tmp_path: Path, layer: str) -> None:
    shapes = {
        f"model.mtp.layers.{i}.{name}": shape
        for i in ("0", "1", layer)
        for name, shape in (("eh_proj.weight", (HIDDEN, 2 * HIDDEN)), ("enorm.weight", (HIDDEN,)))
    }
    target = write_tokenizer(write(tmp_path / "target", {**LM, **shapes}, **CONFIG))
    findings = found(f"target: {{model: '{target}'}}\ndraft: {{algorithm: MULTI_LAYER_EAGLE}}")
    # A number that no layer has is the name of something else, which is told when it loads.
    assert [each.code for each in findings] == ["SF026"] * (layer == "5")
    also = {f"model.layers.{layer}.mlp.up_proj.weight": (HIDDEN, HIDDEN)}
    write(tmp_path / "target", {**LM, **also}, **CONFIG)
    assert of_target(target) == []


def test_two_tensors_for_one_place_are_named(tmp_path: Path) -> None:
    (finding,) = of_draft(tmp_path, "eagle", {"model.fc.weight": (HIDDEN, 2 * HIDDEN)})
    assert "`fc.weight` and `model.fc.weight`" in finding.message
    assert finding.help == "leave one of them out"


def test_what_was_read_of_a_pair_is_not_read_again(tmp_path: Path) -> None:
    """A network and a model are the same objects, until a file is another."""
    assert of_draft(tmp_path, "eagle3") == []
    for each in (tmp_path / "target", tmp_path / "draft"):
        for file in each.iterdir():
            os.utime(file, (1e9, 1e9))  # what was written this moment may be written again
    target, draft = (read(str(tmp_path / name)) for name in ("target", "draft"))
    assert read(str(tmp_path / "draft")) is draft
    assert describe_draft(target, draft) is describe_draft(target, draft)
    config = tmp_path / "draft" / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"other"'))
    assert read(str(tmp_path / "draft")).model_type == "other"
    os.utime(config, (1e9, 1e9))  # an older file than the one before, of the same size
    assert read(str(tmp_path / "draft")).model_type == "other"
