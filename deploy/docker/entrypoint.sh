#!/usr/bin/env bash
# Entry point of the image. Arguments are those of the command `weft`, with two exceptions: Spark on Kubernetes starts
# its pods with `driver` or `executor`, and tells the rest in environment variables (SPARK_DRIVER_URL and so on).
set -euo pipefail

class_path="$SPARK_HOME/jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}"
if [ -n "${HADOOP_CONF_DIR:-}" ]; then class_path=$HADOOP_CONF_DIR:$class_path; fi
if [ -n "${SPARK_CONF_DIR:-}" ]; then class_path=$SPARK_CONF_DIR:$class_path; fi

case ${1:-} in
  driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    java_options=()
    while read -r name; do
      java_options+=("${!name}")
    done < <(compgen -e | grep '^SPARK_JAVA_OPT_' | sort --field-separator=_ --key=4 --numeric-sort)
    exec java ${java_options[@]+"${java_options[@]}"} "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "$class_path" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec /opt/weft/bin/weft "$@"
    ;;
esac
