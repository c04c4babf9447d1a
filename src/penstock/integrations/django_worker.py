"""The tasks of Django's default backend, for `penstock worker`.

DJANGO_SETTINGS_MODULE=shop.settings penstock worker penstock.integrations.django_worker:tasks
"""

import django

django.setup()

from penstock.integrations.django import backend_of  # noqa: E402 - after the setup

tasks = backend_of("default").tasks
