#!/usr/bin/env bash
# The main job, self-contained: makes its own environment, then `weft demo`. Options go to weft demo, for example
#   bash deploy/demo.sh --rows 1000000 --keep ./demo
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
weft_setup
exec weft demo "$@"
