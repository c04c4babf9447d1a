"""Groups of commands whose first is meant where none is named: `penstock queues URL` lists them."""

from typing import Any

from typer.core import TyperGroup


class ListedByDefault(TyperGroup):
    """A group whose command `list` may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def group_settings(name: str, help: str) -> dict[str, Any]:
    """How such a group is made."""
    return {"name": name, "help": help, "cls": ListedByDefault, "no_args_is_help": True}
