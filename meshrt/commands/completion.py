"""`meshrt completion`."""

from __future__ import annotations

import os
from pathlib import Path

import click

SHELLS = ("bash", "zsh", "fish")
LOADED = "\nautoload -U compinit; compinit"  # what zsh needs to look into a folder of functions


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write it where the shell finds it, for this user.")
def command(shell: str | None, install: bool) -> None:
    """What makes a shell complete meshrt's commands, programs and options, on standard output.

    SHELL is the one that $SHELL names, if it is left out.
    """
    from click.shell_completion import get_completion_class

    from meshrt.cli import COMPLETE, cli
    from meshrt.errors import UsageError
    from meshrt.ranks.files import write_file

    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise UsageError(f"the shell {name!r} is not known: meshrt completion {'|'.join(SHELLS)}")
    text = kind(cli, {}, "meshrt", COMPLETE).source()
    if not install:
        click.echo(text)
        return
    path = completion_file(name, os.environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file("--install", str(path), lambda stream: stream.write(text.encode()))
    click.echo(f"{path}: for shells that start from now on")
    if name == "zsh":
        click.echo(f"~/.zshrc has to have\nfpath=({path.parent} $fpath){LOADED}")


def completion_file(shell: str, environ: os._Environ[str] | dict[str, str]) -> Path:
    """The file that a shell reads when meshrt is to be completed, of this user."""
    home = Path.home()
    if shell == "bash":
        return Path(environ.get("XDG_DATA_HOME") or home / ".local/share", "bash-completion/completions/meshrt")
    if shell == "fish":
        return Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "fish/completions/meshrt.fish")
    return home / ".zfunc/_meshrt"
