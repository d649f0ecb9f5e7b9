# rknn, for files that are mounted at /data:
#   docker build -t rknn . && docker run --rm -v "$PWD:/data" rknn label --public public.npz --private private.npz --epsilon 0.5
# Every dependency is the one of uv.lock, by its hash.
FROM python:3.12-slim AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends g++
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel /source \
    && pip install --no-cache-dir uv==0.12.24 \
    && uv export --project /source --frozen --no-default-groups --no-emit-project \
       --extra parquet --extra federation --output-file /wheel/requirements.txt

FROM python:3.12-slim
COPY --from=wheel /wheel /wheel
RUN pip install --no-cache-dir --require-hashes --requirement /wheel/requirements.txt \
    && pip install --no-cache-dir --no-deps /wheel/*.whl \
    && rm -r /wheel \
    && useradd --create-home --uid 1000 rknn
USER rknn
WORKDIR /data
ENTRYPOINT ["rknn"]
CMD ["--help"]
