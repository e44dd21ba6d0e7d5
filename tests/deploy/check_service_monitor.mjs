// Reads ServiceMonitors as JSON and prints what their schema finds wrong. Node looks for the schema beside this file.
import { readFileSync } from "node:fs";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";

for (const document of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    new ServiceMonitor(document).validate();
  } catch (error) {
    console.log(String(error));
  }
}
