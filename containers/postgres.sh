#!/bin/sh
# Makes the database cluster if there is none, gives its users the passwords of the mounted secrets, and runs it.
set -eu

data=${PGDATA:-/var/lib/postgresql/data}
programs=${POSTGRESQL_PROGRAMS:-$(echo /usr/lib/postgresql/*/bin)}
secrets=${SLUICE_SECRETS:-/run/secrets}

# In single-user mode, before anybody can connect. Each line is a statement.
alone() {
    "$programs/postgres" --single -D "$1" postgres > /dev/null
}

if [ ! -d "$data" ]; then
    # The last step is a rename, so the cluster is either complete or missing.
    rm -rf "$data.new"
    "$programs/initdb" --pgdata="$data.new" --auth-local=peer --auth-host=scram-sha-256 --no-locale --encoding=UTF8
    echo "host all all all scram-sha-256" >> "$data.new/pg_hba.conf"
    # Drivers know a password of the control database alone, and must not read Airflow's.
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
    sed "s/'/''/g" "$secrets/$1"
}
# Before the statements, so that the script ends where one is missing.
driver_password=$(quoted CONTROL_DRIVER_PASSWORD)
supervisor_password=$(quoted CONTROL_SUPERVISOR_PASSWORD)
airflow_password=$(quoted AIRFLOW_DATABASE_PASSWORD)
control_password=$(quoted CONTROL_DATABASE_PASSWORD)

# Those of an earlier release had the owner alone. `include.containers.migrate` gives the roles their rights.
exists() {
    printf "SELECT FROM pg_roles WHERE rolname = '%s'" "$1"
}

alone "$data" <<END
$(for role in sluice_reader sluice_driver sluice_supervisor; do
    echo "DO \$\$ BEGIN IF NOT EXISTS ($(exists $role)) THEN CREATE ROLE $role; END IF; END \$\$"
done)
$(for part in driver supervisor; do
    login="control_$part"
    echo "DO \$\$ BEGIN IF NOT EXISTS ($(exists $login)) THEN CREATE ROLE $login LOGIN IN ROLE sluice_$part; END IF; END \$\$"
done)
GRANT CONNECT ON DATABASE control TO sluice_reader, sluice_driver, sluice_supervisor
ALTER ROLE control_driver PASSWORD '$driver_password'
ALTER ROLE control_supervisor PASSWORD '$supervisor_password'
ALTER ROLE airflow PASSWORD '$airflow_password'
ALTER ROLE control PASSWORD '$control_password'
END
exec "$programs/postgres" -D "$data" -c "listen_addresses=*" -c max_connections=200 "$@"
