"""Every route of the native interface."""

from penstock.server.rest import (
    dead,
    delivering,
    groups,
    messages,
    namespaces,
    operations,
    probes,
    profile,
    queues,
    segments,
    webhooks,
)
from penstock.server.rest.endpoint import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *namespaces.ENDPOINTS,
    *queues.ENDPOINTS,
    *messages.ENDPOINTS,
    *delivering.ENDPOINTS,
    *groups.ENDPOINTS,
    *dead.ENDPOINTS,
    *operations.ENDPOINTS,
    *segments.ENDPOINTS,
    *webhooks.ENDPOINTS,
    *probes.ENDPOINTS,
    *profile.ENDPOINTS,
)
