#!/usr/bin/env bash
# Lint, types and tests, in an environment of its own.
#   bash deploy/test.sh              the full loop, some 20 minutes on 2 cores: all tests but those of the next two loops
#   bash deploy/test.sh --extended   what continuous integration runs besides the full loop: the TLA+ models, more schedules of
#                                    the simulation and broken implementations for it to find, soak, a Spark cluster,
#                                    real servers beside the simulated ones
#   bash deploy/test.sh --ci         the full and the extended loop in one, which takes less time than one after the other
#   bash deploy/test.sh --fast       the fast loop, under 90 s on 2 cores: what needs no JVM and no server, and one
#                                    way through Spark
#   bash deploy/test.sh --nightly    the nightly loop, for hours: deep and long tests, soak, benchmarks (nightly.sh)
# Other options go to pytest, for example
#   bash deploy/test.sh -k merge
#   bash deploy/test.sh -n 0         in one process, which debuggers want
#   bash deploy/test.sh -m nightly   another choice of markers (pyproject.toml says what they mean)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
loop=full
case ${1:-} in
  --fast | --extended | --ci | --nightly)
    loop=${1#--}
    shift
    ;;
esac
if [ "$loop" = nightly ]; then exec bash "$weft_root/deploy/nightly.sh" "$@"; fi
weft_setup dev
cd "$weft_root"
if [ "$loop" != fast ]; then
  # From an archive of Spark's classes each of some hundred JVMs starts with half the work. It is made once, meanwhile.
  python -m tests.class_sharing &
  archive=$!
fi
# All files and not only those that changed: with their caches the three take less than two seconds.
ruff check .
ruff format --check .
lint-imports --no-logo
mypy
if [ "$loop" != fast ]; then
  wait "$archive" || echo "there is no archive of classes, so the tests take longer" >&2
fi
# Images for containers often set this. Several processes collect all tests in each loop, and tests start Python hundreds of
# times: compiling everything again takes twice as long.
unset PYTHONDONTWRITEBYTECODE
# Files of tests run side by side, the longest first (tests/conftest.py). Tests with Spark wait for other processes a third
# of the time, so three keep two cores busy. Each of them may have JVMs with 3 GB, but not in the fast loop.
processes=3
if [ "$loop" != fast ]; then
  processes=$(python -c 'import os; print(3 if os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >= 12e9 else 2)')
fi
tests=(python -m pytest -n "$processes" --dist loadfile --no-loadscope-reorder)
if [ "$loop" = fast ]; then
  tests+=(-m "smoke or not (spark or models or integration or slow or extended or nightly)" --hypothesis-profile=fast)
  tests+=(--at-most 0.25)
elif [ "$loop" = extended ]; then
  tests+=(-m "(extended or models) and not nightly")
elif [ "$loop" = ci ]; then
  tests+=(-m "not nightly")
else
  tests+=(-m "not (extended or models or nightly)")
fi
exec "${tests[@]}" "$@"
