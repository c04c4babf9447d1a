# PostgreSQL under Patroni, and etcd: all from Debian.
FROM debian:bookworm-slim
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        curl etcd-client etcd-server patroni postgresql-15 python3-etcd python3-psycopg2 \
    && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/15 \
    && install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/patroni \
    && install -d -o etcd -g etcd -m 0700 /var/lib/etcd
COPY patroni.yml /etc/patroni.yml
COPY --chmod=0755 create-database.sh /usr/local/bin/create-database.sh
USER postgres
EXPOSE 5432 8008
ENTRYPOINT ["/usr/bin/patroni"]
CMD ["/etc/patroni.yml"]
