"""Every route of the native interface."""

from penstock.server.rest import (
    dead,
    delivering,
    groups,
    messages,
    namespaces,
    operation_routes,
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
    *operation_routes.ENDPOINTS,
    *segments.ENDPOINTS,
    *webhooks.ENDPOINTS,
    *probes.ENDPOINTS,
    *profile.ENDPOINTS,
)
