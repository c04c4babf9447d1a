FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY . /src
RUN pip install --no-cache-dir --prefix=/install '/src[cli,postgres]'

FROM python:3.12-slim
COPY --from=build /install /usr/local
RUN useradd --system penstock && install -d -o penstock -g penstock /cache
USER penstock
EXPOSE 8080 8090
ENTRYPOINT ["penstock"]
CMD ["serve"]
