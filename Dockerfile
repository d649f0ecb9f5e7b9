# rknn, for files that are mounted at /data:
#   docker build -t rknn . && docker run --rm -v "$PWD:/data" rknn label --public public.npz --private private.npz --epsilon 0.5
# Every dependency is the one of uv.lock, by its hash, and the base image has its digest: Python 3.12.13 on Debian 13, of July 2026.
# `docker buildx imagetools inspect python:3.12-slim` prints that of today's.
ARG PYTHON=python:3.12-slim@sha256:57cd7c3a7a273101a6485ba99423ee568157882804b1124b4dd04266317710de

FROM $PYTHON AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends g++
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel /source \
    && pip install --no-cache-dir uv==0.12.24 \
    && uv export --project /source --frozen --no-default-groups --no-emit-project \
       --extra parquet --extra federation --output-file /wheel/requirements.txt

FROM $PYTHON
COPY --from=wheel /wheel /wheel
RUN pip install --no-cache-dir --require-hashes --requirement /wheel/requirements.txt \
    && pip install --no-cache-dir --no-deps /wheel/*.whl \
    && rm -r /wheel \
    && useradd --create-home --uid 1000 rknn
USER rknn
WORKDIR /data
ENTRYPOINT ["rknn"]
CMD ["--help"]
