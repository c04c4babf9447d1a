"""Access: the API keys of the broker, without their secrets; create and revoke them."""

from penstock.broker import Verb
from penstock.errors import InvalidInput, NotAllowed
from penstock.server.dashboard.rest_call import API, RestCall, given
from penstock.server.dashboard.serving import Action, Done, Form, Page, Values
from penstock.server.dashboard.visit import HOME, Visit

_KEYS = f"{API}/keys"
_ROWS = 100


async def load(visit: Visit) -> Values:
    try:
        keys = list(reversed(await visit.broker.keys.list(visit.caller)))
        refusal = ""
    except NotAllowed as error:
        keys, refusal = [], str(error)
    start = visit.whole("from", 0, len(keys)) or 0
    # Without any key, the first one must be able to create the others.
    checked = [Verb.READ] if visit.call.service.keys.required else [Verb.MANAGE, Verb.READ]
    return {
        "keys": keys[start : start + _ROWS],
        "total": len(keys),
        "next": start + _ROWS if start + _ROWS < len(keys) else 0,
        "refusal": refusal,
        "required": visit.call.service.keys.required,
        "verbs": tuple(Verb),
        "rest": RestCall("POST", _KEYS, {"label": "", "verbs": checked}),
        "checked": checked,
        "revoking": _revoking,
    }


def _revoking(id: str) -> RestCall:
    return RestCall("DELETE", f"{_KEYS}/{id}")


def create(visit: Visit) -> Action:
    label = (visit.text("label") or "").strip()
    verbs = [verb for verb in (visit.text("verbs") or "").split(",") if verb]
    where = [one.strip() for one in (visit.text("namespaces") or "").split(",") if one.strip()]
    body = given(label=label, verbs=verbs, namespaces=where or None)

    async def run() -> Done:
        is_first = not visit.call.service.keys.required
        if is_first and Verb.MANAGE not in verbs:
            raise InvalidInput(
                "the first key needs manage: with it, every call needs a key, and this page too"
            )
        key, token = await visit.broker.keys.create(visit.caller, label, verbs, where or None)
        # From now on a key is needed, also for this page: the visitor goes on with the new one.
        session = visit.session._replace(key_id=key.id, is_new=True) if is_first else None
        return Done(f"Created key {key.id}.", secret=token, session=session)

    return Action(RestCall("POST", _KEYS, body), run)


def revoke(visit: Visit) -> Action:
    id_ = visit.text("id")
    if id_ is None:
        raise InvalidInput("which key? The form names none")

    async def run() -> Done:
        key = await visit.broker.keys.revoke(visit.caller, id_)
        return Done(f"Revoked {key.label or key.id}: it is refused within two seconds.")

    return Action(_revoking(id_), run, confirm=id_)


PAGES = (Page(f"{HOME}/access", "access.html", load),)
FORMS = (Form(f"{HOME}/access/create", create), Form(f"{HOME}/access/revoke", revoke))
