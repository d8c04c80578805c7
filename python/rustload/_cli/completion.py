"""`rustload completion`: prints the completions of a shell, made from the parsers of the commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from rustload._cli.command import COMMANDS, parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

EPILOG = """\
where it belongs:
  bash  rustload completion bash > ~/.local/share/bash-completion/completions/rustload
  zsh   rustload completion zsh > DIRECTORY/_rustload, a directory of $fpath
  fish  rustload completion fish > ~/.config/fish/completions/rustload.fish
"""


class Option(NamedTuple):
    """An option of a command; the positional arguments are one without names.

    Attributes:
        names: Its names.
        help: What it does, in one line.
        takes: Whether it takes a value.
        choices: The values, if there are only these.
    """

    names: tuple[str, ...]
    help: str
    takes: bool
    choices: tuple[str, ...]


def add_arguments(given: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    given.description = "Prints a script with which a shell completes commands, options and their values."
    given.epilog = EPILOG
    given.add_argument("shell", metavar="SHELL", choices=[*_SHELLS], help=", ".join(_SHELLS))


def run(args: argparse.Namespace) -> int:
    """Prints the script and returns the exit code."""
    sys.stdout.write("\n".join(_SHELLS[args.shell](_options())) + "\n")
    return 0


def _options() -> dict[str, list[Option]]:
    """The options of each command."""
    commands = next(one for one in parser([*COMMANDS])._actions if isinstance(one.choices, dict))
    found = {name: [*map(_option, command._actions)] for name, command in commands.choices.items()}  # type: ignore[union-attr]  # a dict
    return {**found, "help": [Option((), "the command", takes=True, choices=tuple(COMMANDS))]}


def _option(action: argparse.Action) -> Option:
    text = " ".join((action.help or "").replace("%%", "%").split())
    choices = tuple(map(str, action.choices or ()))
    return Option(tuple(action.option_strings), text, action.nargs != 0, choices)


def _bash(commands: dict[str, list[Option]]) -> Iterator[str]:
    yield "_rustload() {"
    yield '    local current=${COMP_WORDS[COMP_CWORD]} words=""'
    yield f'    [ "$COMP_CWORD" = 1 ] && words="{" ".join(commands)}"'
    yield '    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in'
    for command, options in commands.items():
        for option in options:
            if option.choices:
                given = "|".join(f'"{command} {name}"' for name in option.names or (command,))
                yield f'        {given}) words="{" ".join(option.choices)}";;'
    yield "    esac"
    yield '    case "${COMP_WORDS[1]} $current" in'
    for command, options in commands.items():
        names = " ".join(name for option in options for name in option.names)
        yield f'        "{command} -"*) words="{names}";;'
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -F _rustload rustload"


def _zsh(commands: dict[str, list[Option]]) -> Iterator[str]:
    def quoted(text: str) -> str:
        for char in "\\[]:":
            text = text.replace(char, f"\\{char}")
        return text.replace("'", r"'\''")

    yield "#compdef rustload"
    yield "local -a commands=("
    yield from (f"    '{name}:{quoted(_WHAT[name])}'" for name in commands)
    yield ")"
    yield "if (( CURRENT == 2 )); then"
    yield "    _describe command commands"
    yield "    return"
    yield "fi"
    yield "shift words"
    yield "(( CURRENT-- ))"
    yield "case $words[1] in"
    for command, options in commands.items():
        yield f"    {command}) _arguments -s \\"
        for option in options:
            values = f"({' '.join(option.choices)})" if option.choices else "_files"
            for name in option.names:
                value = f":value:{values}" if option.takes else ""
                yield f"        '*{name}[{quoted(option.help)}]{value}' \\"
            if not option.names:
                yield f"        '*:value:{values}' \\"
        yield "        ;;"
    yield "esac"


def _fish(commands: dict[str, list[Option]]) -> Iterator[str]:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    for command, options in commands.items():
        yield f"complete -c rustload -n __fish_use_subcommand -f -a {command} -d {quoted(_WHAT[command])}"
        for option in options:
            names = [f"-{'l' if name[:2] == '--' else 's'} {name.lstrip('-')}" for name in option.names]
            values = (
                [f"-x -a {quoted(' '.join(option.choices))}"] if option.choices else ["-r"] * option.takes
            )
            if names or option.choices:
                given = " ".join([*names, *values, "-d", quoted(option.help)])
                yield f"complete -c rustload -n '__fish_seen_subcommand_from {command}' {given}"


_WHAT = {**COMMANDS, "help": "show the options of a command"}
_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
