"""`wayfare completion`: what a shell offers on Tab, printed from the parser itself.

All three scripts do the same: walk over the words so far to know which command it is, then offer the values of
the option before, the options of the command, or what may follow it; and files, where that is nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

EXAMPLES = """examples:
  eval "$(wayfare completion bash)"                 in ~/.bashrc
  eval "$(wayfare completion zsh)"                  in ~/.zshrc, behind compinit
  wayfare completion fish > ~/.config/fish/completions/wayfare.fish
"""


class Command(msgspec.Struct):
    """One command: its words behind `wayfare`, and what may come behind them, with a word about each."""

    path: str  # "network up"; "" is the program itself
    names: dict[str, str] = {}
    options: dict[str, str] = {}
    values: dict[str, tuple[str, ...]] = {}  # of options that take one; (): any


def add_parser(commands: Any) -> None:
    one = commands.add_parser(
        "completion",
        help="what a shell offers on Tab",
        description="Print a script that lets a shell complete commands and options.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("shell", choices=SCRIPTS)
    one.set_defaults(run=lambda arguments: run(arguments, commands))


def run(arguments: argparse.Namespace, commands: Any) -> int:
    table = {one.path: one for one in _commands(commands)}
    for path in table:  # `sim fuzz` is a command to the parser, but one below `sim` to its users
        above, _, name = path.rpartition(" ")
        if path and above in table and name not in table[above].names:
            table[above].names[name] = ""
    print(SCRIPTS[arguments.shell](list(table.values())))
    return 0


def _commands(commands: Any) -> Iterator[Command]:
    about = {one.dest: one.help or "" for one in commands._choices_actions}
    yield Command("", about, {"--help": "this, and examples", "--version": "which one this is"})
    for parser in commands.choices.values():
        yield from _below(parser)


def _below(parser: argparse.ArgumentParser) -> Iterator[Command]:
    out = Command(parser.prog.partition(" ")[2])
    inner: list[Any] = []
    for action in parser._actions:
        about = (action.help or "").replace("%%", "%")
        if isinstance(action, argparse._SubParsersAction):
            out.names |= {one.dest: one.help or "" for one in action._choices_actions}
            inner += action.choices.values()
        elif not action.option_strings:
            out.names |= dict.fromkeys(action.choices or (), "")
        for option in action.option_strings:
            out.options[option] = about
            if action.nargs != 0:
                out.values[option] = tuple(map(str, action.choices or ()))
    yield out
    for one in inner:
        yield from _below(one)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# The scripts


def _bash(commands: list[Command]) -> str:
    return "\n".join(
        [
            "_wayfare() {",
            '    local current="${COMP_WORDS[COMP_CWORD]}" at="" word words=""',
            '    local previous="${COMP_WORDS[COMP_CWORD-1]}"',
            '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            f'        case "$at$word" in {_paths(commands)}) at="$at$word " ;; esac',
            "    done",
            '    case "$at$previous" in',
            *(
                f"        {where}) words={_quoted(' '.join(values))} ;;"
                for where, values in _values(commands)
            ),
            '        *) case "$at$current" in',
            *(
                f"            {_quoted(f'{one.path} '.lstrip())}{dash}*)"
                f" words={_quoted(' '.join(words))} ;;"
                for one in sorted(commands, key=lambda one: -len(one.path))
                for dash, words in (("-", one.options), ("", one.names))
            ),
            "        esac ;;",
            "    esac",
            '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _wayfare wayfare",
        ]
    )


def _zsh(commands: list[Command]) -> str:
    return "\n".join(
        [
            "#compdef wayfare",
            "_wayfare() {",
            '    local at="" word previous="${words[CURRENT-1]}" current="${words[CURRENT]}"',
            "    local -a found",
            '    for word in "${(@)words[2,CURRENT-1]}"; do',
            f'        case "$at$word" in ({_paths(commands)}) at="$at$word " ;; esac',
            "    done",
            '    case "$at$previous" in',
            *(
                f"        ({where}) found=({' '.join(map(_quoted, values))}) ;;"
                for where, values in _values(commands)
            ),
            '        (*) case "$at$current" in',
            *(
                f"            ({_quoted(f'{one.path} '.lstrip())}{dash}*)"
                f" found=({' '.join(_quoted(_described(*word)) for word in words.items())}) ;;"
                for one in sorted(commands, key=lambda one: -len(one.path))
                for dash, words in (("-", one.options), ("", one.names))
            ),
            "        esac ;;",
            "    esac",
            "    if (( $#found )); then _describe wayfare found; else _files; fi",
            "}",
            'if [ "$funcstack[1]" = _wayfare ]; then _wayfare "$@"; else compdef _wayfare wayfare; fi',
        ]
    )


def _values(commands: list[Command]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What may stand behind which options, as patterns."""
    options: dict[tuple[str, ...], list[str]] = {}
    for one in commands:
        for option, values in one.values.items():
            options.setdefault(values, []).append(_quoted(f"{one.path} {option}"))
    for values, those in options.items():
        yield "|".join(those), values


def _described(name: str, about: str) -> str:
    return f"{name}:{about}" if about else name


def _fish(commands: list[Command]) -> str:
    lines = [
        "function __wayfare_at",
        "    set -l at",
        "    for word in (commandline -opc)[2..-1]",
        f"        if contains -- (string join -- ' ' $at $word) {_paths(commands, ' ')}",
        "            set -a at $word",
        "        end",
        "    end",
        '    test "$at" = "$argv"',
        "end",
    ]
    for one in commands:
        at = f"complete -c wayfare -n {_fished(f'__wayfare_at {one.path}'.strip())}"
        lines += [
            f"{at} -f -a {_fished(name)} -d {_fished(about)}" for name, about in one.names.items()
        ]
        for option, about in one.options.items():
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            values = one.values.get(option)
            takes = f" -x -a {_fished(' '.join(values))}" if values else " -r" * (values == ())
            lines.append(f"{at} {flag}{takes} -d {_fished(about)}")
    return "\n".join(lines)


def _fished(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _paths(commands: list[Command], between: str = "|") -> str:
    return between.join(_quoted(one.path) for one in commands if one.path)


SCRIPTS: dict[str, Callable[[list[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
