#!/usr/bin/env bash
# Starts one writer of a pipeline, or its compaction, by spark-submit, so that Spark's own tools place the driver and the executors:
#
#   bash deploy/spark-submit.sh [SPARK-SUBMIT OPTIONS] -- PIPELINE WRITER|compaction [--once] [--http [ADDRESS:]PORT]
#
#   bash deploy/spark-submit.sh --master spark://host:7077 -- pipeline.yaml orders
#   bash deploy/spark-submit.sh --master yarn --deploy-mode cluster -- pipeline.yaml orders
#   bash deploy/spark-submit.sh --master yarn -- pipeline.yaml compaction
#
# Executors get this Python environment, weft included, as an archive: WEFT_ARCHIVE (weft-env.tar.gz), which `weft package`
# makes if it is not there; make it anew after an update. The Python of the environment is WEFT_PYTHON, or python3 of the
# PATH. In cluster mode the driver gets the archive too, and the pipeline file, with no folder around it: locations in it
# must be URLs, and writers need `resume: table`. Options of yours go before those of this script.
set -euo pipefail

fail() {
  printf 'spark-submit.sh: %s\n' "$@" >&2
  exit 2
}

options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  options+=("$1")
  shift
done
if [ $# -lt 3 ]; then fail "usage: spark-submit.sh [SPARK-SUBMIT OPTIONS] -- PIPELINE WRITER [--once] [--http [ADDRESS:]PORT]"; fi
shift
pipeline=$1 writer=$2
shift 2
if [ ! -f "$pipeline" ]; then fail "there is no pipeline file $pipeline"; fi

python=${WEFT_PYTHON:-python3}
python=$("$python" -c 'import sys; print(sys.executable)') || fail "there is no Python $python"
job=$("$python" -c 'import importlib.util as u; print(u.find_spec("weft.streams.write.writer_job").origin)' 2>/dev/null) ||
  fail "$python does not have weft" "activate the environment that has it, or let WEFT_PYTHON be its Python"
spark=${SPARK_HOME:-$("$python" -c 'import pyspark; print(pyspark.__path__[0])')}

archive=${WEFT_ARCHIVE:-weft-env.tar.gz}
if [ ! -f "$archive" ]; then "$python" -P -m weft.streams.cli.main package -o "$archive" >&2; fi

driver=$python
files=()
for index in "${!options[@]}"; do
  case ${options[$index]}=${options[$index + 1]:-} in
    --deploy-mode=cluster | --deploy-mode=cluster=*)
      driver=./environment/bin/python
      files=(--files "$pipeline")
      pipeline=$(basename "$pipeline")
      ;;
  esac
done

# In this order, because the last of two equal options counts.
exec "$spark/bin/spark-submit" --name "weft $writer" \
  --archives "$archive#environment" ${files[@]+"${files[@]}"} \
  --conf spark.pyspark.python=./environment/bin/python --conf "spark.pyspark.driver.python=$driver" \
  ${options[@]+"${options[@]}"} "$job" "$pipeline" "$writer" "$@"
