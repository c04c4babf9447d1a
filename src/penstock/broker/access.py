"""Who calls, and what they may do."""

from typing import NamedTuple

from penstock.errors import NotAllowed
from penstock.operations import Verb

EVERY_VERB = frozenset(Verb)


class Caller(NamedTuple):
    """The holder of a key, or anyone where keys are not asked for."""

    client: str  # what limits are counted by: `key:…` or `ip:…`
    verbs: frozenset[Verb] = EVERY_VERB
    namespaces: frozenset[str] | None = None  # None: all

    def may(self, verb: Verb, namespace: str | None) -> bool:
        """`namespace` None: something of the broker's own, for keys of all namespaces only."""
        in_reach = self.namespaces is None or namespace in self.namespaces
        return verb in self.verbs and in_reach

    @property
    def any_namespace(self) -> str | None:
        """A namespace that the caller has a right to, for calls that are not of one."""
        return None if self.namespaces is None else next(iter(self.namespaces), None)

    def check(self, verb: Verb, namespace: str | None) -> None:
        """NotAllowed if the key is not good for that."""
        if verb not in self.verbs:
            raise NotAllowed(f"this key may not {verb}: it is good for {_listed(self.verbs)}")
        if self.namespaces is not None and namespace not in self.namespaces:
            where = "the broker as a whole" if namespace is None else f"namespace {namespace!r}"
            raise NotAllowed(
                f"this key is not for {where}: it is good for {_listed(self.namespaces)}"
            )


INSIDE = Caller("inside")  # the broker itself: webhooks, jobs


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"
