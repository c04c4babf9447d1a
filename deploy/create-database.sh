#!/bin/sh
# Patroni calls this once, on the first primary, with the URL of its superuser.
set -eu
psql "$1" -v ON_ERROR_STOP=1 -v password="$BROKER_PASSWORD" <<'SQL'
create role penstock login password :'password';
grant pg_monitor to penstock;
create database penstock owner penstock;
SQL
