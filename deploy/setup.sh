# shellcheck shell=bash
# Sourced by demo.sh, test.sh and .ci/run: everything they need on a machine with Python 3.11+ and Java 17+.
#
#   weft_setup [EXTRA]   makes a virtual environment (.venv in the repository, or WEFT_VENV), installs weft with the pinned
#                        packages of constraints.txt, and puts it on the PATH; does nothing if nothing has changed. EXTRA
#                        is an extra of pyproject.toml such as dev or docs, by default ui, the page. A second one at the
#                        same time waits for the first (environment.py)
#
# JAVA_HOME is honoured, and so is WEFT_PYTHON (the Python that makes the environment). Written for bash 3.2, which is
# what macOS has, and for zsh, its shell in a terminal.

weft_root=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd) # zsh has no BASH_SOURCE, and the name of a sourced file in $0

# Commands of the documents have comments, which a zsh on a terminal takes for arguments otherwise.
if [ -n "${ZSH_VERSION:-}" ]; then setopt interactive_comments; fi

# Fails without ending the shell, which may be a terminal that sources this file; scripts end by `set -e`.
weft_fail() {
  printf 'weft: %s\n' "$@" >&2
  return 1
}

# A Python that is new enough, or nothing; of a virtual environment the Python that it was made with.
weft_find_python() {
  local candidate
  for candidate in ${WEFT_PYTHON:+"$WEFT_PYTHON"} python3 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      "$candidate" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))'
      return
    fi
  done
}

# Major version of the Java that Spark will use, or nothing.
weft_java_version() {
  local java=java
  if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi
  { "$java" -version 2>&1 || true; } | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

weft_check_java() {
  local version
  version=$(weft_java_version)
  if [ "${version:-0}" -ge 17 ]; then return; fi
  weft_fail "Spark needs Java 17 or newer; ${JAVA_HOME:+in JAVA_HOME=$JAVA_HOME }there is ${version:-none}." \
    "  Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless" \
    "  Fedora, RHEL     sudo dnf install java-17-openjdk-headless" \
    "  macOS            brew install openjdk@17; export JAVA_HOME=\$(brew --prefix openjdk@17)" \
    "  without root     pip install install-jdk; export JAVA_HOME=\$(python3 -c 'import jdk; print(jdk.install(\"17\"))')" \
    "If it is installed, let JAVA_HOME be the folder that has bin/java."
}

# What the environment must be made anew for.
weft_fingerprint() {
  {
    # Settings of the tools for development change nothing that is installed.
    sed -E '/^\[+tool\.(pytest|mypy|ruff|importlinter|mutmut)/,/^$/d' "$weft_root/pyproject.toml"
    cat "$weft_root/deploy/constraints.txt" "$weft_root/deploy/environment.py"
    printf '%s\n' "$weft_root"
    "$1" -c 'import sys; print(sys.version, sys.base_prefix)'
  } | cksum
}

weft_setup() {
  local extra=${1:-ui} python venv
  weft_check_java || return 1
  python=$(weft_find_python)
  if [ -z "$python" ]; then
    weft_fail "weft needs Python 3.11 or newer; none was found." \
      "Install one (Debian, Ubuntu: sudo apt-get install python3 python3-venv), or name it: WEFT_PYTHON=/path/to/python" ||
      return 1
  fi
  venv=${WEFT_VENV:-$weft_root/.venv}
  case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
  # Prints its progress, and why it failed.
  "$python" -I "$weft_root/deploy/environment.py" "$venv" "$(weft_fingerprint "$python")" "$extra" || return 1
  weft_activate "$venv"
}

weft_activate() {
  export PATH="$1/bin:$PATH" VIRTUAL_ENV="$1"
  # Spark looks for formats in the folders of Python's path only, which those of an editable installation are not on.
  export PYTHONPATH="$weft_root/streams/spark_path${PYTHONPATH:+:$PYTHONPATH}"
  # Another Spark of this machine must not take the place of the one that was installed.
  unset SPARK_HOME PYTHONHOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
}
