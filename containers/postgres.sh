#!/bin/sh
# Makes the database cluster if there is none, gives its two users the passwords of the environment, and runs it.
set -eu

data=/var/lib/postgresql/data
programs=$(echo /usr/lib/postgresql/*/bin)

# In single-user mode, before anybody can connect. Each line is a statement.
alone() {
    "$programs/postgres" --single -D "$1" postgres > /dev/null
}

if [ ! -d "$data" ]; then
    # The last step is a rename, so the cluster is either complete or missing.
    rm -rf "$data.new"
    "$programs/initdb" --pgdata="$data.new" --auth-local=peer --auth-host=scram-sha-256 --no-locale --encoding=UTF8
    echo "host all all all scram-sha-256" >> "$data.new/pg_hba.conf"
    # Drivers know the password of `control` alone, and must not read Airflow's database.
    alone "$data.new" <<END
CREATE ROLE airflow LOGIN
CREATE ROLE control LOGIN
CREATE DATABASE airflow OWNER airflow
CREATE DATABASE control OWNER control
REVOKE CONNECT ON DATABASE airflow, control FROM PUBLIC
END
    mv "$data.new" "$data"
fi

quoted() {
    printf "%s" "$1" | sed "s/'/''/g"
}

alone "$data" <<END
ALTER ROLE airflow PASSWORD '$(quoted "$AIRFLOW_DATABASE_PASSWORD")'
ALTER ROLE control PASSWORD '$(quoted "$CONTROL_DATABASE_PASSWORD")'
END
exec "$programs/postgres" -D "$data" -c "listen_addresses=*" -c max_connections=200
