#!/usr/bin/env bash
# The documentation site: collects the Markdown files of the repository, builds the site, and checks every link of it.
#   bash deploy/docs.sh            into build/docs/site; open index.html there, no server is needed
#   bash deploy/docs.sh DIR        into DIR/site
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
weft_setup docs
exec python "$weft_root/deploy/docs/site.py" build "${1:-$weft_root/build/docs}"
