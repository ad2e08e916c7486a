#!/bin/sh
# Start SeaweedFS with one bucket, one identity for the Penstock server, and the role arn:aws:iam::role/lake, which that
# identity assumes to issue credentials for one table. Further arguments are those of `weed mini`.
set -eu
: "${S3_BUCKET:?}" "${S3_ACCESS_KEY:?}" "${S3_SECRET_KEY:?}" "${S3_SIGNING_KEY:?}" "${S3_FOLDER:=/data}"
umask 077
config=$(mktemp -d)
cat >"$config/s3.json" <<JSON
{"identities": [{"name": "server", "actions": ["Admin"],
  "credentials": [{"accessKey": "$S3_ACCESS_KEY", "secretKey": "$S3_SECRET_KEY"}]}]}
JSON
cat >"$config/iam.json" <<JSON
{"sts": {"tokenDuration": "1h", "maxSessionLength": "12h", "issuer": "seaweedfs-sts", "signingKey": "$S3_SIGNING_KEY"},
 "policy": {"defaultEffect": "Deny", "storeType": "memory"},
 "policies": [{"name": "Lake", "document": {"Version": "2012-10-17", "Statement": [{"Effect": "Allow",
   "Action": ["s3:*"], "Resource": ["arn:aws:s3:::$S3_BUCKET", "arn:aws:s3:::$S3_BUCKET/*"]}]}}],
 "roles": [{"roleName": "lake", "roleArn": "arn:aws:iam::role/lake", "attachedPolicies": ["Lake"],
   "trustPolicy": {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*",
     "Action": ["sts:AssumeRole"]}]}}]}
JSON
exec weed mini -dir="$S3_FOLDER" -bucket="$S3_BUCKET" -ip=127.0.0.1 -ip.bind=0.0.0.0 -master.telemetry=false \
    -webdav=false -admin.ui=false -s3.port.iceberg=0 -s3.port.lance=0 \
    -s3.config="$config/s3.json" -s3.iam.config="$config/iam.json" "$@"
