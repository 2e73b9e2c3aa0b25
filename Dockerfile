# The daemon and the command line, without Spark:
#
#   docker build --tag halfbridge:0.1.0 .
#   docker run --rm halfbridge:0.1.0 checker run --bootstrap-servers kafka:9092 --slot a
#
# BASE_IMAGE is any image with Python 3.10 or newer and its venv module.
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
# A mirror of packages, where there is one.
ARG PIP_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt ./
# Build tools have a place of their own, which stays behind in this stage.
RUN python3 -m venv /build \
 && /build/bin/pip install --quiet --constraint constraints.txt hatchling
# Where Python packages go: no pip in it.
RUN python3 -m venv --without-pip /opt/halfbridge
COPY pyproject.toml README.md LICENSE ./
COPY halfbridge halfbridge
RUN /build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /dist . \
 && /build/bin/pip --python /opt/halfbridge/bin/python install --quiet \
    --constraint constraints.txt --only-binary :all: --compile "$(ls /dist/halfbridge-*.whl)[sql,web]"

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="halfbridge" \
      org.opencontainers.image.description="RocketMQ's transactional messages on Kafka: the daemon and its command line" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.documentation="docs/how-to/deploy.md"
COPY --from=build /opt/halfbridge /opt/halfbridge
# By number, so that Kubernetes can tell that it is not root. The directory keeps the locks of
# worker slots, for those who give no slot.
RUN mkdir -p /var/lib/halfbridge && chown 10001:10001 /var/lib/halfbridge
ENV PATH=/opt/halfbridge/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_STATE_HOME=/var/lib/halfbridge \
    HALFBRIDGE_METRICS_HOST=0.0.0.0 \
    HALFBRIDGE_METRICS_PORT=9464
USER 10001:10001
WORKDIR /var/lib/halfbridge
EXPOSE 9464
# Ready: every worker has its partitions and has rebuilt them. For the daemon; other commands end
# before it matters.
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=6 \
  CMD ["python3", "-c", "import os, urllib.request as web; web.urlopen(f'http://127.0.0.1:{os.environ[\"HALFBRIDGE_METRICS_PORT\"]}/readyz', timeout=4)"]
ENTRYPOINT ["halfbridge"]
CMD ["--help"]
