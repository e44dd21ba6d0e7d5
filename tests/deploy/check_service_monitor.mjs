// Reads resources of the Prometheus operator as JSON and prints what their schema finds wrong. Node looks for the schema
// beside this file.
import { readFileSync } from "node:fs";
import { PrometheusRule } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";

const kinds = { PrometheusRule, ServiceMonitor };
for (const document of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    new kinds[document.kind](document).validate();
  } catch (error) {
    console.log(String(error));
  }
}
