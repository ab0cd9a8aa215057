"""`specflow completion`: the script by which a shell completes what is typed.

The script asks this very command, so that what is offered is what this version has: its recipes,
the fields of the recipe that is named, its rules. A script with everything written into it would be
stale after an upgrade, and knows no recipe of one's own.
"""

from __future__ import annotations

import argparse

from specflow.cli.common import CLEAN

# Each splits the line at blanks alone: `=` and `:` are parts of our words.
SCRIPTS = {
    "bash": """\
# specflow's completion for bash: eval "$(specflow completion bash)" in ~/.bashrc
_specflow() {
    local line="${COMP_LINE:0:COMP_POINT}" found whole typed
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    typed="${words[${#words[@]}-1]}"
    COMPREPLY=()
    while IFS=$'\\t' read -r whole _; do
        # bash replaces only what stands after the last character that breaks a word for it
        found="${whole#"${typed%"${typed##*[=:]}"}"}"
        [[ $whole == *[=./] ]] && compopt -o nospace
        COMPREPLY+=("$found")
    done < <(specflow completion bash -- "${words[@]:1}" 2> /dev/null)
}
complete -F _specflow specflow
""",
    "zsh": """\
#compdef specflow
# specflow's completion for zsh: eval "$(specflow completion zsh)" in ~/.zshrc, after compinit
_specflow() {
    local line word
    local -a open closed
    for line in "${(@f)$(specflow completion zsh -- "${(@Q)words[2,CURRENT]}" 2> /dev/null)}"; do
        word="${line%%$'\\t'*}"
        [[ -z $word ]] && continue
        if [[ $word == *[=./] ]]; then open+=("$word"); else closed+=("$word"); fi
    done
    compadd -S '' -a open
    compadd -a closed
}
compdef _specflow specflow
""",
    "fish": """\
# specflow's completion for fish: specflow completion fish | source, in config.fish
function __specflow_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    specflow completion fish -- $words[2..-1] "$typed" 2> /dev/null
end
complete -c specflow -f -a '(__specflow_complete)'
""",
}


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell that is to complete")
    parser.add_argument(
        "words", nargs="*", default=[], help=argparse.SUPPRESS
    )  # what the script asks
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script; or, where it asks with the words of a line, what may stand there."""
    if not args.words:
        print(SCRIPTS[args.shell], end="")
        return CLEAN
    from specflow.cli import COMMANDS
    from specflow.cli.candidates import candidates

    for word, doc in candidates(args.words, COMMANDS):
        print(f"{word}\t{doc}" if args.shell == "fish" and doc else word)
    return CLEAN
