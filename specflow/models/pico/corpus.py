"""The corpus of the embedded models: Python source that every machine with specflow already has.

The standard library comes whole, then files of the permissively licensed packages specflow depends
on, in an order drawn from the seed, until the token budget is met. Whole files are held out, by a
hash of their path, so that a file never changes sides when the budget does.
"""

from __future__ import annotations

import hashlib
import json
import random
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PACKAGES = (
    "transformers",
    "torch",
    "pydantic",
    "omegaconf",
    "jinja2",
    "rich",
    "tokenizers",
    "safetensors",
)
SKIPPED = (
    "test",
    "tests",
    "testing",
    "site-packages",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "encodings",
    "__pycache__",
)
HELD_OUT_SHARE = 24  # one file in so many is never trained on
LARGEST_FILE = 200_000  # bytes; larger ones are tables
VOCABULARY = 2048
BOS = "<|endoftext|>"  # opens a file and closes the one before it: the end-of-text token as well
SPECIALS = (BOS, "<|pad|>", "<|mask|>", "<|user|>", "<|assistant|>")
# Runs of spaces stay together (indentation is one token), digits come singly, a word may carry one
# leading space.
SPLIT = r"\n| +(?=\S)|\s+|\d| ?[A-Za-z_]+| ?[^\sA-Za-z_\d]+"


def roots() -> dict[str, Path]:
    """Where the sources lie, by the name they have in the corpus; the standard library first."""
    found = {"stdlib": Path(sysconfig.get_paths()["stdlib"])}
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found[package] = Path(spec.origin).parent
    return found


def files(seed: int) -> list[tuple[str, Path]]:
    """Source files as (corpus path, path): the standard library, then packages in drawn order."""
    listed: list[tuple[str, Path]] = []
    packaged: list[tuple[str, Path]] = []
    for name, root in roots().items():
        into = listed if name == "stdlib" else packaged
        for path in sorted(root.rglob("*.py")):
            relative = path.relative_to(root)
            if not set(SKIPPED) & set(relative.parts) and 200 < path.stat().st_size < LARGEST_FILE:
                into.append((f"{name}/{relative.as_posix()}", path))
    random.Random(seed).shuffle(packaged)
    return listed + packaged


def held_out(name: str) -> bool:
    """Whether a file is kept from training, decided by its corpus path alone."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % HELD_OUT_SHARE == 0


def read(path: Path) -> str:
    """The text of a source file, with tabs as four spaces."""
    return path.read_text(encoding="utf-8", errors="ignore").expandtabs(4)


def train_tokenizer(seed: int, sample_bytes: int = 14_000_000) -> Tokenizer:
    """A byte-level BPE of VOCABULARY tokens, trained on the head of the training files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def sample() -> Iterator[str]:
        left = sample_bytes
        mixed = files(seed)
        random.Random(seed + 1).shuffle(mixed)
        for name, path in mixed:
            if left > 0 and not held_out(name):
                text = read(path)
                left -= len(text)
                yield text

    tokenizer.train_from_iterator(sample(), trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, seed: int, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out tokens, uint16, files joined; training stops at `budget` tokens."""
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    count = 0
    for name, path in files(seed):
        if held_out(name):
            if len(test) < 80:
                test.append(np.array(tokenizer.encode(read(path)).ids, dtype=np.uint16))
        elif count < budget:
            ids = np.array(tokenizer.encode(read(path)).ids, dtype=np.uint16)
            train.append(ids)
            count += len(ids)
    return np.concatenate(train), np.concatenate(test)


def prepare(work: Path, seed: int, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens, made once a work folder: tokenizer.json, train.npy, test.npy, corpus.json."""
    work.mkdir(parents=True, exist_ok=True)
    ready = work / "corpus.json"
    if not ready.exists():
        tokenizer = train_tokenizer(seed)
        tokenizer.save(str(work / "tokenizer.json"))
        train, test = encode(tokenizer, seed, budget)
        np.save(work / "train.npy", train)
        np.save(work / "test.npy", test)
        facts = {"seed": seed, "train_tokens": int(train.size), "held_out_tokens": int(test.size)}
        ready.write_text(json.dumps(facts, indent=1) + "\n")
    return np.load(work / "train.npy"), np.load(work / "test.npy")
