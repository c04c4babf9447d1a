# The broker, from this checkout: docker build --file deploy/broker.Dockerfile --tag penstock .
FROM python:3.12-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir --prefix=/install '/src[cli,postgres]'

FROM python:3.12-slim-bookworm
COPY --from=build /install /usr/local
RUN useradd --system --uid 10001 --user-group penstock \
    && install --directory --owner=penstock --group=penstock --mode=0700 /data /cache
ENV PENSTOCK_SERVER_DATA=/data \
    PENSTOCK_SERVER_HOST=0.0.0.0 \
    PENSTOCK_SERVER_PORT=8080
USER penstock
VOLUME /data
EXPOSE 8080 8090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=12 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["penstock"]
CMD ["serve"]
