"""`rustload completion`: prints the completions of a shell, made from the parsers of the commands."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rustload._cli.command import COMMANDS, parser

if TYPE_CHECKING:
    from collections.abc import Iterator

EPILOG = """\
where it belongs:
  bash  rustload completion bash > ~/.local/share/bash-completion/completions/rustload
  zsh   rustload completion zsh > DIRECTORY/_rustload, a directory of $fpath
  fish  rustload completion fish > ~/.config/fish/completions/rustload.fish
"""


def add_arguments(given: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    given.description = "Prints a script with which a shell completes commands, options and their values."
    given.epilog = EPILOG
    given.add_argument("shell", metavar="SHELL", choices=[*_SHELLS], help=", ".join(_SHELLS))


def run(args: argparse.Namespace) -> int:
    """Prints the script and returns the exit code."""
    sys.stdout.write("\n".join(_SHELLS[args.shell](_options())) + "\n")
    return 0


def _options() -> dict[str, list[argparse.Action]]:
    """The options of each command."""
    commands = next(one for one in parser([*COMMANDS])._actions if isinstance(one.choices, dict))
    found = {name: command._actions for name, command in commands.choices.items()}  # type: ignore[union-attr]  # a dict
    return {**found, "help": [argparse.Action([], "name", choices=COMMANDS, help="the command")]}


def _text(option: argparse.Action) -> str:
    """What an option does, in one line."""
    return " ".join((option.help or "").replace("%%", "%").split())


def _bash(commands: dict[str, list[argparse.Action]]) -> Iterator[str]:
    yield "_rustload() {"
    yield '    local current=${COMP_WORDS[COMP_CWORD]} words=""'
    yield f'    [ "$COMP_CWORD" = 1 ] && words="{" ".join(commands)}"'
    yield '    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in'
    for command, options in commands.items():
        for option in options:
            if option.choices:
                given = "|".join(f'"{command} {name}"' for name in option.option_strings or (command,))
                yield f'        {given}) words="{" ".join(option.choices)}";;'
    yield "    esac"
    yield '    case "${COMP_WORDS[1]} $current" in'
    for command, options in commands.items():
        names = " ".join(name for option in options for name in option.option_strings)
        yield f'        "{command} -"*) words="{names}";;'
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -F _rustload rustload"


def _zsh(commands: dict[str, list[argparse.Action]]) -> Iterator[str]:
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
            for name in option.option_strings:
                value = f":value:{values}" if (option.nargs != 0) else ""
                yield f"        '*{name}[{quoted(_text(option))}]{value}' \\"
            if not option.option_strings:
                yield f"        '*:value:{values}' \\"
        yield "        ;;"
    yield "esac"


def _fish(commands: dict[str, list[argparse.Action]]) -> Iterator[str]:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    for command, options in commands.items():
        yield f"complete -c rustload -n __fish_use_subcommand -f -a {command} -d {quoted(_WHAT[command])}"
        for option in options:
            names = [
                f"-{'l' if name[:2] == '--' else 's'} {name.lstrip('-')}" for name in option.option_strings
            ]
            values = (
                [f"-x -a {quoted(' '.join(option.choices))}"]
                if option.choices
                else ["-r"] * (option.nargs != 0)
            )
            if names or option.choices:
                given = " ".join([*names, *values, "-d", quoted(_text(option))])
                yield f"complete -c rustload -n '__fish_seen_subcommand_from {command}' {given}"


_WHAT = {**COMMANDS, "help": "show the options of a command"}
_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
