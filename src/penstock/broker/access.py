"""Callers and their permissions."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import NotAllowed
from penstock.operations import Verb

EVERY_VERB = frozenset(Verb)


class Caller(NamedTuple):
    """The holder of a key, or any client if keys are not required."""

    client: str  # the unit of rate limits: `key:…` or `ip:…`
    verbs: frozenset[Verb] = EVERY_VERB
    namespaces: frozenset[str] | None = None  # None: all

    def may(self, verb: Verb, namespace: str | None) -> bool:
        """Return whether the caller may use a verb.

        Without a namespace it concerns the whole broker, which needs a key for all namespaces.
        """
        in_reach = self.namespaces is None or namespace in self.namespaces
        return verb in self.verbs and in_reach

    @property
    def any_namespace(self) -> str | None:
        """Return a namespace that the caller may use, for calls without a namespace."""
        return None if self.namespaces is None else next(iter(self.namespaces), None)

    def check(self, verb: Verb, namespace: str | None) -> None:
        """Raise NotAllowed if the caller may not use a verb in a namespace."""
        if verb not in self.verbs:
            raise NotAllowed(f"this key may not {verb}: it allows {_listed(self.verbs)}")
        if self.namespaces is not None and namespace not in self.namespaces:
            where = "the broker as a whole" if namespace is None else f"namespace {namespace!r}"
            raise NotAllowed(f"this key is not for {where}: it is for {_listed(self.namespaces)}")


# Raises an error if the caller lacks the right in the namespace, or exceeds its rate.
Admit = Callable[[Caller, Verb, str | None], None]

INSIDE = Caller("inside")  # the broker itself: webhooks, jobs


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"
