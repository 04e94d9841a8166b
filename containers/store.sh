#!/bin/sh
# Runs the S3 store with the keys of the mounted secrets. A bucket is a directory, and the first one is made here.
set -eu

data=${STORE_DATA:-/var/lib/store}
secrets=${SLUICE_SECRETS:-/run/secrets}

# `set -e` does not look into what `export` assigns.
ROOT_ACCESS_KEY=$(cat "$secrets/AWS_ACCESS_KEY_ID")
ROOT_SECRET_KEY=$(cat "$secrets/AWS_SECRET_ACCESS_KEY")
export ROOT_ACCESS_KEY ROOT_SECRET_KEY
mkdir -p "$data/sluice"
exec versitygw --quiet --port "${STORE_ADDRESS:-:7070}" --region us-east-1 posix "$data"
