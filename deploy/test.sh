#!/usr/bin/env bash
# Lint, types and all tests, in an environment of its own. Options go to pytest, for example
#   bash deploy/test.sh -k merge
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
weft_setup dev
cd "$weft_root"
ruff check .
ruff format --check .
mypy
exec python -m pytest "$@"
