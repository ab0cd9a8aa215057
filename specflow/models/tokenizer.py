"""What the tokens of a text or a conversation are, and the text of some tokens.

Reads `tokenizer.json` itself: the library's classes say the same after seconds of import.
"""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import current_thread, main_thread
from time import monotonic
from typing import Any, NoReturn, Protocol

import tokenizers
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specflow import facts, headers
from specflow.errors import RuntimeFault
from specflow.models.loading import foreign

LONGEST_RENDER = 10  # seconds a template may run, and
LARGEST_RENDER = 4_000_000  # characters it may write, and
RENDER_MEMORY = 512 << 20  # bytes it may take
PLAIN = "give it plain prompts, or name another model"
BYTES, MARK = 256, "\N{REPLACEMENT CHARACTER}".encode()
Message = Mapping[str, Any]  # {"role": ..., "content": ...}


class Words(Protocol):
    """What a run asks of a tokenizer."""

    stop_ids: frozenset[int]

    @property
    def has_chat_template(self) -> bool:
        """Whether a conversation can be read."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with those the model wants around it."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation up to where the assistant's answer begins."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""


class ByteTokenizer:
    """Bytes as ids, for a model whose weights are made up and which has no tokenizer.

    What it says means nothing, so an id that is no byte is a replacement mark.
    """

    has_chat_template = True

    def __init__(self, vocab_size: int, stop_ids: frozenset[int]) -> None:
        self.vocab_size, self.stop_ids = vocab_size, stop_ids

    def encode(self, text: str) -> list[int]:
        """The bytes of a text, all of them below the size of the vocabulary."""
        return [byte % self.vocab_size for byte in text.encode("utf-8", "replace")]

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The bytes of what was said, one after the other."""
        return self.encode("\n".join(str(each.get("content", "")) for each in messages))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes."""
        told = b"".join(bytes([i]) if i < BYTES else MARK for i in ids)
        return told.decode("utf-8", "replace")


class Tokenizer:
    """The tokenizer of a model folder."""

    def __init__(self, folder: Path) -> None:
        # What `specflow validate` says of a tokenizer holds here too.
        problem = facts.ModelFacts(str(folder), folder).tokenizer_problem
        if problem:
            raise RuntimeFault(f"{problem.message}; {problem.help}")
        with foreign(f"`{folder}` does not hold a tokenizer"):
            self._tokens = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._tokens.no_truncation()
            self._tokens.no_padding()
            config = _read(folder / "tokenizer_config.json")
            self._specials = facts.special_tokens(config)
            self.vocab_size = int(self._tokens.get_vocab_size(with_added_tokens=True))
            self.stop_ids = self._find_stop_ids(folder)
            template = _template(folder, config)
        self._render = None if template is None else compile_template(template)

    def _find_stop_ids(self, folder: Path) -> frozenset[int]:
        ids = set()
        if "eos_token" in self._specials:
            ids.add(self._tokens.token_to_id(self._specials["eos_token"]))
        for name in ("generation_config.json", "config.json"):
            listed = facts.token_ids(_read(folder / name).get("eos_token_id"))
            if listed is None:
                raise RuntimeFault(
                    f"`eos_token_id` in {name} of `{folder}` is no token id; download it again"
                )
            ids.update(listed)
        return frozenset(each for each in ids if each is not None)

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder says how a conversation is written."""
        return self._render is not None

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with those the model wants around it."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation up to where the assistant's answer begins."""
        return self._encode(self.render_chat(messages), add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with foreign(
            "the tokenizer refuses this text", "mend its characters, or name another model"
        ):
            return list(self._tokens.encode(text, add_special_tokens=add_special_tokens).ids)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """A conversation as the model was taught to read it."""
        if self._render is None:
            raise RuntimeFault("the model has no chat template: give it a plain prompt")
        with foreign("the chat template refuses these messages", PLAIN), _limits():
            text = self._render(
                messages=list(messages), add_generation_prompt=True, **self._specials
            )
        if len(text) > LARGEST_RENDER:
            raise RuntimeFault(
                f"the chat template writes {len(text)} characters, more than {LARGEST_RENDER}; "
                + PLAIN
            )
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        with foreign("the tokenizer has no text for these tokens"):
            return str(self._tokens.decode(list(ids), skip_special_tokens=True))


@contextmanager
def _limits() -> Iterator[None]:
    """What a template may take: memory where the system counts it, and time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    counted = Path("/proc/self/statm")
    if counted.is_file():
        held = int(counted.read_text().split()[0]) * resource.getpagesize()
        allowed = held + RENDER_MEMORY
        if soft == resource.RLIM_INFINITY or allowed < soft:
            resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    try:
        with _time_limit(LONGEST_RENDER):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class _TooLong(BaseException):  # jinja2 folds constants and swallows any Exception
    """The time is up."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError after some seconds; only the main thread can be interrupted."""
    if current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise _TooLong

    began = monotonic()
    before = signal.signal(signal.SIGALRM, stop)
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TooLong:
        raise TimeoutError(f"not done after {seconds} seconds") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        if left:  # a timer that ran before goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (monotonic() - began), 0.001), every)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it passes them on."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(source: str) -> Callable[..., str]:
    """A chat template as a function; it comes from a checkpoint, so it runs in a sandbox."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise
    sandbox.globals["strftime_now"] = _now
    with foreign("the chat template does not parse"), _limits():
        return sandbox.from_string(source).render


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template beside the tokenizer, or inside its config, where it may be one of several."""
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    inside = config.get("chat_template")
    if not isinstance(inside, list):
        return inside if isinstance(inside, str) else None
    named = [each for each in inside if isinstance(each, Mapping) and each.get("name") == "default"]
    template = named[-1].get("template") if named else None
    return template if isinstance(template, str) else None


def _read(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none, since `facts` has refused what is broken."""
    return (headers.read_json(file) if file.is_file() else None) or {}
