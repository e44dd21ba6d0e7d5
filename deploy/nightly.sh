#!/usr/bin/env bash
# The nightly loop: what is too deep for a test run, part after part, each with a time limit; ends with a table of them,
# and with status 0 only if all passed. Options, for example to run some parts only:
#   bash deploy/nightly.sh --help
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
weft_setup dev
cd "$weft_root"
exec python -m tests.nightly "$@"
