"""Shell text as the words that start a server: its variables, its flags, the files it writes.

Nothing is run. What a shell does before a program sees its words is done here: quotes, escapes,
lines that go on, variables that the text itself sets, redirections, pipes, comments, heredocs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from specflow.engines.outcome import Refusal, no_flag

Server = tuple[tuple[str, ...], ...]

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_EXPANDED = re.compile(
    r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(\[[@*]\])|:?[-=]([^}]{0,4096}))?\})"
)
_REDIRECT = re.compile(r"&>>?|<<<|<<-?|<>|[<>]&|>>|>\||[<>]")
# No command begins so: the line goes on with its flags, whether or not a backslash says it.
_FLAG_FOLLOWS = re.compile(r"--?[A-Za-z]")
_BLANK = re.compile(r"\s+")
_SPACE = " \t\r"
_BREAKS = ";|&"
DEEPEST = 4  # shells in shells
# A line that starts a server is a page of words. What stands for more, as a variable of variables
# does, is refused before it is made.
LONGEST_TEXT, LONGEST_WORD = 256_000, 64_000  # characters
MOST_COMMANDS, MOST_VARIABLES = 10_000, 300
LONGEST_NAME = 200  # characters of a variable's


class Word(str):
    """A word of a text that knows where it stands there: offsets from `start` up to `end`."""

    __slots__ = ("end", "start")
    start: int
    end: int

    def __new__(cls, text: str, start: int, end: int) -> Word:
        """A word at its place."""
        word = super().__new__(cls, text)
        word.start, word.end = start, end
        return word


@dataclass
class _Command:
    """One simple command: its words, what it reads in place, and the file it writes to."""

    words: list[Word] = field(default_factory=list)
    here: str | None = None
    into: str = ""


@dataclass(frozen=True)
class Line:
    """What starts a server.

    words  from the command that is the server's, else from the first word of the line
    env    variables that it is started with
    files  files that the text writes, by name
    """

    words: tuple[Word, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def line(text: str, server: Server, is_flag: Callable[[str], bool]) -> Line:
    """The line of a text that starts a server; raises `Refusal` for text that does not end.

    server   words that start it, as patterns; its own flags come after them
    is_flag  whether a word is a flag of it: finds the line where none of those words stands
    """
    return _line(text, server, is_flag, {}, 0)


def _line(
    text: str, server: Server, is_flag: Callable[[str], bool], env: Mapping[str, str], deep: int
) -> Line:
    shell = _Shell(text, env)
    shell.read()
    for command, around in shell.commands:
        at = _server(command.words, server)
        if at is not None:
            return Line(
                tuple(command.words[at:]), around | _before(command.words[:at]), shell.files
            )
    for command, around in shell.commands:  # `sh -c 'python -m sglang.launch_server ...'`
        for at, word in enumerate(command.words):
            if deep < DEEPEST and " " in word and at and command.words[at - 1].endswith("c"):
                inner = _line(word, server, is_flag, around | _before(command.words[:at]), deep + 1)
                if _server(inner.words, server) is not None:
                    here = tuple(Word(each, word.start, word.end) for each in inner.words)
                    return Line(here, inner.env, shell.files | dict(inner.files))
    return _without_server(shell, is_flag)


def _without_server(shell: _Shell, is_flag: Callable[[str], bool]) -> Line:
    """The first command with a flag; the last one where none has any."""
    for test in (is_flag, lambda word: word.startswith("--")):
        for command, around in shell.commands:
            start = next((i for i, word in enumerate(command.words) if test(word)), None)
            if start is not None:
                before = _before(command.words[:start])
                return Line(tuple(command.words), around | before, shell.files)
    words = shell.commands[-1][0].words if shell.commands else []
    return Line(tuple(words), shell.env | _before(words), shell.files)


def _server(words: Sequence[str], server: Server) -> int | None:
    """Where the words that start the server stand; a pattern is looked for before the next one."""
    for pattern in server:
        for at in range(len(words) - len(pattern) + 1):
            if all(re.fullmatch(p, words[at + i]) for i, p in enumerate(pattern)):
                return at
    return None


def _before(words: Sequence[str]) -> dict[str, str]:
    """Variables in front of a server: `A=b`, `env A=b`, `docker run -e A=b --env=C=d`."""
    out = {}
    for word in words:
        found = _ASSIGNED.fullmatch(re.sub(r"^(--env=|-e)", "", word))
        if found:
            out[found[1]] = found[3]
    return out


class _Shell:
    """A text on its way into commands."""

    def __init__(self, text: str, env: Mapping[str, str]) -> None:
        self.text = text
        self.at = 0
        self.env = dict(env)
        self.known = dict(env)
        self.lists: dict[str, list[str]] = {}
        self.exports_all = False
        self.files: dict[str, str] = {}
        self.commands: list[tuple[_Command, dict[str, str]]] = []
        self.command = _Command()
        self.pending: list[tuple[_Command, str, bool, bool]] = []  # heredocs whose text is to come
        self.redirect = ""
        self.start = 0
        self.word: list[str] | None = None
        self.quoted = False
        self.inner = False  # in a list, where none begins
        self.length = self.spent = 0  # characters of the word, and of all of them

    def read(self) -> None:
        """Every command of the text."""
        if len(self.text) > LONGEST_TEXT:
            _refuse(f"the text has more than {LONGEST_TEXT} characters")
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_command()

    def _step(self, char: str) -> None:
        if char in _SPACE:
            self._end_word()
            self.at += 1
        elif char == "#" and self.word is None:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char in "<>" or self.text.startswith("&>", self.at):
            self._redirected()
        elif char == "\n":
            self._line_ends()
        elif char in _BREAKS:
            self._end_command()
            self.at += 1
        elif char == "(" and self._is_list():
            self._list()
        elif char in "()" and (self.word is None or char == ")"):
            self._end_command()
            self.at += 1
        else:
            self._part(char)

    def _line_ends(self) -> None:
        """Blank lines are passed by at once: each would be looked behind for a flag."""
        end = next(_BLANK.finditer(self.text, self.at)).end()
        if not self.pending and _FLAG_FOLLOWS.match(self.text, end):
            self._end_word()
            self.at = end
            return
        self._end_command()
        self.at = self.at + 1 if self.pending else end
        self._heredocs()

    # -- words -------------------------------------------------------------------------------------

    def _begin(self) -> list[str]:
        if self.word is None:
            self.word, self.start, self.quoted, self.length = [], self.at, False, 0
        return self.word

    def _part(self, char: str) -> None:
        """A piece of a word."""
        if self.text.startswith(("\\\n", "\\\r\n"), self.at):
            self.at += 2 + (self.text[self.at + 1] == "\r")
            return
        self._begin()
        if char == "\\":
            if self.at + 1 >= len(self.text):
                _refuse("the command line does not end: nothing follows the last backslash")
            self._add(self.text[self.at + 1])
            self.at += 2
        elif char == "'":
            end = self.text.find("'", self.at + 1)
            if end < 0:
                _refuse("the command line does not end: a quote is open")
            self._add(self.text[self.at + 1 : end])
            self.at, self.quoted = end + 1, True
        elif char == '"':
            self._double()
        elif char in "$`":
            self._expand(split=True)
        else:
            self._add(char)
            self.at += 1

    def _double(self) -> None:
        self.quoted = True
        self.at += 1
        while True:
            if self.at >= len(self.text):
                _refuse("the command line does not end: a quote is open")
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            following = self.text[self.at + 1 : self.at + 2]
            if char == "\\" and following in ('"', "\\", "$", "`", "\n") and following:
                self._add("" if following == "\n" else following)
                self.at += 2
            elif char in "$`":
                self._expand(split=False)
            else:
                self._add(char)
                self.at += 1

    def _expand(self, *, split: bool) -> None:
        """A variable that the text sets is its value; anything else stays as it is written."""
        if self.text.startswith("$(", self.at) or self.text[self.at] == "`":
            self._verbatim()
            return
        found = _EXPANDED.match(self.text, self.at)
        if found is None:
            self._add(self.text[self.at])
            self.at += 1
            return
        name, whole = found[1] or found[2], found[0]
        values = self.lists.get(name) if found[3] else None
        value = self.known.get(name, found[4])
        if values is None and value is not None and split:
            self._spend(len(value))
            values = _split(value)
        if values is None:
            self._add(whole if value is None else value)
            self.at = found.end()
            return
        self._begin()
        for i, each in enumerate(values):
            if i:
                self._end_word()
                self._begin()
            self._add(each)
        self.at = found.end()

    def _verbatim(self) -> None:
        """What another command would print: it is not run."""
        start = self.at
        if self.text[self.at] == "`":
            end = self.text.find("`", self.at + 1)
            self.at = len(self.text) if end < 0 else end + 1
        else:
            self.at = _closed(self.text, self.at + 1)
        self._add(self.text[start : self.at])

    def _is_list(self) -> bool:
        """`NAME=(` or `NAME+=(`, where a command begins."""
        if self.inner or len(self.word or ()) > LONGEST_NAME:
            return False
        written = "".join(self.word or ())
        return not self.command.words and _ASSIGNED.fullmatch(written) is not None

    def _list(self) -> None:
        found = _ASSIGNED.fullmatch("".join(self.word or ()))
        assert found is not None
        end = _closed(self.text, self.at)
        inner = _Shell(self.text[self.at + 1 : end - 1].replace("\n", " "), {})
        inner.known, inner.lists, inner.inner = self.known, self.lists, True
        inner.read()
        self._spend(inner.spent)
        words = [str(word) for command, _ in inner.commands for word in command.words]
        self.lists[found[1]] = [*(self.lists.get(found[1], []) if found[2] else []), *words]
        self.word, self.at = None, end

    def _add(self, said: str) -> None:
        """A piece of the word, as long as all of it is no more than a page."""
        self._begin().append(said)
        self.length += len(said)
        self._spend(len(said))
        if self.length > LONGEST_WORD:
            _refuse(f"a word of the text has more than {LONGEST_WORD} characters")

    def _spend(self, count: int) -> None:
        self.spent += count
        if self.spent > 2 * LONGEST_TEXT:
            _refuse(f"the text stands for more than {2 * LONGEST_TEXT} characters")

    def _end_word(self) -> None:
        if self.word is None:
            return
        self._spend(1)
        word = Word("".join(self.word), self.start, max(self.at, self.start))
        quoted, self.word = self.quoted, None
        if self.redirect:
            self._target(word, quoted=quoted)
        else:
            self.command.words.append(word)

    # -- redirections ------------------------------------------------------------------------------

    def _redirected(self) -> None:
        if self.text.startswith(("<(", ">("), self.at):  # what another command reads or writes
            start = self.at
            self._begin()
            self.at = _closed(self.text, self.at + 1)
            self._add(self.text[start : self.at])
            return
        if self.word is not None and "".join(self.word).isdecimal() and not self.quoted:
            self.word = None  # the number of a stream: `2>`
        self._end_word()
        found = _REDIRECT.match(self.text, self.at)
        assert found is not None
        self.redirect, self.at = found[0], found.end()

    def _target(self, word: Word, *, quoted: bool) -> None:
        how, self.redirect = self.redirect, ""
        if how.startswith("<<") and how != "<<<":
            self.pending.append((self.command, word, how.endswith("-"), quoted))
        elif how in (">", ">>", ">|"):
            self.command.into = word

    def _heredocs(self) -> None:
        """The texts that follow a line, each up to its own end."""
        for command, end, tabs, quoted in self.pending:
            body: list[str] = []
            while True:
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                said = self.text[self.at : stop].rstrip("\r")
                said = said.lstrip("\t") if tabs else said
                ended = self.at >= len(self.text)
                self.at = min(stop + 1, len(self.text))
                if said == end or ended:
                    break
                body.append(said)
            text = "".join(f"{each}\n" for each in body)
            command.here = text if quoted else self._filled(text)
            self._wrote(command)
        self.pending = []

    def _filled(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            said = self.known.get(found[1] or found[2], found[4] or found[0])
            self._spend(len(said))
            return said

        return _EXPANDED.sub(value, text)

    def _wrote(self, command: _Command) -> None:
        """A heredoc that becomes a file: `cat > FILE <<END`, `tee FILE <<END`."""
        names = [command.into] if command.into else []
        if command.words[:1] == ["tee"]:
            names += [word for word in command.words[1:] if not word.startswith("-")]
        for name in names:
            self.files[name] = command.here or ""

    # -- commands ----------------------------------------------------------------------------------

    def _end_command(self) -> None:
        self._end_word()
        self.redirect = ""
        command, self.command = self.command, _Command()
        if not command.words:
            return
        if not self._assigned(command.words) and not self._built_in(*command.words):
            if len(self.commands) >= MOST_COMMANDS:
                _refuse(f"the text has more than {MOST_COMMANDS} commands")
            self.commands.append((command, dict(self.env)))

    def _assigned(self, words: Sequence[str]) -> bool:
        """`A=b`, with no command behind: a variable of the shell, not of what it starts."""
        assigned = [found for word in words if (found := _ASSIGNED.fullmatch(word))]
        if len(assigned) < len(words):
            return False
        for found in assigned:
            before = self.known.get(found[1], "") if found[2] else ""
            self._set(found[1], before + found[3], export=found[1] in self.env)
        return True

    def _built_in(self, first: str, *rest: str) -> bool:
        """What changes the shell itself, and starts nothing."""
        if first in ("export", "declare", "typeset", "readonly", "local"):
            for word in rest:
                self._declared(word, export=first == "export" or "-x" in rest)
        elif first == "set":
            self.exports_all |= any(word.startswith("-") and "a" in word for word in rest)
        elif first == "unset":
            for word in rest:
                self.known.pop(word, None)
                self.env.pop(word, None)
        else:
            return False
        return True

    def _declared(self, word: str, *, export: bool) -> None:
        found = _ASSIGNED.fullmatch(word)
        if found is not None:
            self._set(found[1], found[3], export=export)
        elif export and word in self.known:
            self._set(word, self.known[word], export=True)

    def _set(self, name: str, value: str, *, export: bool) -> None:
        if len(value) > LONGEST_WORD:
            _refuse(f"`{name[:60]}` has more than {LONGEST_WORD} characters")
        self.known[name] = value
        if export or self.exports_all:
            self.env[name] = value
        if len(self.env) > MOST_VARIABLES:
            _refuse(f"the text sets more than {MOST_VARIABLES} variables of programs")


def _split(value: str) -> list[str]:
    """What a shell makes of the value of a variable that stands without quotes."""
    return value.split()


def _closed(text: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`; the end of the text where none does."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at + 1
    return len(text)


def _refuse(reason: str) -> NoReturn:
    raise Refusal(no_flag(reason))
