# The images of docker-compose.yaml: PostgreSQL in the stage `postgres`, an S3 store in the stage `store`, and everything
# else in the stage `sluice`, with Python, Java, all packages and JARs, and this checkout. A change of the code builds its
# last layers only.

FROM debian:bookworm-slim AS postgres
RUN mkdir --parents /etc/postgresql-common \
    && echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends postgresql-15 \
    && rm -rf /var/lib/apt/lists/*
COPY --chown=postgres containers/postgres.sh /opt/
USER postgres
VOLUME /var/lib/postgresql
CMD ["sh", "/opt/postgres.sh"]


FROM debian:bookworm-slim AS sluice
# Java's package links its manual pages, whose directory slim images lack.
RUN mkdir --parents /usr/share/man/man1 \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openjdk-17-jre-headless python3 \
    && rm -rf /var/lib/apt/lists/*
# The number of the user is fixed, because files in volumes keep it.
RUN useradd --system --uid 10001 --home-dir /var/lib/sluice --create-home sluice \
    && printf '#!/bin/sh\nexec /opt/venv/bin/python -P -m include.containers.mounted "$@"\n' > /usr/local/bin/with-secrets \
    && printf '#!/bin/sh\nexec with-secrets /opt/venv/bin/python -P -m include.cli "$@"\n' > /usr/local/bin/sluice \
    && chmod 755 /usr/local/bin/sluice /usr/local/bin/with-secrets
ENV PATH=/opt/venv/bin:$PATH \
    LC_ALL=C.UTF-8 \
    AIRFLOW_HOME=/var/lib/sluice/airflow \
    PYSPARK_PYTHON=/opt/venv/bin/python \
    PYTHONPATH=/opt/sluice \
    SLUICE_HOME=/var/lib/sluice \
    SLUICE_JARS=/opt/jars \
    SLUICE_SECRETS=/run/secrets \
    SLUICE_VENV=/opt/venv \
    SPARK_CONF_DIR=/tmp/spark-conf
WORKDIR /opt/sluice

# The packages of the lock. Whoever runs them cannot write what Python compiles, so it is compiled here, except for files
# that are no code of this Python.
COPY include/__init__.py include/errors.py include/layers.py include/progress.py include/settings.py include/
COPY include/local/__init__.py include/local/home.py include/local/install.py include/local/
COPY containers/trim.py containers/
COPY requirements.lock ./
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils python3-venv \
    && SLUICE_HOME=/tmp/install python3 -m include.local.install \
    && python3 containers/trim.py /opt/venv \
    && AIRFLOW_HOME=/tmp/install python -c \
        "import airflow, confluent_kafka, delta, deltalake, obstore, pandas, psycopg, pyarrow.dataset, pyspark.sql" \
    && (python3 -m compileall -qq /opt/venv/lib || true) \
    && apt-get purge --yes --auto-remove binutils python3-venv \
    && rm -rf /tmp/install /var/lib/apt/lists/*

COPY include/local/artifacts.py include/local/artifacts.txt include/local/java.py include/local/
COPY include/engine/s3 include/engine/s3
RUN SLUICE_HOME=/tmp/install python -m include.local.artifacts s3 connect && rm -rf /tmp/install

# The user of the image owns these files, so that it can read them whatever the umask of the checkout.
COPY --chown=sluice dags dags
COPY --chown=sluice docs/runbooks docs/runbooks
COPY --chown=sluice jobs jobs
COPY --chown=sluice plugins plugins
COPY --chown=sluice pyproject.toml ./
COPY --chown=sluice containers containers
COPY --chown=sluice include include
USER sluice
ENTRYPOINT ["python", "-m", "include.containers.entry"]


FROM golang:1.26-bookworm AS store-build
# The version of include/local/object_store.py.
RUN CGO_ENABLED=0 go install -trimpath -ldflags="-s -w" github.com/versity/versitygw/cmd/versitygw@v1.8.0


FROM debian:bookworm-slim AS store
RUN useradd --system --uid 10001 --home-dir /var/lib/store --create-home store
COPY --from=store-build /go/bin/versitygw /usr/local/bin/
COPY --chown=store containers/store.sh /opt/
USER store
VOLUME /var/lib/store
CMD ["sh", "/opt/store.sh"]
