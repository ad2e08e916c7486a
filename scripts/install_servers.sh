#!/bin/sh
# Install the servers that the tests need and PyPI does not have, into .servers.
set -eu
cd "$(dirname "$0")/.."
version=3.35.0
if grep -q "\"version\": \"$version\"" .servers/node_modules/azurite/package.json 2>/dev/null; then
    exit 0
fi
if ! command -v npm >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq nodejs npm >/dev/null
    else
        echo "the Azure tests need npm (Node.js 20 or newer): install it, then run make test again" >&2
        exit 1
    fi
fi
npm install --no-audit --no-fund --silent --prefix .servers "azurite@$version"
