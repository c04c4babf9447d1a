"""Every route of the native interface."""

from penstock.server.rest import (
    catalogue,
    keys,
    lease,
    messages,
    operation_routes,
    overview,
    probes,
    publish,
    readers,
    schedules,
    segments,
    settle,
    webhooks,
)
from penstock.server.rest.endpoint import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *catalogue.ENDPOINTS,
    *publish.ENDPOINTS,
    *messages.ENDPOINTS,
    *lease.ENDPOINTS,
    *settle.ENDPOINTS,
    *operation_routes.ENDPOINTS,
    *schedules.ENDPOINTS,
    *overview.ENDPOINTS,
    *segments.ENDPOINTS,
    *readers.ENDPOINTS,
    *webhooks.ENDPOINTS,
    *keys.ENDPOINTS,
    *probes.ENDPOINTS,
)
