"""What the tokens of a text or a conversation are, and the text of some tokens.

Reads `tokenizer.json` itself: the library's classes say the same after seconds of import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specflow.errors import RuntimeFault

SPECIALS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
Message = Mapping[str, Any]  # {"role": ..., "content": ...}


class Tokenizer:
    """The tokenizer of a model folder."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise RuntimeFault(
                f"`{folder}` has no `tokenizer.json`: save the model with a fast tokenizer"
            )
        try:
            self._tokens = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the reader raises nothing narrower
            raise RuntimeFault(
                f"`{file}` is not a tokenizer ({error}): download it again"
            ) from error
        self._tokens.no_truncation()
        self._tokens.no_padding()
        config = _read(folder / "tokenizer_config.json")
        self._specials = {name: _content(config.get(name)) for name in SPECIALS if config.get(name)}
        template = _template(folder, config)
        self._render = None if template is None else compile_template(template)
        self.vocab_size = int(self._tokens.get_vocab_size(with_added_tokens=True))
        self.stop_ids = self._find_stop_ids(folder)

    def _find_stop_ids(self, folder: Path) -> frozenset[int]:
        ids = set()
        if "eos_token" in self._specials:
            ids.add(self._tokens.token_to_id(self._specials["eos_token"]))
        for name in ("generation_config.json", "config.json"):
            listed = _read(folder / name).get("eos_token_id")
            ids.update(listed if isinstance(listed, list) else [listed])
        return frozenset(each for each in ids if each is not None)

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder says how a conversation is written."""
        return self._render is not None

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with those the model wants around it."""
        return list(self._tokens.encode(text).ids)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation up to where the assistant's answer begins."""
        return list(self._tokens.encode(self.render_chat(messages), add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """A conversation as the model was taught to read it."""
        if self._render is None:
            raise RuntimeFault("the model has no chat template: give it a plain prompt")
        try:
            return self._render(
                messages=list(messages), add_generation_prompt=True, **self._specials
            )
        except (TemplateError, TypeError) as error:
            raise RuntimeFault(f"the chat template refuses these messages: {error}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        return str(self._tokens.decode(list(ids), skip_special_tokens=True))


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
    try:
        return sandbox.from_string(source).render
    except TemplateError as error:
        raise RuntimeFault(f"the chat template does not parse: {error}") from error


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
    if isinstance(inside, list):
        named = {each["name"]: each["template"] for each in inside}
        inside = named.get("default")
    return inside if isinstance(inside, str) else None


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RuntimeFault(f"`{file}` is not JSON ({error}): download it again") from None
    return content if isinstance(content, dict) else {}
