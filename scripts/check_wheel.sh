#!/bin/sh
# Build the wheel and import it where nothing but its dependencies is installed.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m build --wheel --no-isolation --outdir "$work" . >/dev/null
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check --quiet install -c constraints.txt "$work"/*.whl
cd "$work"
venv/bin/python -W error -c "import penstock; ds = penstock.create('table', {'x': 'float32'}); ds.append({'x': [1.0, 2.0]}); ds.commit(); assert len(penstock.load('table')) == 2"
venv/bin/penstock --version
# The server, installed as the Containerfile does it.
venv/bin/python -m pip --disable-pip-version-check --quiet install -c "$OLDPWD/constraints.txt" "$(echo ./*.whl)[server]"
PENSTOCK_HOME=home venv/bin/penstock serve check
echo "the wheel installs, imports and works in an environment of its own"
