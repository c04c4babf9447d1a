"""Asking before something is thrown away for good."""

import sys
from typing import Annotated

import typer

from penstock.errors import InvalidInput

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def can_ask() -> bool:
    """Is somebody at a terminal?"""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees; end the command if not, or if nobody is there to be asked."""
    if yes:
        return
    if not can_ask():
        raise InvalidInput(f"{question} There is no terminal to ask at: give --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
