#!/usr/bin/env bash
# Lint, types and all tests, in an environment of its own. Options go to pytest, for example
#   bash deploy/test.sh -k merge
#   bash deploy/test.sh -n 0        in one process, which debuggers want
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
weft_setup dev
cd "$weft_root"
ruff check .
ruff format --check .
lint-imports --no-logo
mypy
# Files of tests run side by side in two processes, the longest first (tests/conftest.py).
exec python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
